// The payload of a letter, and its replay with another one.
import { short } from "/charts.js";
import { closed, toast } from "/dialogs.js";
import { $, h, set } from "/dom.js";
import { askPrivately, mayCommand, post } from "/session.js";

let letter = null, changed = () => {};

// Line ends stay, other control characters are escaped.
const lines = (node, text) => node.replaceChildren(...text.split("\n").flatMap((line) => [h("span", "", line), document.createTextNode("\n")]));

function edit(isEditing) {
  $("letter-form").hidden = !isEditing;
  $("letter-view").hidden = isEditing;
  $("letter-edit").hidden = isEditing || !mayCommand() || letter.editable === null;
  $("letter-replay").hidden = !isEditing;
  set($("edit-error"), "");
  if (isEditing) $("letter-text").focus();
}

// `done` is called after the letter was replayed.
export async function showPayload(id, done) {
  try {
    letter = await askPrivately(`/api/dead/letter?${new URLSearchParams({ id })}`);
  } catch (error) {
    return toast(error.message, true);
  }
  changed = done;
  set($("letter-title"), `${letter.kind} ${letter.id}`);
  const size = `${short(letter.bytes)} bytes${letter.payload.length < letter.bytes && letter.bytes > 65536 ? "; the beginning is shown" : ""}`;
  set($("letter-note"), size + (letter.editable === null ? "; `garenne dead edit` replaces it" : ""));
  lines($("letter-payload"), letter.payload);
  lines($("letter-headers"), JSON.stringify(letter.headers, null, 2));
  $("letter-text").value = letter.editable ?? "";
  edit(false);
  await closed($("letter"));
}

$("letter-edit").addEventListener("click", () => edit(true));
$("letter-replay").addEventListener("click", async () => {
  $("letter-replay").disabled = true;
  set($("edit-error"), "");
  try {
    const { id, to, others } = await post("/api/dead/edit", { id: letter.id, payload: $("letter-text").value });
    $("letter").close("replayed");
    toast(`Replayed as ${id}, to ${to}${others ? `; ${others} older letters with the same id remain` : ""}`);
    changed();
  } catch (error) {
    set($("edit-error"), error.message);
  } finally {
    $("letter-replay").disabled = false;
  }
});
