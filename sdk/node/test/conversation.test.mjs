// The SDK speaks as the protocol's page shows it.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Child } from "../fixtures/fake-worker.mjs";

const page = readFileSync(new URL("../../../docs/reference/handlers.md", import.meta.url), "utf8");

/** The lines of the recorded conversation: direction, head, body. */
function recorded() {
  const section = page.split("\n## Recorded conversation\n")[1];
  const lines = section.split("```text\n")[1].split("```")[0].trim().split("\n");
  return lines.map((line) => {
    const [, direction, head, body] = /^([<>]) (\{.*?\})(?: (\{.*\}))?$/.exec(line);
    return { direction, head: JSON.parse(head), body: body && JSON.parse(body) };
  });
}

test("the recorded conversation", async (t) => {
  const child = await Child.start(t, "recorded.mjs");
  const conversation = recorded();
  assert.ok(conversation.length > 10);
  for (const { direction, head, body } of conversation) {
    if (direction === ">") {
      child.write(head, body && Buffer.from(JSON.stringify(body)));
      continue;
    }
    if (head.type === "hello") head.sdk = "garenne-node/0.1.0";
    if (head.error?.startsWith("cancelled")) head.error = "cancelled: shutdown";
    assert.deepEqual(await child.read(), body === undefined ? head : { ...head, body });
  }
  // The last message was bye. The child may have asked for a task before it came.
  const last = await child.read();
  assert.ok(last === undefined || last.type === "next");
  assert.equal(await child.end(), 0);
});
