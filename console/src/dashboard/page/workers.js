// The workers: as cards while they are few, as a table with a row each while they are many.
import { addressWith, parameter, remember } from "/address.js";
import { short, span } from "/charts.js";
import { $, h, keyed, set, setTime, tr } from "/dom.js";
import { gate } from "/session.js";
import { Table } from "/table.js";
import { addCommands, heard, makeCard, updateCard, updateCommands } from "/worker_card.js";

// More workers than this are a table, unless the person chose.
const MOST_CARDS = 12;

let shown = null, filter = "", layout = "auto";

const sum = (worker, what) => Object.values(worker.lanes).reduce((n, lane) => n + lane[what], 0);
const longest = (worker) => worker.tasks[0];
const columns = [
  { title: "worker", css: "id", of: ({ id }) => id },
  { title: "state", of: ({ state }) => state },
  { title: "busy", css: "n", of: (worker) => sum(worker, "busy") },
  { title: "waiting", css: "n wide", of: (worker) => sum(worker, "queued") },
  { title: "stuck", css: "n", of: (worker) => sum(worker, "stuck") },
  { title: "longest task", css: "wide", of: (worker) => longest(worker)?.seconds },
  { title: "since", css: "wide", of: (worker) => heard(worker, shown.now)[1] || null },
  { title: "host", css: "wide", of: ({ host }) => host },
  { title: "version", css: "wide", of: ({ version }) => version },
  { title: "Actions", css: "wide", hide: true },
];
const table = new Table($("worker-table"), "workers", columns, () => shown && drawWorkers(shown));

function matches(worker) {
  const words = [worker.id, worker.state, worker.host, ...worker.tasks.flatMap((task) => [task.id, task.kind, task.group ?? ""])];
  return filter === "" || words.some((word) => word.toLowerCase().includes(filter));
}

// The card of one worker, at an address of its own.
function showCard(id) {
  remember({ filter: id, workers: "cards" }, true);
  readWorkers();
  $("workers").focus({ preventScroll: true });
}

function makeRow(worker) {
  const row = tr(...columns.map(({ title, css }) => [title, css])), cell = row.children;
  const link = h("a", "", worker.id);
  link.href = addressWith({ filter: worker.id, workers: "cards" });
  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    showCard(worker.id);
  });
  cell[0].append(link);
  cell[1].append(h("span", "pill"));
  row.since = h("time");
  cell[6].append(row.since);
  const acts = gate(h("div", "acts"));
  addCommands(row, acts, worker);
  cell[9].append(acts);
  return row;
}

function updateRow(row, worker) {
  const cell = row.children, pill = cell[1].firstChild, stuck = sum(worker, "stuck"), task = longest(worker);
  pill.className = "pill " + worker.state;
  set(pill, worker.state);
  set(cell[2], `${short(sum(worker, "busy"))}/${short(sum(worker, "slots"))}`);
  set(cell[3], short(sum(worker, "queued")));
  set(cell[4], short(stuck));
  cell[4].className = stuck ? "n bad" : "n";
  set(cell[5], task ? `${task.kind} ${span(task.seconds)}` : "–");
  const [text, at] = heard(worker, shown.now);
  setTime(row.since, at, text);
  set(cell[7], worker.host || "–");
  set(cell[8], worker.version ?? "–");
  updateCommands(row, worker);
}

export function drawWorkers(fleet) {
  shown = fleet;
  const { workers } = fleet.now, found = workers.filter(matches);
  const isTable = layout === "auto" ? workers.length > MOST_CARDS : layout === "table";
  $("no-workers").hidden = workers.length > 0 || fleet.now.unknown.workers;
  set($("workers-note"), filter ? `${short(found.length)} of ${short(workers.length)}` : "");
  $(isTable ? "layout-table" : "layout-cards").checked = true;
  table.draw(isTable ? found : [], ({ id }) => id, makeRow, updateRow);
  $("worker-cards").hidden = isTable;
  keyed($("worker-cards"), isTable ? [] : found, ({ id }) => id, makeCard, (node, worker) => updateCard(node, worker, fleet.now));
}

// The state of the address.
export function readWorkers() {
  $("filter").value = parameter("filter", "");
  filter = $("filter").value.trim().toLowerCase();
  layout = parameter("workers", "auto");
  table.read();
  if (shown) drawWorkers(shown);
}

for (const name of ["cards", "table"]) {
  $(`layout-${name}`).addEventListener("change", () => {
    layout = name;
    remember({ workers: name });
    if (shown) drawWorkers(shown);
  });
}
$("filter").addEventListener("input", () => {
  remember({ filter: $("filter").value.trim() });
  filter = $("filter").value.trim().toLowerCase();
  if (shown) drawWorkers(shown);
});
