// The dead letters that match the filter: their errors, and a page of them, newest first. Letters are moved by jobs.
import { parameter, remember } from "/address.js";
import { many, short, span } from "/charts.js";
import { confirmed } from "/dialogs.js";
import { $, button, h, label, set, setTime, tr } from "/dom.js";
import { startJob } from "/jobs.js";
import { drawErrors, readErrors } from "/letter_errors.js";
import { showPayload } from "/letter_dialog.js";
import { conditionButton, filterOf, filterWords, isFiltered, readFilter } from "/letter_filter.js";
import { ask, gate } from "/session.js";
import { Table } from "/table.js";

let shown = null, loading = null, page = 1, waiting = 0;
const chosen = new Set();

const all = h("input");
all.type = "checkbox";
label(all, "Select all letters of this page");
const columns = [
  { title: "Selection", head: all, hide: true, brief: true },
  { title: "task", css: "id", of: ({ id }) => id, brief: true },
  { title: "kind", of: ({ kind }) => kind },
  { title: "reason", of: ({ reason }) => reason, brief: true },
  { title: "error", css: "error", of: ({ error }) => error },
  { title: "attempts", css: "n", of: ({ attempts }) => attempts },
  { title: "worker", css: "id", of: ({ worker }) => worker },
  { title: "died", css: "n", of: ({ died_at }) => Date.parse(died_at) || null, brief: true },
  { title: "Actions", hide: true },
];
const table = new Table($("dead-table"), "letters", columns, () => isCurrent() && draw(shown));
gate(table.heads[0]);

// What is listed: the filter and the page.
const query = () => new URLSearchParams({ ...filterOf(), page }).toString();
// Until another filter or page is read, the list of the one before is shown as it was drawn.
const isCurrent = () => shown?.query === query();

// `expected`: the number of letters in the queue, as far as it is known.
export async function loadLetters(expected = waiting) {
  waiting = expected;
  if (loading !== null) return;
  loading = query();
  try {
    const result = { ...await ask(`/api/dead?${loading}`), query: loading };
    page = Math.min(page, result.pages);
    if (query() === loading) draw(result);
    // The server caches the list for five seconds, and dead letters arrive while it reads them.
    if (!result.more && result.read !== waiting) setTimeout(loadLetters, 5500);
  } catch (error) {
    set($("dead-note"), error.message);
  } finally {
    // Another filter or page was chosen while this one was read, or the page is beyond the last.
    if (query() !== loading) setTimeout(loadLetters);
    loading = null;
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

// The selected letters, else all that the filter matches.
function moveMany(action) {
  const ids = [...chosen];
  if (ids.length) return move(action, ids.length, "The selected letters, and others with the same ids, are", { ids });
  const more = shown.more ? `At least as many: the oldest ${shown.read.toLocaleString("en")} letters were looked at. ` : "";
  return move(action, shown.matched, `${more}All letters (${filterWords()}), also those that arrive until the job begins, are`, filterOf());
}

function showChosen() {
  const rows = [...table.body.rows].filter((row) => row.box);
  for (const row of rows) row.box.checked = chosen.has(row.task);
  const count = rows.filter((row) => row.box.checked).length;
  all.checked = count > 0 && count === rows.length;
  all.indeterminate = count > 0 && count < rows.length;
  const size = chosen.size || (isFiltered() && shown ? shown.matched : 0);
  for (const [id, verb] of [["bulk-replay", "Replay"], ["bulk-drop", "Drop"]]) {
    $(id).disabled = size === 0;
    set($(id), chosen.size ? `${verb} ${many(size, "selected letter")}` : size ? `${verb} ${many(size, "letter")}` : verb);
  }
  set($("bulk-note"), chosen.size ? `${short(chosen.size)} selected` : isFiltered() ? "all that match" : "select letters, or set a filter to move all that match");
}

function note(result) {
  const part = result.pages > 1 ? `, page ${result.page} of ${result.pages}` : "", all = result.read.toLocaleString("en");
  const read = result.more ? `the oldest ${all} looked at` : `${all} in total`;
  const matched = isFiltered() ? `${result.matched.toLocaleString("en")} match, ` : "";
  return result.read ? `${matched}${read}, newest first${part}` : "";
}

function makeRow(letter) {
  const { id, kind, group, reason, error, attempts, worker } = letter;
  const box = gate(h("span")), acts = h("div", "acts"), died = h("time"), commands = gate(h("span", "acts"));
  const what = h("span", "flags"), why = conditionButton(reason, "pill silent", { reason });
  what.append(conditionButton(kind, "", { kind }));
  if (group) what.append(conditionButton(`group ${group}`, "pill", { group }));
  const contents = [box, id ?? "–", what, why, error ?? "", String(attempts), worker ?? "–", died, acts];
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
  acts.append(commands, label(gate(button("Payload", "small", () => showPayload(id, loadLetters)), "login"), `Payload of ${id}`));
  return row;
}

function draw(result) {
  shown = result;
  $("no-dead").hidden = result.letters.length > 0;
  set($("no-dead"), result.read ? "None matches the filter." : "None.");
  set($("dead-note"), note(result));
  $("newer").hidden = $("older").hidden = result.pages === 1;
  $("newer").disabled = result.page === 1;
  $("older").disabled = result.page >= result.pages;
  drawErrors(result);
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

// The ages as of another time than that of the list.
export const drawLetters = (at) => isCurrent() && draw({ ...shown, at });

function turn(step) {
  page = Math.max(1, page + step);
  remember({ page: page > 1 ? page : null }, true);
  loadLetters();
}

// The state of the address.
export function readLetters() {
  const given = Number(parameter("page", "1"));
  page = Number.isInteger(given) && given >= 1 && given <= 100 ? given : 1;
  readFilter(() => { page = 1; loadLetters(); });
  table.read();
  readErrors();
  if (isCurrent()) draw(shown);
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
  $(`bulk-${action}`).addEventListener("click", () => moveMany(action));
}
