// The table of kinds: rates, percentiles and dead letters.
import { short, span, spark } from "/charts.js";
import { $, h, set, tr } from "/dom.js";
import { pauseButton, updatePause } from "/pause.js";
import { Table } from "/table.js";

let shown = null;

const NONE = { done_rate: 0, failed_rate: 0, dead: 0, p50: null, p95: null, p99: null };

const of = (what) => ([, kind]) => kind[what];
const columns = [
  { title: "kind", of: ([name]) => name, brief: true },
  { title: "done/s", css: "n", of: of("done_rate"), brief: true },
  { title: "failed/s", css: "n", of: of("failed_rate"), brief: true },
  { title: "rate over time" },
  { title: "p50", css: "n", of: of("p50") },
  { title: "p95", css: "n", of: of("p95") },
  { title: "p99", css: "n", of: of("p99") },
  { title: "p95 over time" },
  { title: "running", css: "n", of: ([name]) => running()[name] ?? 0 },
  { title: "dead/min", css: "n", of: of("dead") },
  { title: "Actions", hide: true },
];
const table = new Table($("kind-table"), "kinds", columns, () => shown && drawKinds(shown));

function running() {
  const counts = {};
  for (const worker of shown.now.workers) for (const task of worker.tasks) counts[task.kind] = (counts[task.kind] ?? 0) + 1;
  return counts;
}

export function drawKinds(fleet) {
  shown = fleet;
  const { now, points, minutes } = fleet, counts = running(), paused = new Set(now.workers.flatMap((worker) => worker.paused_kinds ?? []));
  // A paused kind is shown although none of its tasks has run.
  const rows = Object.entries({ ...Object.fromEntries([...paused].map((name) => [name, NONE])), ...now.point?.kinds });
  $("no-kinds").hidden = rows.length > 0;
  const from = now.at - minutes * 60000, recent = points.filter((point) => point.at >= from);
  const make = ([name]) => {
    const row = tr(...columns.map(({ title, css }, n) => [title, css, n === 0 ? h("span", "", name) : undefined]));
    row.pill = h("span", "pill quiet", "paused");
    row.pause = pauseButton("kinds", name);
    row.firstChild.append(" ", row.pill);
    row.lastChild.append(row.pause);
    return row;
  };
  table.draw(rows, ([name]) => name, make, (row, [name, kind]) => {
    const cell = row.children;
    row.pill.hidden = !paused.has(name);
    updatePause(row.pause, "kind", name, paused.has(name));
    const texts = { 1: short(kind.done_rate), 2: short(kind.failed_rate), 4: span(kind.p50), 5: span(kind.p95), 6: span(kind.p99), 8: short(counts[name] ?? 0), 9: short(kind.dead) };
    for (const [n, text] of Object.entries(texts)) set(cell[n], text);
    cell[2].className = kind.failed_rate > 0 ? "n bad" : "n";
    cell[9].className = kind.dead > 0 ? "n bad" : "n";
    const line = (what) => (point) => point.kinds[name]?.[what] ?? null;
    cell[3].replaceChildren(spark(`Done and failed ${name} per second`, recent, [{ css: "", of: line("done_rate") }, { css: "bad", of: line("failed_rate") }]));
    cell[7].replaceChildren(spark(`95th percentile of ${name}`, recent, [{ css: "soft", of: line("p95") }]));
  });
}
