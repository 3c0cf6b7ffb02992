// What is paused, and the groups whose tasks workers hold, as chips.
import { short } from "/charts.js";
import { confirmed } from "/dialogs.js";
import { $, button, h, keyed, label, set } from "/dom.js";
import { pauseButton, updatePause } from "/pause.js";
import { act, gate } from "/session.js";

const TEXTS = {
  pause: "Workers start none of its tasks until it is resumed. Running tasks continue.",
  resume: "Workers start its tasks again.",
  stop: "Every task of the group that was published before now becomes a dead letter with reason stopped.",
};

async function command(word, group) {
  const does = `${word[0].toUpperCase()}${word.slice(1)} group ${group}`;
  if (await confirmed(`${does}?`, TEXTS[word], does, word === "stop")) await act(`/api/groups/${encodeURIComponent(group)}/${word}`, {}, `Group ${group}: ${word}`);
}

// The groups by name: running and waiting tasks, and whether a worker has paused it.
function groupsOf(workers) {
  const groups = new Map();
  const of = (name) => groups.get(name) ?? groups.set(name, { name, running: 0, queued: 0, paused: false }).get(name);
  for (const worker of workers.filter(({ state }) => state !== "stopped")) {
    for (const [name, { running, queued }] of Object.entries(worker.groups ?? {})) {
      of(name).running += running;
      of(name).queued += queued;
    }
    for (const name of worker.paused ?? []) of(name).paused = true;
  }
  return [...groups.values()].sort((a, b) => b.paused - a.paused || b.running + b.queued - a.running - a.queued);
}

function makeGroup({ name }) {
  const chip = h("span", "chip"), acts = gate(h("span", "acts"));
  chip.pill = h("span", "pill quiet", "paused");
  chip.note = h("span", "quiet-text");
  chip.pause = button("Pause", "small", () => command(chip.isPaused ? "resume" : "pause", name));
  acts.append(chip.pause, label(button("Stop", "small danger", () => command("stop", name)), `Stop group ${name}`));
  chip.append(h("span", "", `group ${name}`), chip.pill, chip.note, acts);
  return chip;
}

function updateGroup(chip, { name, running, queued, paused }) {
  chip.isPaused = paused;
  chip.pill.hidden = !paused;
  set(chip.note, running + queued ? `${short(running)} running, ${short(queued)} waiting` : "");
  const word = paused ? "Resume" : "Pause";
  set(chip.pause, word);
  label(chip.pause, `${word} group ${name}`);
}

function makePaused([noun, name]) {
  const chip = h("span", "chip"), resume = pauseButton(`${noun}s`, name);
  updatePause(resume, noun, name, true);
  chip.append(h("span", "", `${noun} ${name}`), h("span", "pill quiet", "paused"), resume);
  return chip;
}

export function drawGroups({ now }) {
  const lanes = Object.entries(now.point?.lanes ?? {}).filter(([, lane]) => lane.paused).map(([name]) => ["lane", name]);
  const kinds = [...new Set(now.workers.flatMap((worker) => worker.paused_kinds ?? []))].map((name) => ["kind", name]);
  keyed($("pause-chips"), [...lanes, ...kinds], (it) => it.join(" "), makePaused, () => {});
  keyed($("group-chips"), groupsOf(now.workers), ({ name }) => name, makeGroup, updateGroup);
}

$("group-form").addEventListener("submit", (event) => {
  event.preventDefault();
  command(event.submitter?.name ?? "pause", $("group-name").value.trim());
});
