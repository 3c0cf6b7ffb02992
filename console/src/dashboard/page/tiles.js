// The verdict on the fleet and its figures, in the order of what an operator should look at first.
import { alarmSummary } from "/alarms.js";
import { many, short, span } from "/charts.js";
import { $, h, keyed, set } from "/dom.js";
import { slotsIn } from "/lanes.js";

const UNKNOWN = { value: "unknown", css: "", note: "" };

// How badly a lane is served: one with work and no slot first, then by the share of busy slots, lanes with waiting tasks
// before others.
function strain(now, [name, lane]) {
  const waiting = lane.backlog > lane.running, { busy, all } = slotsIn(now, name), share = all ? busy / all : 0;
  return waiting && !all && !lane.paused ? 3 : share + (waiting ? 1 : 0);
}

function alarmTile() {
  const { configured, known, count, more, critical, acknowledged } = alarmSummary;
  if (configured === false) return [];
  const name = "open alarms";
  if (!known) return [{ name, ...UNKNOWN, note: configured ? "the database does not answer" : "no answer yet" }];
  const note = [critical && `${critical} critical`, acknowledged && `${acknowledged} acknowledged`].filter(Boolean).join(", ");
  return [{ name, value: short(count) + (more ? "+" : ""), css: critical ? "bad" : count ? "warn" : "", note }];
}

function slotTile(now, lanes) {
  const name = "busy slots of the fullest lane", known = lanes.filter(([, lane]) => !lane.problem);
  if (!known.length) return { name, ...UNKNOWN };
  const [lane, it] = known.toSorted((a, b) => strain(now, b) - strain(now, a) || b[1].slots - a[1].slots)[0];
  const { busy, all } = slotsIn(now, lane), waiting = Math.max(0, it.backlog - it.running), unserved = waiting > 0 && !all && !it.paused;
  const css = unserved ? "bad" : all && busy >= all && waiting ? "warn" : "";
  const note = `${lane}: ${waiting ? `${short(waiting)} waiting` : "none waits"}${unserved ? ", no worker" : it.paused ? ", paused" : ""}`;
  return { name, value: `${short(busy)} / ${short(all)}`, css, note };
}

// Growth comes first: letters of last week are no news.
function letterTile({ point, dead_rate: rate }) {
  const name = "new dead letters per minute", total = `${point.dead.toLocaleString("en")} in total`;
  const note = total + (point.quarantine ? `, ${short(point.quarantine)} in quarantine` : "");
  if (rate === null) return { name, ...UNKNOWN, note };
  return { name, value: short(rate), css: rate > 0 ? "bad" : point.dead ? "warn" : "", note };
}

function oldestTile(lanes) {
  const name = "oldest waiting task", known = lanes.filter(([, lane]) => lane.oldest_seconds !== null);
  if (known.length < lanes.length || !known.length) {
    return { name, ...UNKNOWN, note: lanes.filter(([, lane]) => lane.oldest_seconds === null).map(([lane]) => lane).join(", ") };
  }
  const waiting = known.filter(([, lane]) => lane.backlog > lane.running);
  if (!waiting.length) return { name, value: "none", note: "" };
  const [lane, it] = waiting.toSorted(([, a], [, b]) => b.oldest_seconds - a.oldest_seconds)[0];
  // Samples reach back to the start of the dashboard, and are taken every five seconds.
  const value = it.oldest_seconds < 5 ? "< 5 s" : span(it.oldest_seconds);
  return { name, value, css: it.oldest_seconds > 60 && !it.paused ? "warn" : "", note: `${lane}${it.oldest_seconds < 5 ? "" : ", at least"}${it.paused ? ", paused" : ""}` };
}

function workerTile({ workers }) {
  const count = (state) => workers.filter((worker) => worker.state === state).length;
  const silent = count("silent"), quiet = count("quiet") + count("stopping"), open = count("open");
  const note = silent ? `${silent} silent` : quiet ? `${quiet} quiet or stopping` : "";
  return { name: "workers", value: short(open + quiet), css: silent ? "bad" : open ? "" : "warn", note, bad: silent };
}

export function drawTiles({ now }) {
  const { point } = now, { queues, workers } = now.unknown, lanes = Object.entries(point?.lanes ?? {});
  const sum = (of) => lanes.reduce((n, [, lane]) => n + of(lane), 0), incomplete = lanes.some(([, lane]) => lane.problem);
  const unless = (missing, name, tile) => missing ? { name, ...UNKNOWN } : { name, ...tile() };
  const noQueues = queues || !point;
  const connections = () => now.gateways.reduce((n, gateway) => n + Object.values(gateway.connections).reduce((a, b) => a + b, 0), 0);
  const all = [
    ...alarmTile(),
    unless(noQueues || workers, "busy slots of the fullest lane", () => slotTile(now, lanes)),
    unless(noQueues, "new dead letters per minute", () => letterTile(now)),
    unless(noQueues || workers, "oldest waiting task", () => oldestTile(lanes)),
    unless(workers, "workers", () => workerTile(now)),
    unless(noQueues || workers || incomplete, "backlog", () => ({ value: short(sum((lane) => lane.backlog)), note: `${short(sum((lane) => lane.retrying))} waiting for a retry` })),
    unless(noQueues || workers || incomplete, "arrivals per second", () => ({ value: short(sum((lane) => lane.arrival_rate)), note: "last minute" })),
    unless(noQueues || workers || incomplete, "removals per second", () => ({ value: short(sum((lane) => lane.removal_rate)), note: "last minute" })),
    unless(noQueues, "unroutable messages", () => ({ value: short(point.unroutable), css: point.unroutable ? "warn" : "", note: point.unroutable ? "no binding matches" : "" })),
    unless(workers, "sensor connections", () => ({ value: short(connections()), note: many(now.gateways.filter((it) => it.state === "open").length, "gateway") })),
  ];
  keyed($("tiles"), all, (tile) => tile.name, () => {
    const node = h("div", "tile");
    node.append(h("span"), h("b"), h("em"));
    return node;
  }, (node, tile) => {
    node.className = "tile " + (tile.css ?? "");
    set(node.children[0], tile.name);
    set(node.children[1], tile.value);
    set(node.children[2], tile.note);
    node.children[2].className = tile.bad ? "bad" : "";
  });
}
