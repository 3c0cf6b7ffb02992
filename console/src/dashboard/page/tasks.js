// The tasks of a lane that wait for a worker or for their time.
import { parameter, remember } from "/address.js";
import { span } from "/charts.js";
import { confirmed } from "/dialogs.js";
import { $, button, h, label, set, timeOf, tr } from "/dom.js";
import { act, ask, askPrivately, gate, login, session } from "/session.js";
import { Table } from "/table.js";

const RETRY = 1000;
let tasks = [], total = 0, more = false, lane = "", state = "";

const table = new Table($("task-table"), "tasks", [
  { title: "id", of: (task) => task.id },
  { title: "kind", of: (task) => task.kind },
  { title: "group", of: (task) => task.group },
  { title: "key", of: (task) => task.key },
  { title: "attempts", css: "n", of: (task) => task.attempts },
  { title: "published", css: "n", of: (task) => task.published_at },
  { title: "due", css: "n", of: (task) => task.due_at },
  { title: "commands", hide: true },
], draw);

function due({ due_at: at, within }) {
  if (at === null) return within === null ? "" : `within ${within}`;
  const left = (at - Date.now()) / 1000;
  return timeOf(at, left > 0 ? `in ${span(left)}` : "now");
}

function commands(task) {
  const box = h("span", "buttons");
  if (task.id === null) return box;
  const run = button("Run now", "", () => runNow(task)), drop = button("Drop", "danger", () => remove(task));
  if (state !== "waiting") box.append(gate(label(run, `Run ${task.id} now`)));
  box.append(gate(label(drop, `Drop ${task.id}`)));
  return box;
}

function row(task) {
  const kind = task.batch_of === null ? task.kind : `${task.kind} (batch of ${task.batch_of})`;
  const published = task.published_at === null ? "" : timeOf(task.published_at, `${span(Math.max(0, Date.now() - task.published_at) / 1000)} ago`);
  return tr(["id", "id", task.id ?? "–"], ["kind", "", kind], ["group", "", task.group ?? ""], ["key", "", task.key ?? ""], ["attempts", "n", String(task.attempts)], ["published", "n", published], ["due", "n", due(task)], ["commands", "", commands(task)]);
}

// Ids can occur twice.
const key = (task) => task.place;

function draw() {
  if (lane) set($("tasks-note"), `${total} ${state} in ${lane}${more ? `, the first ${tasks.length} are shown` : ""}`);
  table.draw(tasks, key, row, () => {});
}

async function list() {
  const query = new URLSearchParams({ state });
  set($("tasks-note"), "reading");
  try {
    const answer = await askPrivately(`/v1/lanes/${encodeURIComponent(lane)}/tasks?${query}`);
    const read = Date.now();
    tasks = answer.tasks.map((task, n) => ({ ...task, place: `${read} ${n}` }));
    ({ total, more } = answer);
    draw();
  } catch (error) {
    [tasks, total, more] = [[], 0, false];
    draw();
    set($("tasks-note"), error.message);
  }
}

async function runNow(task) {
  const text = `A copy goes to the queue of ${lane} at once, and the original is removed when the broker has confirmed it.`;
  if (!(await confirmed("Run this task now?", text, `Run ${task.id} now`))) return;
  if (await act("/api/tasks/run", { id: task.id, lane }, `${task.id} is in ${lane}`)) gone(task);
}

async function remove(task) {
  const text = "It becomes a dead letter with the reason stopped when a worker receives it.";
  if (!(await confirmed("Drop this task?", text, `Drop ${task.id}`, true))) return;
  if (await act("/api/tasks/stop", { id: task.id }, `${task.id} will be dropped`)) gone(task);
}

function gone(task) {
  tasks = tasks.filter((other) => other !== task);
  total -= 1;
  draw();
}

$("selection").addEventListener("submit", async (event) => {
  event.preventDefault();
  [lane, state] = [$("lane").value, $("state").value];
  remember({ lane, state });
  const known = await ask("/api/session");
  if (known.name || (await login(true))) await list();
});

// A dashboard that has just started knows no lanes yet.
async function offerLanes() {
  const now = await ask("/api/now").catch((error) => set($("tasks-note"), error.message));
  const lanes = Object.keys(now?.point?.lanes ?? {});
  if (!lanes.length) return setTimeout(offerLanes, RETRY);
  $("lane").append(...lanes.map((name) => h("option", "", name)));
  $("lane").value = parameter("lane", $("lane").value);
  if (!lane) set($("tasks-note"), "");
}

await session().catch((error) => set($("tasks-note"), error.message));
$("state").value = parameter("state", $("state").value);
offerLanes();
