// The dead letters: counts by kind and reason, and a page of them, newest first. Letters are moved by jobs.
import { parameter, remember } from "/address.js";
import { many, short, span } from "/charts.js";
import { closed, confirmed, toast } from "/dialogs.js";
import { $, button, h, keyed, label, set, setTime, tr } from "/dom.js";
import { startJob } from "/jobs.js";
import { ask, askPrivately, gate } from "/session.js";
import { Table } from "/table.js";

let shown = null, loading = false, page = 1, waiting = 0;
const chosen = new Set();

const all = h("input");
all.type = "checkbox";
label(all, "Select all letters of this page");
const columns = [
  { title: "Selection", head: all, hide: true },
  { title: "task", css: "id", of: ({ id }) => id },
  { title: "kind", of: ({ kind }) => kind },
  { title: "reason", of: ({ reason }) => reason },
  { title: "error", css: "error", of: ({ error }) => error },
  { title: "attempts", css: "n", of: ({ attempts }) => attempts },
  { title: "worker", css: "id", of: ({ worker }) => worker },
  { title: "died", css: "n", of: ({ died_at }) => Date.parse(died_at) || null },
  { title: "Actions", hide: true },
];
const table = new Table($("dead-table"), "letters", columns, () => shown && draw(shown));
gate(table.heads[0]);

// `expected`: the number of letters in the queue, as far as it is known.
export async function loadLetters(expected = waiting) {
  waiting = expected;
  if (loading) return;
  loading = true;
  try {
    const result = await ask(`/api/dead?page=${page}`);
    page = Math.min(page, result.pages);
    draw(result);
    // Another page was chosen while this one was read, or this one is beyond the last.
    if (page !== result.page) setTimeout(loadLetters);
    // The server caches the list for five seconds, and dead letters arrive while it reads them.
    if (!result.more && result.read !== waiting) setTimeout(loadLetters, 5500);
  } catch (error) {
    set($("dead-note"), error.message);
  } finally {
    loading = false;
  }
}

const WHAT = {
  replay: "published again with their attempts reset",
  drop: "removed permanently",
};

async function move(action, count, subject, selection) {
  const does = `${action === "replay" ? "Replay" : "Drop"} ${many(count, "letter")}`;
  const done = await confirmed(`${does}?`, `${subject} ${WHAT[action]}.`, does, action === "drop") && await startJob(action, selection);
  if (!done || !selection.ids) return;
  selection.ids.forEach((id) => chosen.delete(id));
  showChosen();
}

async function showPayload(id) {
  try {
    const letter = await askPrivately(`/api/dead/letter?${new URLSearchParams({ id })}`);
    set($("letter-title"), `${letter.kind} ${letter.id}`);
    set($("letter-note"), `${short(letter.bytes)} bytes${letter.payload.length < letter.bytes && letter.bytes > 65536 ? "; the beginning is shown" : ""}`);
    // Line ends stay, other control characters are escaped.
    const lines = (node, text) => node.replaceChildren(...text.split("\n").flatMap((line) => [h("span", "", line), document.createTextNode("\n")]));
    lines($("letter-payload"), letter.payload);
    lines($("letter-headers"), JSON.stringify(letter.headers, null, 2));
    await closed($("letter"));
  } catch (error) {
    toast(error.message, true);
  }
}

function showChosen() {
  const rows = [...table.body.rows].filter((row) => row.box);
  for (const row of rows) row.box.checked = chosen.has(row.task);
  const count = rows.filter((row) => row.box.checked).length;
  all.checked = count > 0 && count === rows.length;
  all.indeterminate = count > 0 && count < rows.length;
  for (const id of ["bulk-replay", "bulk-drop"]) $(id).disabled = chosen.size === 0;
  set($("bulk-note"), `${short(chosen.size)} selected`);
}

function note(result) {
  const part = result.pages > 1 ? `, page ${result.page} of ${result.pages}` : "";
  const others = result.ungrouped ? `, ${short(result.ungrouped)} of further kinds` : "";
  const read = result.more ? `the oldest ${short(result.read)}` : `${short(result.read)} in total`;
  return result.read ? `${read}, newest first${part}${others}` : "";
}

function makeChip({ kind, reason }) {
  const chip = h("span", "chip"), acts = gate(h("span", "acts")), selection = { kind, reason };
  for (const [action, text, css] of [["replay", "Replay all", "small"], ["drop", "Drop all", "small danger"]]) {
    const subject = `All dead letters of kind ${kind} with reason ${reason} are`;
    acts.append(label(button(text, css, () => move(action, chip.count, subject, selection)), `${text} ${kind} with reason ${reason}`));
  }
  chip.append(h("b"), h("span", "", `${kind}, ${reason}`), acts);
  return chip;
}

function makeRow(letter) {
  const { id, kind, group, reason, error, attempts, worker } = letter;
  const box = gate(h("span")), acts = h("div", "acts"), died = h("time"), commands = gate(h("span", "acts"));
  const contents = [box, id ?? "–", kind + (group ? `, group ${group}` : ""), h("span", "pill silent", reason), error ?? "", String(attempts), worker ?? "–", died, acts];
  const row = tr(...columns.map(({ title, css, of }, n) => [of ? title : "", css, contents[n]]));
  row.died = died;
  gate(row.children[0]);
  if (!id) return row;
  row.task = id;
  row.box = h("input");
  row.box.type = "checkbox";
  label(row.box, `Select ${id}`);
  row.box.addEventListener("change", () => { chosen[row.box.checked ? "add" : "delete"](id); showChosen(); });
  box.append(row.box);
  for (const [action, text, css] of [["replay", "Replay", "small"], ["drop", "Drop", "small danger"]]) {
    commands.append(label(button(text, css, () => move(action, 1, `The letters with this id (${kind}, ${reason}) are`, { ids: [id] })), `${text} ${id}`));
  }
  acts.append(commands, label(gate(button("Payload", "small", () => showPayload(id)), "login"), `Payload of ${id}`));
  return row;
}

function draw(result) {
  shown = result;
  $("no-dead").hidden = result.letters.length > 0;
  set($("dead-note"), note(result));
  $("newer").hidden = $("older").hidden = result.pages === 1;
  $("newer").disabled = result.page === 1;
  $("older").disabled = result.page >= result.pages;
  keyed($("dead-groups"), result.groups, ({ kind, reason }) => kind + " " + reason, makeChip, (chip, { count }) => { chip.count = count; set(chip.firstChild, short(count)); });
  // Several dead letters can be equal in all properties. Each one gets a row.
  const rows = new Map(), ids = new Set();
  for (const letter of result.letters) {
    const same = `${letter.id} ${letter.kind} ${letter.died_at} ${letter.attempts}`;
    rows.set(same, (rows.get(same) ?? 0) + 1);
    letter.row = `${same} ${rows.get(same)}`;
    ids.add(letter.id);
  }
  for (const id of chosen) if (!ids.has(id)) chosen.delete(id);
  table.draw(result.letters, ({ row }) => row, makeRow, (row, letter) => {
    const at = Date.parse(letter.died_at);
    setTime(row.died, at, letter.died_at ? span(Math.max(0, result.at - at) / 1000) + " ago" : "–");
  });
  showChosen();
}

function turn(step) {
  page = Math.max(1, page + step);
  remember({ page: page > 1 ? page : null }, true);
  loadLetters();
}

// The state of the address.
export function readLetters() {
  const given = Number(parameter("page", "1")), before = page;
  page = Number.isInteger(given) && given >= 1 && given <= 100 ? given : 1;
  table.read();
  if (shown && page === before) draw(shown);
  else if (shown) loadLetters();
}

$("refresh").addEventListener("click", () => loadLetters());
$("newer").addEventListener("click", () => turn(-1));
$("older").addEventListener("click", () => turn(1));
all.addEventListener("change", () => {
  for (const row of table.body.rows) if (row.box) chosen[all.checked ? "add" : "delete"](row.task);
  showChosen();
});
for (const action of ["replay", "drop"]) {
  $(`bulk-${action}`).addEventListener("click", () => {
    const ids = [...chosen];
    move(action, ids.length, `The selected letters, and others with the same ids, are`, { ids });
  });
}
