"use strict";

const { randomUUID } = require("node:crypto");
const { setTimeout: sleep } = require("node:timers/promises");
const { milliseconds } = require("./errors.js");
const { encode } = require("./frames.js");

const REPEATED = new Set([408, 429, 503]);
const LONGEST_WAIT_MS = 5_000;

class GatewayError extends Error {
  constructor(status, { code, detail, title } = {}) {
    super(detail ?? title ?? `the gateway answered ${status}`);
    this.name = "GatewayError";
    this.status = status;
    this.code = code;
  }
}

class Gateway {
  #url;
  #token;
  #retryForMs;
  #timeoutMs;

  constructor(url, { token, retryForMs = 30_000, timeoutMs = 10_000 } = {}) {
    this.#url = new URL(url).href.replace(/\/+$/, "");
    this.#token = token;
    this.#retryForMs = retryForMs;
    this.#timeoutMs = timeoutMs;
  }

  async publish(kind, payload, options = {}) {
    const { idempotencyKey = randomUUID(), delayMs, timeoutMs, key, group, traceparent, tracestate, signal } = options;
    const given = {
      "content-type": "application/json",
      "idempotency-key": idempotencyKey,
      authorization: this.#token === undefined ? undefined : `Bearer ${this.#token}`,
      "garenne-delay-ms": delayMs === undefined ? undefined : String(milliseconds(delayMs, "delayMs")),
      "garenne-timeout-ms": timeoutMs === undefined ? undefined : String(milliseconds(timeoutMs, "timeoutMs")),
      "garenne-key": key,
      "garenne-group": group,
      traceparent,
      tracestate,
    };
    const headers = new Headers(Object.entries(given).filter(([, value]) => value !== undefined));
    const url = `${this.#url}/v1/tasks/${encodeURIComponent(kind)}`;
    const body = encode(payload, "the payload");
    const until = Date.now() + this.#retryForMs;
    // A repetition with the same key is the same task.
    for (let waitMs = 100; ; waitMs = Math.min(2 * waitMs, LONGEST_WAIT_MS)) {
      const timeout = AbortSignal.timeout(this.#timeoutMs);
      let failure;
      let retryAfter = null;
      try {
        const response = await fetch(url, { method: "POST", headers, body, signal: signal ? AbortSignal.any([signal, timeout]) : timeout });
        const answer = await response.json().catch(() => ({}));
        if (response.ok) return answer.ids?.[0];
        failure = new GatewayError(response.status, answer);
        retryAfter = response.headers.get("retry-after");
      } catch (error) {
        signal?.throwIfAborted();
        failure = error;
      }
      const repeat = failure.status === undefined || REPEATED.has(failure.status);
      const pauseMs = retryAfter > 0 ? 1_000 * retryAfter : waitMs;
      if (!repeat || Date.now() + pauseMs > until) throw failure;
      await sleep(pauseMs, undefined, { signal });
    }
  }
}

module.exports = { Gateway, GatewayError };
