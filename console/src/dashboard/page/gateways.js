// The table of gateways.
import { short } from "/charts.js";
import { $, h, set, tr } from "/dom.js";
import { Table } from "/table.js";

let shown = null;

const list = (of) => Object.entries(of).map(([name, n]) => `${short(n)} ${name}`).join(", ") || "none";
const sum = (of) => Object.values(of).reduce((a, b) => a + b, 0);
const columns = [
  { title: "gateway", css: "id", of: ({ id }) => id },
  { title: "state", of: ({ state }) => state },
  { title: "connections", of: ({ connections }) => sum(connections) },
  { title: "responses by status", of: ({ requests }) => sum(requests) },
  { title: "version", of: ({ version }) => version },
];
const table = new Table($("gateway-table"), "gateways", columns, () => shown && drawGateways(shown));

export function drawGateways(fleet) {
  shown = fleet;
  const { gateways } = fleet.now;
  $("no-gateways").hidden = gateways.length > 0;
  table.draw(gateways, ({ id }) => id, ({ id }) => {
    const row = tr(...columns.map(({ title, css }) => [title, css]));
    set(row.children[0], id);
    row.children[1].append(h("span", "pill"));
    return row;
  }, (row, gateway) => {
    const pill = row.children[1].firstChild;
    pill.className = "pill " + gateway.state;
    set(pill, gateway.state);
    set(row.children[2], list(gateway.connections));
    set(row.children[3], Object.entries(gateway.requests).map(([status, n]) => `${status}: ${short(n)}`).join(", ") || "none");
    set(row.children[4], gateway.version);
  });
}
