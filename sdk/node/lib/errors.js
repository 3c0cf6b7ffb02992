"use strict";

const { basename } = require("node:path");
const { fileURLToPath } = require("node:url");
const { inspect } = require("node:util");

// The worker keeps 1,000 bytes of an error. A head has at most 65,536 bytes, and JSON may need six for a character.
const MAX_TEXT = 8_000;

function milliseconds(value, name) {
  if (typeof value !== "number" || !(value >= 0 && value < Infinity)) {
    throw new RangeError(`${name} is ${inspect(value)}; expected a number of milliseconds from 0`);
  }
  return Math.ceil(value);
}

class Reject extends Error {
  constructor(message = "rejected", { reason = "rejected", ...options } = {}) {
    if (reason !== "rejected" && reason !== "invalid-payload") {
      throw new RangeError(`reason is ${inspect(reason)}; expected "rejected" or "invalid-payload"`);
    }
    super(message, options);
    this.reason = reason;
  }
}

class Retry extends Error {
  constructor(message, { afterMs, ...options } = {}) {
    super(message ?? (options.cause === undefined ? "retry" : describe(options.cause)), options);
    this.afterMs = afterMs === undefined ? undefined : milliseconds(afterMs, "afterMs");
  }
}

class Snooze extends Error {
  constructor(afterMs) {
    super("snooze");
    this.afterMs = milliseconds(afterMs, "afterMs");
  }
}

class Cancelled extends Error {
  constructor(reason) {
    super(`cancelled: ${reason}`);
    this.reason = reason;
  }
}

for (const type of [Reject, Retry, Snooze, Cancelled]) {
  Object.defineProperty(type.prototype, "name", { value: type.name, configurable: true, writable: true });
}

/** The type, the message and the innermost frame of an error, or any other value that was thrown. */
function describe(error) {
  if (!(error instanceof Error)) return `${typeof error}: ${typeof error === "string" ? error : inspect(error)}`;
  const name = error.name === "Error" ? error.constructor.name || "Error" : error.name;
  const text = error.message ? `${name}: ${error.message}` : name;
  const frame = /^\s+at (?:(.+) \()?(.+?):(\d+):\d+\)?$/m.exec(error.stack ?? "");
  if (frame === null) return text;
  const [, called, file, line] = frame;
  const path = file.startsWith("file://") ? fileURLToPath(file) : file.replace(/^async /, "");
  return `${text} (${basename(path)}:${line}${called ? ` in ${called.replace(/^async /, "")}` : ""})`;
}

/** The text within the bounds of a frame, without its middle if it is longer. */
function shorten(text) {
  const half = MAX_TEXT / 2 - 2;
  return text.length <= MAX_TEXT ? text : `${text.slice(0, half)} … ${text.slice(-half)}`;
}

module.exports = { Reject, Retry, Snooze, Cancelled, describe, milliseconds, shorten };
