// Replays and drops, which run on the server: their progress, their results, and the button that stops them. After a
// reload the page finds them again.
import { short, span } from "/charts.js";
import { confirmed, toast } from "/dialogs.js";
import { $, button, h, keyed, label, set, setTime } from "/dom.js";
import { filterWords } from "/letter_filter.js";
import { act, gate } from "/session.js";

// Ended jobs that the page shows.
const ENDED = 5;
const DONE = { replay: "replayed", drop: "dropped" };
const WAITING = ["queued", "running"];

let active = new Set();
const mine = new Set();

// Starts a job and returns whether the server accepted it.
export async function startJob(action, selection) {
  const job = await act(`/api/dead/${action}`, selection);
  if (!job) return false;
  mine.add(job.id);
  toast(`${action === "replay" ? "Replay" : "Drop"} started`);
  return true;
}

function selected({ ids, ...filter }) {
  if (!ids) return `letters (${filterWords(filter)})`;
  return ids.length === 1 ? ids[0] : `${short(ids.length)} letters`;
}

function bytes(n) {
  return n < 1000 ? `${n} bytes` : n < 1e6 ? `${(n / 1e3).toFixed(1)} kB` : `${(n / 1e6).toFixed(1)} MB`;
}

function resultOf({ action, state, progress, report, error }) {
  if (state === "failed") return error;
  const failures = Object.entries(report?.failures ?? {}), failed = failures.reduce((sum, [, kept]) => sum + kept.count, 0);
  const why = failures.length ? `, ${failed} failed: ${failures[0][0]} (${failures[0][1].letters.slice(0, 3).join(", ")})` : "";
  const missed = report?.missed ? `, ${report.missed} consumed by another program` : "";
  return `${report?.moved ?? progress.moved} ${DONE[action]}${why}${missed}${state === "stopped" ? ", stopped" : ""}`;
}

function courseOf(job) {
  const { read, total, moved, failed, bytes: size } = job.progress;
  if (job.state === "queued") return "waits for the jobs before it";
  if (!WAITING.includes(job.state)) return `${resultOf(job)}${size ? ` (${bytes(size)})` : ""}`;
  return `${short(moved)} ${DONE[job.action]}, ${bytes(size)}, ${short(read)} of ${short(total)} letters read${failed ? `, ${short(failed)} failed` : ""}`;
}

function make(job) {
  const node = h("li", "card job"), title = `${job.action === "replay" ? "Replay" : "Drop"} of ${selected(job.selection)}`;
  node.pill = h("span", "pill");
  node.bar = h("progress");
  label(node.bar, title);
  node.text = h("span", "quiet-text");
  node.at = h("time", "quiet-text");
  node.end = button("Stop", "small danger", async () => {
    const text = "Letters that are not moved yet stay. Those in flight are completed.";
    if (await confirmed(`Stop the ${title.toLowerCase()}?`, text, `Stop the ${job.action}`)) await act(`/api/jobs/${encodeURIComponent(job.id)}/stop`, {}, "Stopping");
  });
  label(node.end, `Stop the ${title}`);
  node.command = gate(h("span"));
  node.command.append(node.end);
  node.append(h("b", "", title), node.pill, node.bar, node.text, node.at, node.command);
  return node;
}

function update(node, job) {
  const waits = WAITING.includes(job.state), at = job.ended_at ?? job.started_at ?? job.created_at;
  node.pill.className = "pill " + ({ done: "open", failed: "silent", running: "quiet" }[job.state] ?? "");
  set(node.pill, job.state);
  node.bar.hidden = !waits;
  node.end.hidden = !waits;
  if (job.progress.total) [node.bar.max, node.bar.value] = [job.progress.total, job.progress.read];
  set(node.text, courseOf(job));
  setTime(node.at, at, `by ${job.by}, ${job.ended_at ? "ended" : job.started_at ? "began" : "given"} ${span(Math.max(0, Date.now() - at) / 1000)} ago`);
}

// Shows the jobs. `ended` is called if one has ended since the last time.
export function drawJobs(jobs, ended) {
  const waiting = jobs.filter(({ state }) => WAITING.includes(state));
  const over = jobs.filter(({ state }) => !WAITING.includes(state));
  keyed($("jobs"), [...waiting, ...over.slice(0, ENDED)], ({ id }) => id, make, update);
  $("jobs").hidden = jobs.length === 0;
  const finished = over.filter(({ id }) => active.has(id) || mine.has(id));
  active = new Set(waiting.map(({ id }) => id));
  for (const job of finished) {
    if (mine.delete(job.id)) toast(resultOf(job), job.state === "failed");
  }
  if (finished.length) ended();
}
