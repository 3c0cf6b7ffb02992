// The figures of the whole fleet.
import { short } from "/charts.js";
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

// The text does not change with each update, because a screen reader speaks it when it does.
export function drawProblems({ now }) {
  const all = [];
  if (now.fleet_problem) all.push(`No heartbeats from workers: ${now.fleet_problem}`);
  if (now.queue_problem) all.push(`Queues cannot be read: ${now.queue_problem}`);
  if (now.queues?.missing.length) all.push(`Missing: ${now.queues.missing.join(", ")}. Run garenne topology apply to create them.`);
  for (const [name, lane] of Object.entries(now.point?.lanes ?? {})) if (lane.ready > 0 && lane.consumers === 0 && !lane.paused) all.push(`Lane ${name}: tasks are waiting and no worker consumes them.`);
  for (const bridge of now.bridges) if (bridge.state === "open" && !bridge.connected) all.push(`Bridge ${bridge.id} is not subscribed to its MQTT broker.`);
  keyed($("problems"), all, (text) => text, (text) => h("div", "", text), () => {});
}
