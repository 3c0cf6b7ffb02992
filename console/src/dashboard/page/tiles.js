// The verdict on the fleet and its figures.
import { short, span } from "/charts.js";
import { $, h, keyed, set } from "/dom.js";

const many = (n, word) => `${short(n)} ${word}${n === 1 ? "" : "s"}`;

export function drawTiles({ now }) {
  const point = now.point, count = (state) => now.workers.filter((worker) => worker.state === state).length;
  const lanes = Object.values(point?.lanes ?? {}), sum = (of) => lanes.reduce((n, lane) => n + of(lane), 0);
  const slots = sum((lane) => lane.slots);
  const running = now.workers.filter((worker) => worker.state === "open").reduce((n, worker) => n + worker.running, 0);
  const silent = count("silent"), quiet = count("quiet") + count("stopping"), open = count("open");
  const all = [
    { name: "workers", value: short(open + quiet), css: silent ? "bad" : open ? "" : "warn", note: silent ? `${silent} silent` : quiet ? `${quiet} quiet or stopping` : `${short(running)} of ${short(slots)} slots busy`, bad: silent },
    { name: "backlog", value: point ? short(sum((lane) => lane.backlog)) : "–", note: point ? `${short(sum((lane) => lane.retrying))} waiting for a retry` : "" },
    { name: "arrivals per second", value: point ? short(sum((lane) => lane.arrival_rate)) : "–", note: "last minute" },
    { name: "removals per second", value: point ? short(sum((lane) => lane.removal_rate)) : "–", note: "last minute" },
    { name: "dead letters", value: point ? short(point.dead) : "–", css: point?.dead ? "bad" : "", note: point?.quarantine ? `${short(point.quarantine)} in quarantine` : "" },
    { name: "unroutable messages", value: point ? short(point.unroutable) : "–", css: point?.unroutable ? "warn" : "", note: point?.unroutable ? "no binding matches" : "" },
    { name: "sensor connections", value: short(now.gateways.reduce((n, gateway) => n + Object.values(gateway.connections).reduce((a, b) => a + b, 0), 0)), note: many(now.gateways.filter((it) => it.state === "open").length, "gateway") },
  ];
  const { queues, workers } = now.unknown, unheard = ["workers", "sensor connections"];
  for (const tile of all) if (unheard.includes(tile.name) ? workers : queues) Object.assign(tile, { value: "unknown", css: "", note: "" });
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

// The section of the page that shows more of a problem.
const SECTIONS = {
  "silent-worker": "workers", "restart-loop": "workers", "clock-skew": "workers", "hung-tasks": "workers", "sink-down": "workers",
  "no-heartbeats": "workers", "database-unavailable": "alarms", "dead-letters": "dead", "dead-letters-growing": "dead",
  "bridge-disconnected": "gateways", "spool-waiting": "gateways", "spool-segments-aside": "gateways",
};

// The problem as text. The figures in it and the time are not read aloud again with each update.
export function drawVerdict({ now }) {
  const worst = now.problems[0]?.severity ?? "none", verdict = $("verdict");
  const shown = now.problems.some((it) => it.severity !== "notice") ? now.verdict : "No problems";
  verdict.className = "verdict " + worst;
  set($("verdict-text"), shown[0].toUpperCase() + shown.slice(1));
  keyed($("problems"), now.problems, (it) => `${it.problem} ${it.subject}`, (it) => {
    const node = h("li"), link = h("a");
    link.href = "#" + (SECTIONS[it.problem] ?? "lanes");
    link.append(h("b"), h("span"));
    node.append(h("span", "pill"), link, h("em"));
    return node;
  }, (node, it) => {
    const [pill, link, next] = node.children;
    pill.className = "pill " + it.severity;
    set(pill, it.severity);
    set(link.children[0], it.subject ? it.subject + ": " : "");
    set(link.children[1], it.detail + (it.since === null ? "" : ` (for ${span(Math.max(0, now.at - it.since) / 1000)})`));
    set(next, it.next);
  });
}
