"use strict";

const net = require("node:net");
const { Context } = require("./context.js");
const { FrameReader, frame } = require("./frames.js");
const { version } = require("../package.json");

const PROTOCOL = 1;
const NEXT = frame({ type: "next" });

async function run(handlers, { concurrency = 10, close = () => {} } = {}) {
  process.on("SIGINT", () => {}); // The worker gets it too, and decides.
  if (!Number.isInteger(concurrency) || concurrency < 1 || concurrency > 1000) {
    throw new RangeError(`concurrency is ${concurrency}; expected 1 to 1000`);
  }
  const handlerOf = typeof handlers === "function" ? () => handlers : finder(handlers);
  const kinds = typeof handlers === "function" ? undefined : Object.keys(handlers);
  const channel = new Channel();
  const hello = { type: "hello", protocol: PROTOCOL, sdk: `garenne-node/${version}`, kinds, concurrency };
  channel.write(Buffer.concat([frame(hello), ...Array(concurrency).fill(NEXT)]));
  await serve(channel, handlerOf);
  await close();
  process.exit(0);
}

function finder(handlers) {
  const byKind = new Map(Object.entries(handlers));
  for (const [kind, handler] of byKind) {
    if (typeof handler !== "function") throw new TypeError(`the handler of ${kind} is no function`);
  }
  if (byKind.size === 0) throw new TypeError("the program has no handler");
  const missing = (_, cx) => {
    throw new Error(`the program has no function for the kind ${cx.kind}`);
  };
  return (kind) => byKind.get(kind) ?? missing;
}

/** Resolves when the worker has ended the conversation and every task is answered. */
function serve(channel, handlerOf) {
  const running = new Map();
  let ending = false;
  return new Promise((resolve, reject) => {
    const endIfIdle = () => {
      if (ending && running.size === 0) channel.end(resolve);
    };
    const runTask = async (head, body) => {
      const run = `${head.attempt}/${head.id}`;
      const cx = new Context(head, channel);
      running.set(run, cx);
      const answer = await Context.answer(cx, handlerOf(head.kind), body);
      running.delete(run);
      if (ending || channel.isFull()) {
        await channel.write(answer);
        if (!ending) channel.write(NEXT);
      } else {
        channel.write(Buffer.concat([answer, NEXT]));
      }
      endIfIdle();
    };
    const receive = ([head, body]) => {
      if (head.type === "task") {
        runTask(head, body).catch(reject);
      } else if (head.type === "cancel") {
        const cx = running.get(`${head.attempt}/${head.id}`); // Undefined if it was answered already.
        if (cx !== undefined) Context.cancel(cx, head.reason);
      } else if (head.type === "bye") {
        ending = true;
        endIfIdle();
      }
    };
    const ended = () => {
      ending = true;
      endIfIdle();
    };
    channel.listen(receive, ended, reject);
  });
}

/** The descriptors 3 and 4. Neither reading nor writing blocks the event loop or a thread of libuv's pool. */
class Channel {
  #reads;
  #writes;
  #drained = Promise.resolve();

  constructor() {
    const { env } = process;
    const protocol = env.GARENNE_HANDLER_PROTOCOL;
    if (protocol === undefined) {
      throw new Error("this program is started by a worker; to run a handler without one, use garenne/testing");
    }
    if (protocol !== String(PROTOCOL)) {
      throw new Error(`the worker has version ${protocol} of the protocol; this SDK needs ${PROTOCOL}`);
    }
    this.maxBody = Number(env.GARENNE_HANDLER_MAX_BODY) || undefined;
    // Node marks inherited descriptors close-on-exec when it starts. A socket of node:net polls a pipe, while fs.read
    // would occupy one of the four threads of the pool all the time.
    const open = (fd, options) => new net.Socket({ fd: Number(fd), ...options });
    this.#reads = open(env.GARENNE_HANDLER_IN ?? 3, { readable: true, writable: false });
    this.#writes = open(env.GARENNE_HANDLER_OUT ?? 4, { readable: false, writable: true });
    this.#writes.on("error", (error) => {
      console.error(error.code === "EPIPE" ? "garenne: the worker is gone" : error);
      process.exit(error.code === "EPIPE" ? 0 : 1);
    });
  }

  listen(receive, ended, failed) {
    const frames = new FrameReader();
    this.#reads.on("data", (chunk) => {
      try {
        for (const received of frames.push(chunk)) receive(received);
      } catch (error) {
        failed(error);
      }
    });
    this.#reads.on("end", ended);
    this.#reads.on("error", failed);
  }

  isFull() {
    return this.#writes.writableNeedDrain;
  }

  /** Resolves when there is room for more. */
  write(data) {
    if (!this.#writes.write(data)) {
      this.#drained = new Promise((resolve) => this.#writes.once("drain", resolve));
    }
    return this.isFull() ? this.#drained : Promise.resolve();
  }

  /** Resolves when everything is written. */
  end(done) {
    this.#reads.destroy();
    this.#writes.end(done);
  }
}

module.exports = { run };
