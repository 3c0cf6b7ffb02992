// Pausing and resuming lanes and kinds.
import { confirmed } from "/dialogs.js";
import { button, label, set } from "/dom.js";
import { act, gate } from "/session.js";

const TEXTS = {
  lanes: ["Workers take no more of its tasks, which wait in its queue. Running tasks continue.", "Workers take its tasks again."],
  kinds: ["Workers start none of its tasks and defer those that arrive. Running tasks continue.", "Workers start its tasks again. Deferred tasks return when their delay ends."],
};

// The button of a lane or a kind. `kind` is the route: "lanes" or "kinds".
export function pauseButton(kind, name) {
  const noun = kind.slice(0, -1);
  const node = gate(button("Pause", "small", async () => {
    const word = node.isPaused ? "resume" : "pause", title = node.isPaused ? "Resume" : "Pause";
    const does = `${title} ${noun} ${name}`;
    if (!(await confirmed(`${does}?`, TEXTS[kind][node.isPaused ? 1 : 0], does))) return;
    await act(`/api/${kind}/${encodeURIComponent(name)}/${word}`, {}, `${noun} ${name} is ${word}d`);
  }));
  updatePause(node, noun, name, false);
  return node;
}

export function updatePause(node, noun, name, isPaused) {
  node.isPaused = isPaused;
  const word = isPaused ? "Resume" : "Pause";
  set(node, word);
  label(node, `${word} ${noun} ${name}`);
}
