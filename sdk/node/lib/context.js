"use strict";

const { Reject, Retry, Snooze, Cancelled, describe, milliseconds, shorten } = require("./errors.js");
const { decode, encode, frame } = require("./frames.js");

// A loop may report after every item. The worker shows the progress a few times a second.
const PROGRESS_INTERVAL_MS = 100;

class Context {
  #writer;
  #controller = new AbortController();
  #answered = false;
  #reported = -Infinity;

  constructor(head, writer) {
    this.#writer = writer;
    this.id = head.id;
    this.kind = head.kind;
    this.attempt = head.attempt;
    this.lane = head.lane;
    this.group = head.group;
    this.key = head.key;
    this.headers = head.headers ?? {};
    this.contentType = head.content_type ?? "application/json";
    this.deadline = head.deadline_ms === undefined ? undefined : new Date(Date.now() + head.deadline_ms);
    this.enqueuedAt = head.enqueued_at === undefined ? undefined : new Date(head.enqueued_at);
    this.traceparent = head.traceparent;
    this.tracestate = head.tracestate;
    this.signal = this.#controller.signal;
    const log = (level) => (message) => {
      this.#writer.write(this.#frame({ type: "log", level, message: shorten(String(message)) }));
    };
    this.log = { error: log("error"), warn: log("warn"), info: log("info"), debug: log("debug") };
  }

  progress(done) {
    const bounded = Math.min(1, Math.max(0, Number(done) || 0));
    const now = performance.now();
    if (this.#answered || (bounded < 1 && now - this.#reported < PROGRESS_INTERVAL_MS)) return;
    this.#reported = now;
    this.#writer.write(this.#frame({ type: "progress", done: bounded }));
  }

  async followUp(kind, payload, { id, delayMs, timeoutMs, key, group, headers } = {}) {
    if (this.#answered) throw new Error(`the task ${this.id} has ended; it can have no further follow-ups`);
    const what = `the payload of the follow-up ${kind}`;
    const body = bounded(encode(payload, what), what, this.#writer.maxBody);
    const head = {
      type: "follow_up",
      kind,
      task_id: id,
      delay_ms: delayMs === undefined ? undefined : milliseconds(delayMs, "delayMs"),
      timeout_ms: timeoutMs === undefined ? undefined : milliseconds(timeoutMs, "timeoutMs"),
      key,
      group,
      headers,
    };
    let data;
    try {
      data = this.#frame(head, body);
    } catch (error) {
      throw new Reject(`the follow-up ${kind} cannot be sent: ${error.message}`, { cause: error });
    }
    await this.#writer.write(data);
  }

  #frame(head, body) {
    return frame({ ...head, id: this.id, attempt: this.attempt }, body);
  }

  /** Aborts the signal of a context. */
  static cancel(cx, reason) {
    cx.#controller.abort(new Cancelled(reason));
  }

  /** Runs a handler. Resolves with the frame of the answer. */
  static async answer(cx, handler, body) {
    let answer;
    try {
      const output = await handler(payloadOf(cx, body), cx);
      const bytes = output === undefined ? undefined : encode(output, "the output");
      answer = frame({ type: "done", id: cx.id, attempt: cx.attempt }, bytes && bounded(bytes, "the output", cx.#writer.maxBody));
    } catch (error) {
      answer = frame({ ...failed(cx, error), id: cx.id, attempt: cx.attempt });
    }
    cx.#answered = true;
    return answer;
  }
}

function bounded(body, what, maxBody = Infinity) {
  if (body.length > maxBody) throw new Reject(`${what} has ${body.length} bytes; the limit is ${maxBody}`);
  return body;
}

function payloadOf(cx, body) {
  const type = cx.contentType.split(";", 1)[0].trim().toLowerCase();
  if (type !== "application/json" && !type.endsWith("+json")) return body;
  try {
    return decode(body);
  } catch (error) {
    throw new Reject(`the payload is not JSON: ${error.message}`, { reason: "invalid-payload", cause: error });
  }
}

/** The answer for an error. The stack of an unexpected one goes to standard error. */
function failed(cx, error) {
  if (error instanceof Reject) return { type: "reject", error: shorten(error.message), reason: error.reason };
  if (error instanceof Snooze) return { type: "snooze", after_ms: error.afterMs };
  if (error instanceof Retry) return { type: "retry", error: shorten(error.message), after_ms: error.afterMs };
  const { aborted, reason } = cx.signal;
  if (aborted && (error === reason || error?.name === "AbortError")) return { type: "retry", error: reason.message };
  console.error(error);
  return { type: "retry", error: shorten(describe(error)) };
}

module.exports = { Context };
