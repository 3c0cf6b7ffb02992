// The card of a worker: its slots, what it runs, and the commands to it.
import { short, span } from "/charts.js";
import { confirmed } from "/dialogs.js";
import { button, h, keyed, label, set, setTime } from "/dom.js";
import { act, gate } from "/session.js";

// Tasks that a card shows.
const TASKS = 5;

const QUIET = "The worker finishes what it has and takes no more tasks until it is resumed.";
const RESUME = "The worker takes tasks again.";
const DRAIN = "The worker finishes or requeues its tasks and exits. Its supervisor may start it again.";

// The buttons of a worker. `node.pause` changes its word with the state.
export function addCommands(node, box, worker) {
  const tell = async (word, text, done, destroys) => {
    const does = `${word[0].toUpperCase()}${word.slice(1)} ${worker.id}`;
    if (await confirmed(`${does}?`, text, does, destroys)) await act(`/api/workers/${encodeURIComponent(worker.id)}/${word}`, {}, done);
  };
  node.pause = button("Quiet", "small", () => node.isQuiet
    ? tell("resume", RESUME, `${worker.id} resumes`)
    : tell("quiet", QUIET, `${worker.id} takes no more tasks`));
  const drain = button("Drain", "small danger", () => tell("drain", DRAIN, `${worker.id} is shutting down`, true));
  label(drain, `Drain ${worker.id}`);
  box.append(node.pause, drain);
}

export function updateCommands(node, worker) {
  node.isQuiet = worker.state === "quiet";
  const word = node.isQuiet ? "Resume" : "Quiet";
  set(node.pause, word);
  label(node.pause, `${word} ${worker.id}`);
}

// When the worker was heard or started, as text and as a time.
export function heard(worker, now) {
  if (worker.heard_ms_ago === null || worker.heard_ms_ago === undefined) return ["no heartbeat yet", NaN];
  if (worker.state === "silent" || worker.state === "unknown") return [`last heartbeat ${span(worker.heard_ms_ago / 1000)} ago`, now.at - worker.heard_ms_ago];
  return [`up ${span(Math.max(0, now.at - worker.started_at) / 1000)}`, worker.started_at];
}

// What the worker has paused, and the groups whose tasks it holds.
function chipsOf(worker) {
  const paused = (noun) => (name) => [`${noun} ${name} paused`, "quiet"];
  const groups = Object.entries(worker.groups ?? {}).map(([name, { running, queued }]) => [`group ${name}: ${running} running +${queued}`, ""]);
  return [...(worker.paused ?? []).map(paused("group")), ...(worker.paused_kinds ?? []).map(paused("kind")), ...groups];
}

export function makeCard(worker) {
  const node = h("article", "card worker"), head = h("header"), meta = h("p", "meta"), acts = h("div", "acts");
  node.pill = h("span", "pill");
  head.append(h("h3", "", worker.id), node.pill);
  node.since = h("time");
  node.meta = h("span");
  meta.append(node.since, node.meta);
  node.chips = h("p", "flags");
  node.slots = h("div", "slots");
  node.tasks = h("div");
  node.more = h("p", "more");
  addCommands(node, gate(acts), worker);
  node.append(head, meta, node.chips, node.slots, node.tasks, node.more, acts);
  return node;
}

function slotsOf(worker) {
  const lanes = Object.entries(worker.lanes).filter(([name, lane]) => name !== "quarantine" || lane.busy + lane.queued > 0);
  return lanes.flatMap(([name, lane]) => {
    const squares = h("span", "squares");
    squares.title = `${lane.busy} of ${lane.slots} slots busy, ${lane.stuck} stuck`;
    for (let n = 0; n < Math.min(lane.slots, 48); n++) squares.append(h("i", n < lane.stuck ? "stuck" : n < lane.busy ? "busy" : ""));
    const row = [h("span", "", name), squares, h("span", "wait", `${lane.busy}/${lane.slots}` + (lane.queued ? ` +${short(lane.queued)}` : ""))];
    if (lane.stuck) row.push(h("span", "note", `${lane.stuck} stuck`));
    if (lane.paused) row.push(h("span", "note", "paused"));
    if (lane.trouble) row.push(h("span", "note", `not consuming: ${lane.trouble}`));
    return row;
  });
}

function makeTask(task) {
  const row = h("div", "task");
  row.time = h("span", "for");
  const end = button("Stop", "small danger", async () => {
    const text = `${task.kind} ${task.id} is interrupted and becomes a dead letter with reason stopped.`;
    if (await confirmed("Stop this task?", text, `Stop ${task.kind}`, true)) await act("/api/tasks/stop", { id: task.id }, `Stopping ${task.id}`);
  });
  label(gate(end), `Stop task ${task.id}`);
  row.bar = h("div", "meter");
  row.bar.append(h("i"));
  row.append(h("span", "", task.kind + (task.group ? `, group ${task.group}` : "")), row.time, end, h("span", "id", task.id), row.bar);
  return row;
}

function updateTask(row, task) {
  set(row.time, span(task.seconds) + (task.stopping ? ", stopping" : ""));
  row.time.className = task.seconds > 60 ? "for long" : "for";
  row.bar.hidden = task.progress === undefined;
  row.bar.firstChild.style.width = (task.progress ?? 0) * 100 + "%";
}

export function updateCard(node, worker, now) {
  node.className = "card worker " + worker.state;
  node.pill.className = "pill " + worker.state;
  set(node.pill, worker.state);
  updateCommands(node, worker);
  const [text, at] = heard(worker, now);
  setTime(node.since, at, text);
  const host = worker.host && !worker.id.startsWith(worker.host) ? [worker.host] : [];
  const reconnects = Object.values(worker.connections).reduce((sum, connection) => sum + connection.epoch, 0);
  const lost = reconnects ? [`${reconnects} reconnects`] : [];
  const notes = [...host, worker.version && `v${worker.version}`, ...lost, worker.blocked && "publishing blocked"];
  set(node.meta, notes.filter(Boolean).map((note) => ` · ${note}`).join(""));
  node.chips.replaceChildren(...chipsOf(worker).map(([text, css]) => h("span", `pill ${css}`, text)));
  const down = Object.values(worker.sinks ?? {}).filter((sink) => !sink.up).map((sink) => h("span", "note", sink.trouble));
  node.slots.replaceChildren(...slotsOf(worker), ...down);
  keyed(node.tasks, worker.tasks.slice(0, TASKS), (task) => task.id, makeTask, updateTask);
  const rest = worker.running - Math.min(worker.tasks.length, TASKS);
  set(node.more, rest > 0 ? `and ${short(rest)} more` : "");
}
