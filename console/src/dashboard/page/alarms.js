// The open alarms, and what operators do with them.
import { short, span } from "/charts.js";
import { closed } from "/dialogs.js";
import { $, button, h, label, moment, set, setTime, tr, visible } from "/dom.js";
import { act, ask, gate } from "/session.js";
import { Table } from "/table.js";

const INTERVAL = 5000;
let timer, shown = null;

// What the tile shows. Until the dashboard has answered, nothing is known, not even whether there is a database.
export const alarmSummary = { configured: null, known: false, count: 0, more: false, critical: 0, acknowledged: 0 };

function summarize(summary) {
  Object.assign(alarmSummary, summary);
  document.dispatchEvent(new Event("alarms"));
}

const columns = [
  { title: "severity", of: ({ severity }) => severity, brief: true },
  { title: "device", css: "id", of: ({ device }) => device, brief: true },
  { title: "metric", of: ({ metric }) => metric },
  { title: "rule", of: ({ rule }) => rule, brief: true },
  { title: "value", css: "n", of: ({ value }) => value },
  { title: "since", of: ({ since }) => Date.parse(since), brief: true },
  { title: "state", of: (alarm) => stateOf(alarm) },
  { title: "Actions", hide: true, brief: true },
];
const table = new Table($("alarm-table"), "alarms", columns, () => shown && draw(shown));

export async function loadAlarms() {
  clearTimeout(timer);
  let interval = INTERVAL;
  try {
    const result = await ask("/api/alarms");
    $("alarms").hidden = !result.configured;
    const count = (of) => result.alarms.filter(of).length;
    summarize({ configured: result.configured, known: true, count: result.alarms.length, more: result.more, critical: count(({ severity }) => severity === "critical"), acknowledged: count((alarm) => alarm.acked_by) });
    // Without a database there is nothing to ask for again.
    if (!result.configured) interval = null;
    else draw(result);
  } catch (error) {
    $("alarms").hidden = false;
    $("no-alarms").hidden = true;
    summarize({ configured: true, known: false });
    set($("alarms-note"), `unknown: ${error.message}`);
  } finally {
    if (interval) timer = setTimeout(loadAlarms, interval);
  }
}

function stateOf(alarm) {
  const words = [alarm.missing ? "never sent" : "open"];
  if (alarm.acked_by) words.push(`acknowledged by ${alarm.acked_by}`);
  if (alarm.snoozed_until) words.push(`snoozed until ${moment(alarm.snoozed_until)}`);
  if (alarm.in_maintenance) words.push("in maintenance");
  return words.join(", ");
}

function makeRow(alarm) {
  const acts = gate(h("div", "acts")), name = `${alarm.rule} of ${alarm.device} ${alarm.metric}`, pill = h("span"), since = h("time");
  const change = async (word, body, done) => { if (await act(`/api/alarms/${encodeURIComponent(alarm.id)}/${word}`, body, done)) await loadAlarms(); };
  const contents = [pill, alarm.device, alarm.metric, alarm.rule, undefined, since, undefined, acts];
  const row = tr(...columns.map(({ title, css }, n) => [title === "Actions" ? "" : title, css, contents[n]]));
  row.ack = button("Acknowledge", "small", async () => {
    await change("ack", {}, `${name} is acknowledged`);
    // A button that is disabled loses the focus.
    if (row.ack.disabled) row.snooze.focus();
  });
  row.snooze = button("Snooze", "small", async () => {
    if (row.isSnoozed) return change("unsnooze", {}, `${name} is snoozed no more`);
    set($("snooze-title"), `Snooze ${name}`);
    if ((await closed($("snooze"))) === "yes") await change("snooze", { for: $("snooze-time").value }, `${name} is snoozed`);
  });
  label(row.ack, `Acknowledge ${name}`);
  acts.append(row.ack, row.snooze);
  row.children[3].title = visible(alarm.says ?? "");
  Object.assign(row, { named: name, pill, since });
  return row;
}

function draw(result) {
  shown = result;
  const { alarms, more, at } = result;
  $("no-alarms").hidden = alarms.length > 0;
  set($("alarms-note"), more ? `the newest ${short(alarms.length)}` : alarms.length ? `${short(alarms.length)} open alarm${alarms.length === 1 ? "" : "s"}` : "");
  table.draw(alarms, ({ id }) => id, makeRow, (row, alarm) => {
    row.pill.className = "pill " + alarm.severity;
    set(row.pill, alarm.severity);
    set(row.children[4], alarm.value === null ? "–" : `${alarm.value}${alarm.unit ? " " + alarm.unit : ""}`);
    const since = Date.parse(alarm.since);
    setTime(row.since, since, `${moment(since)} (${span(Math.max(0, at - since) / 1000)})`);
    set(row.children[6], stateOf(alarm));
    row.isSnoozed = Boolean(alarm.snoozed_until);
    row.ack.disabled = Boolean(alarm.acked_by);
    set(row.snooze, row.isSnoozed ? "End snooze" : "Snooze");
    label(row.snooze, `${row.isSnoozed ? "End the snooze of" : "Snooze"} ${row.named}`);
  });
}
