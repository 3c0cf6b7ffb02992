import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { test } from "node:test";
import { Gateway, GatewayError } from "../index.mjs";

/** A server that gives these answers in turn, and the requests that it got. */
async function serve(t, ...answers) {
  const requests = [];
  const server = createServer(async (request, response) => {
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    requests.push({ method: request.method, url: request.url, headers: request.headers, body: String(Buffer.concat(chunks)) });
    const answer = answers.shift();
    if (answer === "close") return response.destroy();
    response.writeHead(answer.status, answer.headers ?? {}).end(JSON.stringify(answer.body));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return { url: `http://127.0.0.1:${server.address().port}`, requests };
}

const accepted = { status: 202, body: { accepted: 1, ids: ["a1"] } };

test("a task is one request", async (t) => {
  const { url, requests } = await serve(t, accepted);
  const gateway = new Gateway(`${url}/`, { token: "secret" });
  const options = { delayMs: 1500, timeoutMs: 60_000, key: "k", group: "g", idempotencyKey: "i" };
  assert.equal(await gateway.publish("image/résize", { name: "größe" }, options), "a1");
  const [{ method, url: path, headers, body }] = requests;
  assert.deepEqual([method, path, body], ["POST", "/v1/tasks/image%2Fr%C3%A9size", '{"name":"größe"}']);
  const expected = {
    "content-type": "application/json",
    authorization: "Bearer secret",
    "idempotency-key": "i",
    "garenne-delay-ms": "1500",
    "garenne-timeout-ms": "60000",
    "garenne-key": "k",
    "garenne-group": "g",
  };
  for (const [name, value] of Object.entries(expected)) assert.equal(headers[name], value, name);
});

test("a request that was not served is repeated with the same key", async (t) => {
  const { url, requests } = await serve(t, "close", { status: 503, headers: { "retry-after": "0" }, body: {} }, accepted);
  assert.equal(await new Gateway(url).publish("k", 1), "a1");
  assert.equal(requests.length, 3);
  assert.equal(new Set(requests.map(({ headers }) => headers["idempotency-key"])).size, 1);
});

test("a refusal is an error with its code", async (t) => {
  const body = { title: "Unprocessable Entity", status: 422, code: "unknown-kind", detail: "no lane takes it" };
  const { url, requests } = await serve(t, { status: 422, body });
  await assert.rejects(new Gateway(url).publish("k", 1), (error) => {
    assert.ok(error instanceof GatewayError);
    assert.deepEqual([error.status, error.code, error.message], [422, "unknown-kind", "no lane takes it"]);
    return true;
  });
  assert.equal(requests.length, 1);
});

test("repetitions end", async (t) => {
  const { url } = await serve(t, { status: 429, headers: { "retry-after": "60" }, body: {} });
  await assert.rejects(new Gateway(url, { retryForMs: 1_000 }).publish("k", 1), { status: 429 });
});

test("a caller can give up", async () => {
  const publish = new Gateway("http://127.0.0.1:1").publish("k", 1, { signal: AbortSignal.timeout(50) });
  await assert.rejects(publish, { name: /AbortError|TimeoutError/ });
});

test("wrong arguments are refused before a request", async () => {
  assert.throws(() => new Gateway("no url"), TypeError);
  await assert.rejects(new Gateway("http://127.0.0.1:1").publish("k", 1, { key: "a\nb" }), TypeError);
  await assert.rejects(new Gateway("http://127.0.0.1:1").publish("k", 1n), /the payload is not JSON/);
  await assert.rejects(new Gateway("http://127.0.0.1:1").publish("k", 1, { delayMs: -1 }), RangeError);
});

test("both module systems have the same classes", () => {
  assert.equal(createRequire(import.meta.url)("../index.cjs").GatewayError, GatewayError);
});
