// The list of devices, and the page of one device: its curves, newest readings, flags and alarms.
import { span } from "/charts.js";
import { Curve, number, when } from "/curve.js";
import { $, h, moment, set, setTime, timeOf, tip, tr } from "/dom.js";
import { foldable } from "/table.js";

// Name, length in seconds, and step of the curves: at most 366 buckets.
const PERIODS = [["6 h", 21600, "1m"], ["1 d", 86400, "5m"], ["7 d", 604800, "1h"], ["30 d", 2592000, "3h"], ["1 year", 31536000, "1d"]];
const REFRESH = 30000;
// Steps for a range of dates: the first with at most as many buckets.
const STEPS = [["1m", 60], ["5m", 300], ["1h", 3600], ["3h", 10800], ["1d", 86400]], MOST_BUCKETS = 366;
// A reading that is older is marked.
const OLD = 86400000;

const parameters = new URLSearchParams(location.search), device = parameters.get("device");
let period = Math.max(0, PERIODS.findIndex(([name]) => name === (parameters.get("period") ?? "1 d")));

// What the curves show: from, to, step, and the same in words.
function shownPeriod() {
  const [first, last] = [parameters.get("from"), parameters.get("to")].map((date) => Date.parse(`${date}T00:00`));
  if (Number.isFinite(first) && Number.isFinite(last) && last >= first) {
    const to = last + 86400000, [step] = STEPS.find(([, length]) => (to - first) / 1000 / length <= MOST_BUCKETS) ?? STEPS.at(-1);
    return { from: first, to, step, words: first === last ? `on ${moment(first, { dateStyle: "medium" })}` : `from ${moment(first, { dateStyle: "medium" })} to ${moment(last, { dateStyle: "medium" })}` };
  }
  const [name, seconds, step] = PERIODS[period], to = Date.now();
  return { from: to - seconds * 1000, to, step, words: `of the last ${name}` };
}

async function ask(path) {
  const answer = await fetch(path, { headers: { accept: "application/json" } });
  if (answer.ok) return answer.json();
  const problem = await answer.json().catch(() => ({}));
  throw new Error(problem.detail ?? `${answer.status} ${answer.statusText}`);
}

function problem(error) {
  $("problems").replaceChildren(...(error ? [h("div", "", error.message)] : []));
}

const age = (time) => span(Math.max(0, Date.now() - new Date(time)) / 1000);
const isOld = (time) => Date.now() - new Date(time) > OLD;

function flags(node, quality) {
  node.replaceChildren(...quality.map((flag) => h("span", flag === "time-assumed" || flag === "corrected" ? "pill" : "pill silent", flag)));
}

// --- the list ------------------------------------------------------------------------------------------

function row({ device, metric, value, unit, quality, time }) {
  const link = h("a", "", device), marks = h("span", "flags");
  link.href = `/devices?device=${encodeURIComponent(device)}`;
  flags(marks, quality);
  const [faded, old] = isOld(time) ? [" faded", " old"] : ["", ""], last = timeOf(Date.parse(time), `${age(time)} ago`);
  const cells = [["device", "id", link], ["metric", "", metric], ["newest value", `n${faded}`, number(value)], ["unit", faded.trim(), unit ?? ""], ["flags", "", marks], ["last data", `n${old}`, last]];
  const row = foldable(tr(...cells), [true, true, true, false, false, true]);
  row.words = `${device} ${metric}`.toLowerCase();
  return row;
}

function filter() {
  const words = $("filter").value.trim().toLowerCase(), rows = [...$("device-table").tBodies[0].rows];
  for (const row of rows) row.hidden = !row.words.includes(words);
  const shown = rows.filter((row) => !row.hidden).length;
  set($("list-note"), words ? `${shown} of ${rows.length}` : "");
}

let next = null;
async function list() {
  const after = next === null ? "" : `?after=${encodeURIComponent(next)}`;
  const page = await ask(`/v1/devices${after}`);
  const rows = page.devices.flatMap(({ device, metrics }) => metrics.map((metric) => row({ device, ...metric })));
  $("device-table").tBodies[0].append(...rows);
  $("device-table").hidden = $("device-table").tBodies[0].rows.length === 0;
  $("no-devices").hidden = !$("device-table").hidden;
  next = page.next;
  $("more").hidden = next === null;
  filter();
}

// --- a device ------------------------------------------------------------------------------------------

const cards = new Map();

function card(metric) {
  const node = h("article", "card"), head = h("header"), last = h("span", "big");
  const title = h("h3", "", metric), marks = h("span", "flags"), note = h("p", "quiet-text");
  const values = h("details"), summary = h("summary", "", "Values"), scroll = h("div", "scroll"), table = h("table");
  head.append(title, marks, last);
  scroll.append(table);
  values.append(summary, scroll);
  values.addEventListener("toggle", () => show(metric));
  const csv = h("a", "", "CSV");
  const curve = new Curve(tip);
  const foot = h("p", "quiet-text");
  foot.append(csv);
  node.append(head, curve.node, note, values, foot);
  $("metric-cards").append(node);
  const made = { node, last, marks, note, values, table, csv, curve };
  cards.set(metric, made);
  return made;
}

async function load(newest) {
  const { metric, value, unit, quality, time } = newest;
  const made = cards.get(metric) ?? card(metric), { from, to, step, words } = shownPeriod();
  const last = timeOf(Date.parse(time), isOld(time) ? `last reading ${age(time)} ago` : `${age(time)} ago`);
  last.className = isOld(time) ? "old" : "";
  made.last.replaceChildren(`${number(value)} ${unit ?? ""}, `, last);
  flags(made.marks, quality);
  const query = new URLSearchParams({ device, metric, step, to: new Date(to).toISOString(), from: new Date(from).toISOString() });
  made.csv.href = `/v1/readings?${query}&format=csv`;
  made.csv.setAttribute("aria-label", `Download ${metric} ${words} as CSV`);
  const { buckets } = await ask(`/v1/readings?${query}`);
  const newestBucket = buckets.findLast((bucket) => bucket.count > 0);
  const shown = buckets.filter((bucket) => bucket.count > 0 && bucket.unit === newestBucket?.unit);
  const points = shown.map((bucket) => ({ ...bucket, at: Date.parse(bucket.time) }));
  const flagged = buckets.reduce((sum, bucket) => sum + bucket.flagged, 0), others = buckets.some((bucket) => bucket.count > 0 && bucket.unit !== newestBucket?.unit);
  const low = Math.min(...points.map((point) => point.min)), high = Math.max(...points.map((point) => point.max));
  const range = points.length ? `from ${number(low)} to ${number(high)} ${newestBucket.unit ?? ""}` : "no readings";
  const used = shown.some((bucket) => bucket.consumption !== null) && shown.reduce((sum, bucket) => sum + bucket.consumption, 0);
  const begin = words.replace(/^of the /, "");
  const notes = [`${begin[0].toUpperCase()}${begin.slice(1)}: ${range}`, used !== false && `consumption ${number(used)} ${newestBucket.unit ?? ""}`.trim(), flagged && `${flagged} flagged readings left out`, others && "readings in other units left out"];
  set(made.note, notes.filter(Boolean).join("; ") + ".");
  made.curve.draw(points, from, to, `${metric} ${words}: ${range}. Arrow keys read the values.`, newestBucket?.unit);
  made.points = points;
  made.isCounter = used !== false;
  show(metric);
}

// The newest values as a table.
function show(metric) {
  const { values, table, isCounter, points = [] } = cards.get(metric), { from, to } = shownPeriod(), seconds = (to - from) / 1000;
  if (!values.open) return;
  const line = (cell, texts) => {
    const row = h("tr");
    row.append(...texts.map((text, n) => h(cell, n ? "n" : "", text)));
    return row;
  };
  const rows = points.slice(-24).reverse().map((point) => line("td", [when(point.at, seconds), number(point.min), number(point.mean), number(point.max), String(point.count), ...(isCounter ? [number(point.consumption)] : [])]));
  const head = line("th", ["time", "minimum", "mean", "maximum", "readings", ...(isCounter ? ["consumption"] : [])]);
  for (const cell of head.children) cell.scope = "col";
  table.replaceChildren(head, ...rows);
}

async function refresh() {
  try {
    const { devices, alarms } = await ask(`/v1/devices?${new URLSearchParams({ device })}`);
    const rows = alarms.map((alarm) => {
      const until = alarm.ended ? timeOf(Date.parse(alarm.ended), moment(alarm.ended)) : h("span", "pill silent", "open");
      const cells = [["rule", "", alarm.rule], ["metric", "", alarm.metric], ["since", "", timeOf(Date.parse(alarm.since), moment(alarm.since))], ["until", "", until], ["value", "n", number(alarm.value)]];
      return foldable(tr(...cells), [true, false, true, true, false]);
    });
    const newest = devices[0].metrics.map(({ time }) => Date.parse(time)).reduce((a, b) => Math.max(a, b));
    setTime($("last-data"), newest, `last data ${age(newest)} ago`);
    $("last-data").className = isOld(newest) ? "old" : "quiet-text";
    $("alarm-table").tBodies[0].replaceChildren(...rows);
    $("alarm-table").hidden = rows.length === 0;
    $("no-alarms").hidden = rows.length > 0;
    // One after the other: the server answers few at once.
    for (const newest of devices[0].metrics) await load(newest);
    problem(null);
  } catch (error) {
    problem(error);
  }
}

if (device === null) {
  $("list").hidden = false;
  $("filter").addEventListener("input", filter);
  $("more").addEventListener("click", () => list().catch(problem));
  addEventListener("keydown", (event) => {
    if (event.key === "/" && !event.target.matches("input")) { event.preventDefault(); $("filter").focus(); }
  });
  list().catch(problem);
} else {
  $("device").hidden = false;
  set($("device-title"), device);
  document.title = `${$("device-title").textContent} · Garenne`;
  PERIODS.forEach(([name], n) => {
    const label = h("label"), input = h("input");
    Object.assign(input, { type: "radio", name: "period", value: name, checked: n === period && !parameters.has("from") });
    input.addEventListener("change", () => {
      period = n;
      parameters.set("period", name);
      for (const end of ["from", "to"]) { parameters.delete(end); $(`range-${end}`).value = ""; }
      history.replaceState(null, "", `?${parameters}`);
      refresh();
    });
    label.append(input, ` ${name}`);
    $("periods").append(label);
  });
  for (const end of ["from", "to"]) $(`range-${end}`).value = parameters.get(end) ?? "";
  $("range").addEventListener("submit", (event) => {
    event.preventDefault();
    const [from, to] = ["from", "to"].map((end) => $(`range-${end}`).value);
    $("range-to").setCustomValidity(to < from ? "This date is before the first one." : "");
    if (!$("range").reportValidity()) return;
    parameters.set("from", from);
    parameters.set("to", to);
    for (const input of document.querySelectorAll("input[name=period]")) input.checked = false;
    history.replaceState(null, "", `?${parameters}`);
    refresh();
  });
  $("range-to").addEventListener("input", () => $("range-to").setCustomValidity(""));
  refresh();
  setInterval(refresh, REFRESH);
}
