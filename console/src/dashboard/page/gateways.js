// The tables of gateways and bridges.
import { short, span } from "/charts.js";
import { $, h, set, tr } from "/dom.js";
import { Table } from "/table.js";

let shown = null;

const list = (of) => Object.entries(of).map(([name, n]) => `${short(n)} ${name}`).join(", ") || "none";
const counts = (of) => Object.entries(of).map(([name, n]) => `${name}: ${short(n)}`).join(", ") || "none";
const sum = (of) => Object.values(of).reduce((a, b) => a + b, 0);
const broker = ({ broker, connected }) => connected ? broker : `${broker} (not subscribed)`;

// What waits in a spool.
function waiting({ spool }, now) {
  if (!spool) return "none";
  const records = spool.records ? `${short(spool.records)} tasks` : "empty";
  const oldest = spool.oldest_at ? `, oldest ${span((now - spool.oldest_at) / 1000)}` : "";
  return records + oldest + (spool.set_aside ? `; ${spool.set_aside} segments set aside` : "");
}

const id = (title) => ({ title, css: "id", of: ({ id }) => id, text: ({ id }) => id, brief: true });
const state = { title: "state", of: ({ state }) => state, brief: true };
const spool = { title: "spool", of: ({ spool }) => spool?.records ?? -1, text: waiting, brief: true };
const version = { title: "version", of: ({ version }) => version, text: ({ version }) => version };
const gatewayColumns = [
  id("gateway"), state,
  { title: "connections", of: ({ connections }) => sum(connections), text: ({ connections }) => list(connections) },
  { title: "responses by status", of: ({ requests }) => sum(requests), text: ({ requests }) => counts(requests) },
  spool, version,
];
const bridgeColumns = [
  id("bridge"), state,
  { title: "MQTT broker", of: broker, text: broker },
  { title: "subscriptions", of: ({ subscriptions }) => subscriptions.join(", "), text: ({ subscriptions }) => subscriptions.join(", ") },
  { title: "in flight", css: "n", of: ({ in_flight }) => in_flight, text: ({ in_flight }) => short(in_flight) },
  { title: "messages", of: ({ messages }) => sum(messages), text: ({ messages }) => counts(messages) },
  spool, version,
];
const redraw = () => shown && drawGateways(shown);
const gatewayTable = new Table($("gateway-table"), "gateways", gatewayColumns, redraw);
const bridgeTable = new Table($("bridge-table"), "bridges", bridgeColumns, redraw);

function draw(table, columns, members, now) {
  table.draw(members, ({ id }) => id, () => {
    const row = tr(...columns.map(({ title, css }) => [title, css]));
    row.children[1].append(h("span", "pill"));
    return row;
  }, (row, member) => {
    const pill = row.children[1].firstChild;
    pill.className = "pill " + member.state;
    set(pill, member.state);
    // What it did last is not what it does now.
    const known = ({ title }) => member.state !== "unknown" || ["gateway", "bridge", "version"].includes(title);
    columns.forEach((column, n) => column.text && set(row.children[n], known(column) ? column.text(member, now) : "unknown"));
  });
}

export function drawGateways(fleet) {
  shown = fleet;
  const { gateways, bridges, at } = fleet.now;
  $("no-gateways").hidden = gateways.length + bridges.length > 0 || fleet.now.unknown.workers;
  draw(gatewayTable, gatewayColumns, gateways, at);
  draw(bridgeTable, bridgeColumns, bridges, at);
}
