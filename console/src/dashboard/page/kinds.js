// The table of kinds: rates, percentiles and dead letters.
import { short, span, spark } from "/charts.js";
import { $, set, tr } from "/dom.js";
import { Table } from "/table.js";

let shown = null;

const of = (what) => ([, kind]) => kind[what];
const columns = [
  { title: "kind", of: ([name]) => name },
  { title: "done/s", css: "n", of: of("done_rate") },
  { title: "failed/s", css: "n", of: of("failed_rate") },
  { title: "rate over time" },
  { title: "p50", css: "n", of: of("p50") },
  { title: "p95", css: "n", of: of("p95") },
  { title: "p99", css: "n", of: of("p99") },
  { title: "p95 over time" },
  { title: "running", css: "n", of: ([name]) => running()[name] ?? 0 },
  { title: "dead/min", css: "n", of: of("dead") },
];
const table = new Table($("kind-table"), "kinds", columns, () => shown && drawKinds(shown));

function running() {
  const counts = {};
  for (const worker of shown.now.workers) for (const task of worker.tasks) counts[task.kind] = (counts[task.kind] ?? 0) + 1;
  return counts;
}

export function drawKinds(fleet) {
  shown = fleet;
  const { now, points, minutes } = fleet, rows = Object.entries(now.point?.kinds ?? {}), counts = running();
  $("no-kinds").hidden = rows.length > 0;
  const from = now.at - minutes * 60000, recent = points.filter((point) => point.at >= from);
  const make = ([name]) => tr(...columns.map(({ title, css }, n) => [title, css, n === 0 ? name : undefined]));
  table.draw(rows, ([name]) => name, make, (row, [name, kind]) => {
    const cell = row.children;
    const texts = { 1: short(kind.done_rate), 2: short(kind.failed_rate), 4: span(kind.p50), 5: span(kind.p95), 6: span(kind.p99), 8: short(counts[name] ?? 0), 9: short(kind.dead) };
    for (const [n, text] of Object.entries(texts)) set(cell[n], text);
    cell[2].className = kind.failed_rate > 0 ? "n bad" : "n";
    cell[9].className = kind.dead > 0 ? "n bad" : "n";
    const line = (what) => (point) => point.kinds[name]?.[what] ?? null;
    cell[3].replaceChildren(spark(`Done and failed ${name} per second`, recent, [{ css: "", of: line("done_rate") }, { css: "bad", of: line("failed_rate") }]));
    cell[7].replaceChildren(spark(`95th percentile of ${name}`, recent, [{ css: "soft", of: line("p95") }]));
  });
}
