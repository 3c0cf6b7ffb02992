// A card for each lane: its queue over time, its rates and its busy slots.
import { Areas, short, span } from "/charts.js";
import { $, h, keyed, set, tip } from "/dom.js";
import { pauseButton, updatePause } from "/pause.js";

const FIGURES = ["ready", "unacked", "retrying", "arrivals/s", "removals/s", "service time", "busy slots"];

function backlog(lane, unknown) {
  if (unknown.queues) return "unknown";
  if (lane.paused) return short(lane.backlog);
  if (lane.backlog === 0) return "empty";
  return lane.backlog_seconds === null ? (lane.slots ? "?" : "no workers") : span(lane.backlog_seconds);
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

export function drawLanes({ now, points, minutes }) {
  keyed($("lane-cards"), Object.entries(now.point?.lanes ?? {}), ([name]) => name, make, (node, [name, lane]) => {
    const unserved = !now.unknown.queues && lane.backlog > 0 && !lane.slots && !lane.paused;
    node.pill.hidden = !lane.paused;
    updatePause(node.pause, "lane", name, lane.paused);
    set(node.big.firstChild, backlog(lane, now.unknown));
    node.big.lastChild.data = now.unknown.queues ? " backlog" : lane.paused ? " in the backlog" : lane.backlog && !unserved ? " of backlog" : "";
    node.big.className = unserved ? "big bad" : "big";
    const open = now.workers.filter((worker) => worker.state === "open").map((worker) => worker.lanes[name]);
    const busy = open.reduce((n, own) => n + (own?.busy ?? 0), 0);
    const texts = [short(lane.ready), short(lane.unacked), short(lane.retrying), short(lane.arrival_rate), short(lane.removal_rate), span(lane.service_seconds), `${short(busy)} / ${short(lane.slots)}`];
    texts.forEach((text, n) => set(node.figures[n], text));
    const share = lane.slots ? busy / lane.slots : 0;
    node.meter.firstChild.style.width = Math.min(100, share * 100) + "%";
    node.meter.className = "meter" + (share > 0.95 ? " full" : "");
    node.chart.draw(points, minutes, now.at);
  });
}
