"use strict";

const { Context } = require("./context.js");
const { FrameReader, encode } = require("./frames.js");

async function run(handler, payload, options = {}) {
  const { kind = "test", id = "test", attempt = 1, headers = {}, lane, group, key, deadlineMs = 600_000, cancel } = options;
  const isBinary = ArrayBuffer.isView(payload);
  const content_type = isBinary ? "application/octet-stream" : "application/json";
  const written = [];
  const writer = { write: async (data) => void written.push(data) };
  const head = { id, attempt, kind, lane, group, key, headers, content_type, deadline_ms: deadlineMs };
  const cx = new Context(head, writer);
  const answer = Context.answer(cx, handler, isBinary ? Buffer.from(payload) : encode(payload, "the payload"));
  if (cancel !== undefined) Context.cancel(cx, cancel);
  written.push(await answer);
  return result(written);
}

function result(written) {
  const found = { followUps: [], progress: [], logs: [] };
  for (const [head, body] of new FrameReader().push(Buffer.concat(written))) {
    const { type, id, attempt, ...members } = head;
    const json = body.length > 0 ? JSON.parse(body) : undefined;
    if (type === "progress") found.progress.push(members.done);
    else if (type === "log") found.logs.push(members);
    else if (type === "follow_up") {
      const { kind, ...options } = members;
      found.followUps.push({ kind, payload: json, options });
    } else {
      const { after_ms: afterMs, ...rest } = members;
      Object.assign(found, { outcome: type, output: type === "done" ? json ?? null : undefined, afterMs }, rest);
    }
  }
  return found;
}

module.exports = { run };
