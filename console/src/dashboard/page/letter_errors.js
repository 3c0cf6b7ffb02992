// The dead letters by kind, reason and error.
import { short, span } from "/charts.js";
import { $, h, set, setTime, tr } from "/dom.js";
import { conditionButton } from "/letter_filter.js";
import { Table } from "/table.js";

// Rows until the others are asked for.
const SHOWN = 8;
let shown = null, showsAll = false;

const columns = [
  { title: "letters", css: "n count", of: ({ count }) => count, brief: true },
  { title: "error", css: "error", of: ({ error }) => error, brief: true },
  { title: "kind", of: ({ kind }) => kind },
  { title: "reason", of: ({ reason }) => reason },
  { title: "newest", css: "n", of: ({ newest }) => Date.parse(newest) || null, brief: true },
  { title: "oldest", css: "n", of: ({ oldest }) => Date.parse(oldest) || null },
];
const table = new Table($("error-table"), "errors", columns, () => shown && drawErrors(shown));

function make({ kind, reason, error }) {
  const newest = h("time"), oldest = h("time");
  const contents = [undefined, conditionButton(error || "no error", "", { kind, reason, error_like: error }), conditionButton(kind, "", { kind }), conditionButton(reason, "pill silent", { reason }), newest, oldest];
  const row = tr(...columns.map(({ title, css }, n) => [title, css, contents[n]]));
  return Object.assign(row, { newest, oldest });
}

const ago = (at, now) => Number.isFinite(at) ? `${span(Math.max(0, now - at) / 1000)} ago` : "unknown";

export function readErrors() {
  table.read();
}

export function drawErrors(result) {
  shown = result;
  const { errors, at } = result, rows = showsAll ? errors : errors.slice(0, SHOWN);
  table.draw(rows, ({ kind, reason, error }) => JSON.stringify([kind, reason, error]), make, (row, group) => {
    set(row.children[0], short(group.count));
    for (const [node, time] of [[row.newest, group.newest], [row.oldest, group.oldest]]) setTime(node, Date.parse(time), ago(Date.parse(time), at));
  });
  const hidden = errors.length - SHOWN;
  $("all-errors").hidden = hidden <= 0;
  set($("all-errors"), showsAll ? "Show fewer errors" : `Show ${hidden} more errors`);
  set($("errors-note"), result.other_errors ? `${short(result.other_errors)} letters with further errors` : "");
}

$("all-errors").addEventListener("click", () => {
  showsAll = !showsAll;
  if (shown) drawErrors(shown);
});
