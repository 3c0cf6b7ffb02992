// The lanes: a card for each one with work, with its queue over time, its rates and its busy slots; a row for each idle one.
import { Areas, short, span } from "/charts.js";
import { $, h, keyed, set, tip } from "/dom.js";
import { pauseButton, updatePause } from "/pause.js";

const FIGURES = ["ready", "unacked", "retrying", "arrivals/s", "removals/s", "service time", "busy slots"];

// The busy slots of a lane and all of them, of workers that take tasks.
export function slotsIn(now, name) {
  const open = now.workers.filter((worker) => worker.state === "open").map((worker) => worker.lanes[name]);
  const sum = (what) => open.reduce((n, lane) => n + (lane?.[what] ?? 0), 0);
  return { busy: sum("busy"), all: sum("slots") };
}

// Nothing came, waited or left for a minute. What is not known is not idle.
function isIdle(lane, now) {
  return !now.unknown.queues && !lane.problem && lane.backlog + lane.retrying === 0 && lane.arrival_rate + lane.removal_rate === 0;
}

function backlog(lane, unknown) {
  if (unknown.queues || lane.problem) return "unknown";
  if (lane.paused) return short(lane.backlog);
  if (lane.backlog === 0) return "empty";
  return lane.backlog_seconds === null ? (lane.slots ? "unknown" : "no workers") : span(lane.backlog_seconds);
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
    { name: "unacked", css: "area-held", of: (point) => point.lanes[name]?.unacked ?? 0 },
    { name: "ready", css: "area-ready", of: (point) => point.lanes[name]?.ready ?? 0 },
  ], tip);
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
  const unserved = !lane.slots && !lane.paused && !now.unknown.workers;
  set(row.pill, lane.paused ? "paused" : unserved ? "idle, no worker" : "idle");
  row.pill.className = "pill" + (lane.paused || unserved ? " quiet" : "");
  set(row.slots, `${slots(name, now)} slots busy`);
  updatePause(row.pause, "lane", name, lane.paused);
}

export function drawLanes({ now, points, minutes }) {
  const lanes = Object.entries(now.point?.lanes ?? {}), idle = lanes.filter(([, lane]) => isIdle(lane, now));
  keyed($("idle-lanes"), idle, ([name]) => name, makeRow, (row, lane) => updateRow(row, lane, now));
  $("idle-lanes").hidden = idle.length === 0;
  keyed($("lane-cards"), lanes.filter((lane) => !idle.includes(lane)), ([name]) => name, make, (node, [name, lane]) => {
    const unknown = now.unknown.queues || Boolean(lane.problem), unserved = !unknown && lane.backlog > 0 && !lane.slots && !lane.paused;
    node.pill.hidden = !lane.paused;
    updatePause(node.pause, "lane", name, lane.paused);
    set(node.big.firstChild, backlog(lane, now.unknown));
    node.big.lastChild.data = unknown ? " backlog" : lane.paused ? " in the backlog" : lane.backlog && !unserved ? " of backlog" : "";
    node.big.className = unserved ? "big bad" : "big";
    const figures = unknown ? Array(5).fill("unknown") : [lane.ready, lane.unacked, lane.retrying, lane.arrival_rate, lane.removal_rate].map(short);
    [...figures, span(lane.service_seconds), slots(name, now)].forEach((text, n) => set(node.figures[n], text));
    const { busy, all } = slotsIn(now, name), share = all && !now.unknown.workers ? busy / all : 0;
    node.meter.firstChild.style.width = Math.min(100, share * 100) + "%";
    node.meter.className = "meter" + (share > 0.95 ? " full" : "");
    node.chart.draw(points, minutes, now.at);
  });
}
