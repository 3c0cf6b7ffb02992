// The lanes: a card for each one with work, with its queue over time, its rates and its busy slots; a row for each idle one.
import { Areas, short, span } from "/charts.js";
import { $, h, keyed, set, tip } from "/dom.js";
import { pauseButton, updatePause } from "/pause.js";
import { withStored } from "/stored.js";

const FIGURES = ["ready", "unacked", "retrying", "arrivals/s", "removals/s", "service time", "busy slots"];

// The busy slots of a lane and all of them, of workers that take tasks.
export function slotsIn(now, name) {
  const open = now.workers.filter((worker) => worker.state === "open").map((worker) => worker.lanes[name]);
  const sum = (what) => open.reduce((n, lane) => n + (lane?.[what] ?? 0), 0);
  return { busy: sum("busy"), all: sum("slots") };
}

// Nothing runs, and nothing came, waited or left for a minute. What is not known is not idle.
function isIdle([name, lane], now) {
  return !now.unknown.queues && !now.unknown.workers && !lane.problem && slotsIn(now, name).busy === 0 && lane.backlog + lane.retrying === 0 && lane.arrival_rate + lane.removal_rate === 0;
}

// The slots are those of the newest heartbeats: the sample of the lane is older.
function backlog(lane, all, unknown) {
  if (unknown.queues || unknown.workers || lane.problem) return "unknown";
  if (lane.paused) return short(lane.backlog);
  if (lane.backlog === 0) return "empty";
  return lane.backlog_seconds === null ? (all ? "unknown" : "no workers") : span(lane.backlog_seconds);
}

function slots(name, now) {
  const { busy, all } = slotsIn(now, name);
  return now.unknown.workers ? "unknown" : `${short(busy)} / ${short(all)}`;
}

function make([name]) {
  const node = h("article", "card"), head = h("header"), big = h("span", "big");
  big.append(h("b"), document.createTextNode(" of backlog"));
  node.pill = h("span", "pill quiet", "paused");
  node.pause = pauseButton("lanes", name);
  head.append(h("h3", "", name), node.pill, big, node.pause);
  node.chart = new Areas(`Messages in lane ${name} over time`, [
    { name: "unacked", css: "area-held", of: (point) => point.lanes[name].unacked },
    { name: "ready", css: "area-ready", of: (point) => point.lanes[name].ready },
  ], tip, ({ lanes: { [name]: { stored_rate: rate } } }) => (rate === undefined ? [] : [`settled ${short(rate)}/s`]));
  const figures = h("dl", "figures");
  node.figures = FIGURES.map((title, n) => {
    const pair = h("div");
    pair.append(h("dt", ["ready", "held"][n] ?? "", title), h("dd"));
    figures.append(pair);
    return pair.lastChild;
  });
  node.meter = h("div", "meter");
  node.meter.append(h("i"));
  node.append(head, node.chart.node, figures, node.meter);
  node.big = big;
  return node;
}

function makeRow([name]) {
  const row = h("li", "card");
  row.pill = h("span", "pill");
  row.slots = h("span", "quiet-text");
  row.pause = pauseButton("lanes", name);
  row.append(h("h3", "", name), row.pill, row.slots, row.pause);
  return row;
}

function updateRow(row, [name, lane], now) {
  const unserved = !slotsIn(now, name).all && !lane.paused && !now.unknown.workers;
  set(row.pill, lane.paused ? "paused" : unserved ? "idle, no worker" : "idle");
  row.pill.className = "pill" + (lane.paused || unserved ? " quiet" : "");
  set(row.slots, `${slots(name, now)} slots busy`);
  updatePause(row.pause, "lane", name, lane.paused);
}

export function drawLanes({ now, points: memory, minutes }) {
  const points = withStored(memory), pointsOf = (name) => points.filter((point) => point.lanes[name]);
  // Over a day or a week, a lane that is idle now has a curve if it was not idle then.
  const hadWork = (name) => minutes > 60 && pointsOf(name).some(({ lanes: { [name]: lane } }) => lane.ready + lane.unacked > 0);
  const lanes = Object.entries(now.point?.lanes ?? {}), idle = lanes.filter((lane) => isIdle(lane, now) && !hadWork(lane[0]));
  keyed($("idle-lanes"), idle, ([name]) => name, makeRow, (row, lane) => updateRow(row, lane, now));
  $("idle-lanes").hidden = idle.length === 0;
  keyed($("lane-cards"), lanes.filter((lane) => !idle.includes(lane)), ([name]) => name, make, (node, [name, lane]) => {
    const { busy, all } = slotsIn(now, name);
    const uncounted = now.unknown.queues || Boolean(lane.problem), unknown = uncounted || now.unknown.workers;
    const unserved = !unknown && lane.backlog > 0 && !all && !lane.paused;
    node.pill.hidden = !lane.paused;
    updatePause(node.pause, "lane", name, lane.paused);
    set(node.big.firstChild, backlog(lane, all, now.unknown));
    node.big.lastChild.data = unknown ? " backlog" : lane.paused ? " in the backlog" : lane.backlog && !unserved ? " of backlog" : "";
    node.big.className = unserved ? "big bad" : "big";
    // Ready and retrying tasks are counted by the broker, the others follow from what workers say.
    const counted = (figure) => uncounted ? "unknown" : short(figure), said = (figure) => unknown ? "unknown" : short(figure);
    const figures = [counted(lane.ready), said(lane.unacked), counted(lane.retrying), said(lane.arrival_rate), said(lane.removal_rate)];
    [...figures, span(lane.service_seconds), slots(name, now)].forEach((text, n) => set(node.figures[n], text));
    const share = all && !now.unknown.workers ? busy / all : 0;
    node.meter.firstChild.style.width = Math.min(100, share * 100) + "%";
    node.meter.className = "meter" + (share > 0.95 ? " full" : "");
    node.chart.draw(pointsOf(name), minutes, now.at);
  });
}
