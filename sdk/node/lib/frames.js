"use strict";

// Frames between the worker and this process, as docs/reference/handlers.md specifies them.

const { Reject } = require("./errors.js");

const MAX_HEAD = 65_536;
const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Reads JSON. Throws if the bytes are not UTF-8, or are not JSON. */
function decode(bytes) {
  return JSON.parse(utf8.decode(bytes));
}

/** Refuses what JSON.stringify would replace by something else. */
function check(key, value) {
  const original = this[key];
  if (typeof value === "number" && !Number.isFinite(value)) throw new TypeError(`${value} is no JSON`);
  if (ArrayBuffer.isView(original) || original instanceof Map || original instanceof Set) {
    throw new TypeError(`a ${original.constructor.name} is no JSON`);
  }
  if (/\p{Surrogate}/u.test(key) || (typeof value === "string" && /\p{Surrogate}/u.test(value))) {
    throw new TypeError("a text has half of a surrogate pair");
  }
  return value;
}

/** Writes JSON. Throws a `Reject` that names the type or the value at fault. Undefined is null. */
function encode(value, what) {
  let text;
  try {
    text = JSON.stringify(value === undefined ? null : value, check);
    if (text === undefined) throw new TypeError(`a ${typeof value} is no JSON`);
  } catch (error) {
    throw new Reject(`${what} is not JSON: ${error.message}`, { cause: error });
  }
  return Buffer.from(text);
}

function frame(head, body = Buffer.alloc(0)) {
  const text = Buffer.from(JSON.stringify(head));
  if (text.length > MAX_HEAD) {
    throw new RangeError(`the head of ${head.type} has ${text.length} bytes; the limit is ${MAX_HEAD}`);
  }
  const sizes = Buffer.allocUnsafe(8);
  sizes.writeUInt32BE(text.length, 0);
  sizes.writeUInt32BE(body.length, 4);
  return Buffer.concat([sizes, text, body]);
}

/** Splits bytes into frames. */
class FrameReader {
  #chunks = [];
  #size = 0;
  #needed = 8;

  /** The frames that are complete with these bytes: pairs of head and body. */
  *push(chunk) {
    this.#chunks.push(chunk);
    this.#size += chunk.length;
    if (this.#size < this.#needed) return;
    const data = this.#chunks.length === 1 ? chunk : Buffer.concat(this.#chunks);
    let at = 0;
    this.#needed = 8;
    while (data.length - at >= 8) {
      const headSize = data.readUInt32BE(at);
      if (headSize > MAX_HEAD) throw new Error(`a head of ${headSize} bytes; the limit is ${MAX_HEAD}`);
      const body = at + 8 + headSize;
      const end = body + data.readUInt32BE(at + 4);
      if (data.length < end) {
        this.#needed = end - at;
        break;
      }
      yield [decode(data.subarray(at + 8, body)), data.subarray(body, end)];
      at = end;
    }
    const rest = data.subarray(at);
    this.#chunks = rest.length > 0 ? [rest] : [];
    this.#size = rest.length;
  }
}

module.exports = { FrameReader, decode, encode, frame };
