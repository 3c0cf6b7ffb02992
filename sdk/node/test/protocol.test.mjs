import assert from "node:assert/strict";
import { test } from "node:test";
import { Child } from "../fixtures/fake-worker.mjs";

const RUN = { id: "a1", attempt: 1 };

async function started(t, environment = {}) {
  const child = await Child.start(t, "handlers.mjs", environment);
  const asked = Array(Number(environment.CONCURRENCY ?? 1)).fill("next");
  const [hello] = await child.ask("hello", ...asked);
  return Object.assign(child, { hello });
}

test("hello names the protocol, the SDK and the kinds", async (t) => {
  const { kinds, ...hello } = (await started(t)).hello;
  assert.deepEqual(hello, { type: "hello", protocol: 1, sdk: "garenne-node/0.1.0", concurrency: 1 });
  assert.ok(kinds.includes("echo"));
});

test("two tasks in a row", async (t) => {
  const child = await started(t);
  assert.deepEqual(await child.answer("done", "echo", 1), { body: 1 });
  const payload = { a: [null, true, 1.5] };
  assert.deepEqual(await child.answer("done", "echo", payload, { id: "b2", attempt: 2 }), { body: payload });
});

test("unicode and 4 MiB pass unchanged", async (t) => {
  const child = await started(t);
  const text = 'ä€😀\u2028"\\\n\0';
  assert.deepEqual(await child.answer("done", "echo", { [text]: text }, { id: "größe-😀" }), { body: { [text]: text } });
  const large = "é".repeat(2 << 20);
  assert.equal((await child.answer("done", "echo", large)).body, large);
});

test("frames may arrive in pieces", async (t) => {
  const child = await started(t);
  const bytes = Child.task([1]);
  for (let at = 0; at < bytes.length; at += 7) {
    await new Promise((resolve) => child.to.write(bytes.subarray(at, at + 7), resolve));
  }
  const [done] = await child.ask("done", "next");
  assert.deepEqual(done.body, [1]);
});

test("the context has what the task has", async (t) => {
  const child = await started(t);
  const members = {
    attempt: 3,
    lane: "bulk",
    group: "g",
    key: "k",
    headers: { tenant: "acme", n: 1, b: true },
    traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    tracestate: "a=b",
  };
  const { body } = await child.answer("done", "describe", "x", { ...members, enqueued_at: "2026-11-29T10:00:00.123456Z" });
  const { deadline, ...found } = body;
  assert.ok(Math.abs(new Date(deadline) - Date.now() - 600_000) < 5_000);
  const rest = { id: "a1", kind: "describe", enqueuedAt: "2026-11-29T10:00:00.123Z", aborted: false, isBuffer: false };
  assert.deepEqual(found, { ...members, ...rest, payload: "x" });
});

test("a payload that is not JSON by its type is a buffer", async (t) => {
  const child = await started(t);
  const binary = { body: Buffer.from([0, 255]), content_type: "application/octet-stream" };
  assert.equal((await child.answer("done", "describe", null, binary)).body.isBuffer, true);
  const senml = { body: Buffer.from("[1]"), content_type: "application/senml+json; charset=utf-8" };
  assert.equal((await child.answer("done", "describe", null, senml)).body.payload, "1");
});

test("a payload that is broken is rejected", async (t) => {
  const child = await started(t);
  for (const body of ["{", "NaN", "", Buffer.from([0x22, 0xff, 0x22])]) {
    const found = await child.answer("reject", "echo", null, { body: Buffer.from(body) });
    assert.equal(found.reason, "invalid-payload");
    assert.match(found.error, /^the payload is not JSON: /);
  }
});

test("unknown types and members are ignored", async (t) => {
  const child = await started(t);
  child.write({ type: "weather", id: "a1" }, Buffer.from("body"));
  child.write({ kind: "no type" });
  assert.deepEqual(await child.answer("done", "echo", 1, { unknown: { a: 1 } }), { body: 1 });
});

test("a kind without a function is retried", async (t) => {
  const child = await started(t);
  for (const kind of ["missing", "toString", "__proto__"]) {
    assert.match((await child.answer("retry", kind)).error, /no function for the kind/);
  }
});

test("every outcome", async (t) => {
  const child = await started(t);
  const cases = [
    ["reject", ["reject", "no"], { error: "no", reason: "rejected" }],
    ["reject", ["invalid", "width is -1"], { error: "width is -1", reason: "invalid-payload" }],
    ["retry", ["retry", "later"], { error: "later" }],
    ["retry", ["retry-after"], { error: "the server is down", after_ms: 1500 }],
    ["snooze", ["snooze"], { after_ms: 30_000 }],
    ["retry", ["text", "thrown"], { error: "string: thrown" }],
  ];
  for (const [outcome, payload, expected] of cases) {
    assert.deepEqual(await child.answer(outcome, "raise", payload), expected);
  }
});

test("an exception is a retry with type, message and frame", async (t) => {
  const child = await started(t);
  const { error } = await child.answer("retry", "raise", ["error", "width is -1"]);
  assert.match(error, /^TypeError: width is -1 \(handlers.mjs:\d+ in Object.error\)$/);
  assert.match(child.output.stderr, /TypeError: width is -1\n {4}at /);
  assert.match((await child.answer("retry", "raise", ["cause"])).error, /^RangeError: far \(handlers.mjs:\d+ in Object.cause\)$/);
  const long = await child.answer("retry", "raise", ["error", "\0".repeat(100_000)]);
  assert.ok(long.error.length <= 8_000);
  assert.match((await child.answer("retry", "raise", ["cancelled"])).error, /^Cancelled: cancelled: of its own/);
});

test("an output that is not JSON is rejected", async (t) => {
  const child = await started(t);
  const cases = {
    bytes: "the output is not JSON: a Buffer is no JSON",
    nested: "the output is not JSON: a Uint8Array is no JSON",
    map: "the output is not JSON: a Map is no JSON",
    function: "the output is not JSON: a function is no JSON",
    bigint: "the output is not JSON: Do not know how to serialize a BigInt",
    nan: "the output is not JSON: NaN is no JSON",
    infinity: "the output is not JSON: -Infinity is no JSON",
    surrogate: "the output is not JSON: a text has half of a surrogate pair",
    circle: "the output is not JSON: Converting circular structure",
    large: "the output has 9437186 bytes; the limit is 8388608",
  };
  for (const [payload, text] of Object.entries(cases)) {
    const { error, reason } = await child.answer("reject", "output", payload);
    assert.equal(reason, "rejected");
    assert.ok(error.startsWith(text), error);
  }
  assert.deepEqual(await child.answer("done", "output", "undefined"), {});
  assert.deepEqual(await child.answer("done", "output", "null"), { body: null });
  assert.deepEqual(await child.answer("done", "output", "date"), { body: "1970-01-01T00:00:00.000Z" });
});

test("follow-ups come before the answer", async (t) => {
  const child = await started(t);
  child.task(null, { kind: "followUp" });
  const [one, two] = await child.ask("follow_up", "follow_up", "done", "next");
  assert.deepEqual(one, { type: "follow_up", ...RUN, kind: "next.one", body: { name: "größe" } });
  assert.deepEqual(two, {
    type: "follow_up",
    ...RUN,
    kind: "next.two",
    task_id: "t2",
    delay_ms: 1500,
    key: "k",
    group: "g",
    timeout_ms: 60_000,
    headers: { tenant: "acme", n: 1, b: true },
    body: null,
  });
  child.task("bad", { kind: "followUp" });
  const [, , reject] = await child.ask("follow_up", "follow_up", "reject", "next");
  assert.match(reject.error, /^the payload of the follow-up next.three is not JSON: /);
  child.task("headers", { kind: "followUp" });
  const [, , large] = await child.ask("follow_up", "follow_up", "reject", "next");
  assert.match(large.error, /^the follow-up next.three cannot be sent: the head of follow_up has 7.... bytes/);
});

test("progress is bounded and not sent more often than needed", async (t) => {
  const child = await started(t);
  child.task(null, { kind: "progress" });
  const [first, last] = await child.ask("progress", "progress", "done", "next");
  assert.deepEqual(first, { type: "progress", ...RUN, done: 0 });
  assert.equal(last.done, 1);
});

test("log lines are frames", async (t) => {
  const child = await started(t);
  child.task(null, { kind: "log" });
  const [warn, debug] = await child.ask("log", "log", "done", "next");
  assert.deepEqual(warn, { type: "log", level: "warn", message: "two\nlines", ...RUN });
  assert.equal(debug.level, "debug");
});

test("after the answer nothing is sent for a task", async (t) => {
  const child = await started(t);
  await child.answer("done", "late");
  assert.match((await child.answer("retry", "late", null, { id: "b2" })).error, /the task a1 has ended/);
});

test("print and garbage go to stdout", async (t) => {
  const child = await started(t);
  assert.deepEqual(await child.answer("done", "noise"), { body: "quiet" });
  child.to.end();
  assert.equal(await child.end(), 0);
  assert.equal(child.output.stdout, "printed\n\0\ufffd\0\0{from a shell\n");
});

test("programs that a handler starts do not get the descriptors", async (t) => {
  const child = await started(t);
  assert.deepEqual(await child.answer("done", "descriptors"), { body: "" });
});

test("reading occupies no thread of libuv's pool", async (t) => {
  const child = await started(t, { UV_THREADPOOL_SIZE: "1" });
  assert.deepEqual(await child.answer("done", "file"), { body: true });
});

test("cancel aborts the signal of its task only", async (t) => {
  const child = await started(t, { CONCURRENCY: "3" });
  child.task(null, { kind: "wait", id: "one" });
  child.task("finish", { kind: "wait", id: "two" });
  await child.ask("progress", "progress");
  child.write({ type: "cancel", id: "two", attempt: 2, reason: "stopped" });
  child.write({ type: "cancel", id: "two", attempt: 1, reason: "stopped" });
  const [done] = await child.ask("done", "next");
  assert.deepEqual([done.id, done.body], ["two", [true, "stopped"]]);
  child.write({ type: "cancel", id: "two", attempt: 1, reason: "stopped" });
  child.write({ type: "cancel", id: "one", attempt: 1, reason: "deadline" });
  const [retry] = await child.ask("retry", "next");
  assert.deepEqual(retry, { type: "retry", error: "cancelled: deadline", id: "one", attempt: 1 });
});

test("a cancel after the answer means nothing", async (t) => {
  const child = await started(t);
  await child.answer("done", "echo", 1);
  child.write({ type: "cancel", ...RUN, reason: "deadline" });
  assert.equal((await child.answer("done", "describe", "x")).body.aborted, false);
});

test("tasks run at the same time", async (t) => {
  const child = await started(t, { CONCURRENCY: "2" });
  child.task(1, { kind: "meet", id: "one" });
  child.task(2, { kind: "meet", id: "two" });
  const frames = await child.ask("done", "next", "done", "next");
  assert.deepEqual(frames.filter(({ type }) => type === "done").map(({ id, body }) => [id, body]).sort(), [["one", 1], ["two", 2]]);
});

test("a worker that does not read for a while gets every answer", async (t) => {
  const child = await started(t, { CONCURRENCY: "4" });
  child.from.pause();
  const text = "x".repeat(1 << 20);
  for (let id = 0; id < 3; id += 1) child.task(text, { id: `${id}` });
  // The child still reads and runs tasks: the pipe is full of answers, and it has taken all of them.
  await new Promise((resolve) => child.to.write(Child.task("last", { id: "3" }), resolve));
  child.from.resume();
  const done = [];
  let asked = 0;
  while (done.length < 4 || asked < 4) {
    const { type, id, body } = await child.read();
    if (type === "next") asked += 1;
    else done.push([id, body.length]);
  }
  assert.deepEqual(done.sort(), [["0", 1 << 20], ["1", 1 << 20], ["2", 1 << 20], ["3", 4]]);
});

test("the end of the pipe and bye end the child", async (t) => {
  for (const end of [(child) => child.to.end(), (child) => child.write({ type: "bye" })]) {
    const child = await started(t);
    end(child);
    assert.equal(await child.read(), undefined);
    assert.equal(await child.end(), 0);
    assert.equal(child.output.stderr, "closed\n");
  }
});

test("a running task finishes after bye, and can be cancelled", async (t) => {
  const child = await started(t);
  child.task("finish", { kind: "wait" });
  await child.ask("progress");
  child.write({ type: "bye" });
  child.write({ type: "cancel", ...RUN, reason: "shutdown" });
  const [done] = await child.ask("done");
  assert.deepEqual(done.body, [true, "shutdown"]);
  assert.equal(await child.read(), undefined);
  assert.equal(await child.end(), 0);
});

test("a running task finishes after the end of the pipe", async (t) => {
  const child = await started(t);
  child.task(100, { kind: "nap" });
  await child.ask("progress");
  child.to.end();
  await child.ask("done");
  assert.equal(await child.read(), undefined);
  assert.equal(await child.end(), 0);
});

test("a worker that is gone ends the child", async (t) => {
  const child = await started(t);
  child.from.destroy();
  child.task(1);
  assert.equal(await child.end(), 0);
  assert.equal(child.output.stderr, "garenne: the worker is gone\n");
});

test("SIGINT is ignored, SIGTERM ends the child", async (t) => {
  const child = await started(t);
  child.process.kill("SIGINT");
  assert.deepEqual(await child.answer("done", "echo", 1), { body: 1 });
  child.process.kill("SIGTERM");
  assert.equal(await child.end(), "SIGTERM");
});

test("a head that is no JSON is an error", async (t) => {
  const child = await started(t);
  child.to.write(Buffer.from("\0\0\0\x01\0\0\0\0x"));
  assert.equal(await child.end(), 1);
  assert.match(child.output.stderr, /SyntaxError/);
});

test("a function runs any kind, ten at a time, and ends although a timer runs", async (t) => {
  const child = await Child.start(t, "any.cjs");
  const [hello] = await child.ask("hello", ...Array(10).fill("next"));
  assert.deepEqual(hello, { type: "hello", protocol: 1, sdk: "garenne-node/0.1.0", concurrency: 10 });
  assert.deepEqual(await child.answer("done", "some.kind", 1), { body: ["some.kind", 1] });
  child.write({ type: "bye" });
  assert.equal(await child.end(), 0);
});

test("another version of the protocol is refused", async (t) => {
  const child = await Child.start(t, "any.cjs", { GARENNE_HANDLER_PROTOCOL: "2" });
  assert.equal(await child.end(), 1);
  assert.match(child.output.stderr, /the worker has version 2 of the protocol; this SDK needs 1/);
});
