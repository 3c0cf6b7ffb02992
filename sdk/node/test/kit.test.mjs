import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Reject, Retry, Snooze } from "../index.mjs";
import { run } from "../testing.mjs";

test("done with follow-ups, progress and logs", async () => {
  const found = await run(
    async (payload, cx) => {
      cx.progress(0.5);
      await cx.followUp("next.one", { name: "größe" }, { delayMs: 10 });
      cx.log.info("hello");
      return [cx.kind, cx.attempt, cx.headers.tenant, payload];
    },
    { a: 1 },
    { kind: "k", attempt: 2, headers: { tenant: "acme" } },
  );
  assert.equal(found.outcome, "done");
  assert.deepEqual(found.output, ["k", 2, "acme", { a: 1 }]);
  assert.deepEqual(found.followUps, [{ kind: "next.one", payload: { name: "größe" }, options: { delay_ms: 10 } }]);
  assert.deepEqual(found.progress, [0.5]);
  assert.deepEqual(found.logs, [{ level: "info", message: "hello" }]);
});

test("outcomes", async () => {
  const raise = (error) => run(() => { throw error; });
  assert.equal((await raise(new Reject("no", { reason: "invalid-payload" }))).reason, "invalid-payload");
  assert.equal((await raise(new Retry("later", { afterMs: 5 }))).afterMs, 5);
  assert.equal((await raise(new Snooze(7))).afterMs, 7);
  assert.equal((await run(() => 1n)).outcome, "reject");
  assert.equal((await run(() => {})).output, null);
  assert.equal((await run((payload) => payload.length, Buffer.from([0, 255]))).output, 2);
});

test("cancel", async () => {
  const found = await run((_, cx) => sleep(60_000, undefined, { signal: cx.signal }), null, { cancel: "stopped" });
  assert.deepEqual([found.outcome, found.error], ["retry", "cancelled: stopped"]);
});

test("wrong times and reasons are refused", () => {
  for (const wrong of [-1, NaN, Infinity, "1"]) assert.throws(() => new Snooze(wrong), /expected a number of milliseconds/);
  assert.equal(new Snooze(0.1).afterMs, 1);
  assert.throws(() => new Reject("x", { reason: "oops" }), /reason is 'oops'/);
});
