// Publishes a task, to see whether its kind works.
import { closed } from "/dialogs.js";
import { $, h, keyed, set } from "/dom.js";
import { post } from "/session.js";

// Kinds that ran, run or are paused are offered; any other can be written.
export function offerKinds({ now }) {
  const running = now.workers.flatMap((worker) => [...worker.tasks.map(({ kind }) => kind), ...(worker.paused_kinds ?? [])]);
  const kinds = [...new Set([...Object.keys(now.point?.kinds ?? {}), ...running])].sort();
  keyed($("test-kinds"), kinds, (kind) => kind, (kind) => Object.assign(h("option"), { value: kind }), () => {});
}

$("test-open").addEventListener("click", async () => {
  set($("test-result"), "");
  set($("test-error"), "");
  await closed($("test-task"));
});

// Enter in the field of the kind publishes, too. The dialog stays open with the answer.
$("test-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = $("test-publish");
  button.disabled = true;
  set($("test-result"), "");
  set($("test-error"), "");
  try {
    const { id, kind, lane } = await post("/api/tasks", { kind: $("test-kind").value.trim(), payload: $("test-payload").value });
    set($("test-result"), `Published ${kind} to lane ${lane} with the id ${id}. \`garenne task find ${id}\` tells where it is.`);
  } catch (error) {
    set($("test-error"), error.message);
  } finally {
    button.disabled = false;
  }
});
