// Renders the state that the server sends every two seconds. Elements are updated in place, so that focus and
// selection are kept. All text is set as text, never as HTML.
import { Areas, short, span, spark } from "/charts.js";
import { $, h, set, tip, visible } from "/dom.js";

let csrf = null, known = {}, points = [], now = null, minutes = 15, filter = "";

function label(node, text) {
  node.setAttribute("aria-label", visible(text));
}

function button(text, css, act) {
  const node = h("button", css, text);
  node.type = "button";
  node.addEventListener("click", act);
  return node;
}

// Keeps one element per item: creates, updates and removes elements. An element moves only if the order changed, because
// a moved element loses the focus.
function keyed(box, items, key, make, update) {
  box.made ??= new Map();
  const wanted = new Map(items.map((item) => [key(item), item]));
  for (const [name, node] of box.made) {
    if (!wanted.has(name)) { node.remove(); box.made.delete(name); }
  }
  let place = box.firstElementChild;
  for (const [name, item] of wanted) {
    let node = box.made.get(name);
    if (!node) box.made.set(name, (node = make(item)));
    update(node, item);
    if (node === place) place = place.nextElementSibling;
    else box.insertBefore(node, place);
  }
}

let toastTimer;
function toast(text, bad = false) {
  const node = $("toast");
  node.textContent = visible(text);
  node.className = "show" + (bad ? " bad" : "");
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => { node.className = bad ? "bad" : ""; }, bad ? 7000 : 3500);
}

// --- requests ------------------------------------------------------------------------------------------

async function ask(path, options = {}) {
  const answer = await fetch(path, { credentials: "same-origin", ...options });
  if (!answer.ok) {
    const problem = await answer.json().catch(() => ({}));
    if (answer.status === 401) await session();
    throw new Error(problem.detail ?? `${answer.status} ${answer.statusText}`);
  }
  return answer.status === 204 ? null : answer.json();
}

async function act(path, body, done) {
  if (!csrf && !(await login())) return;
  try {
    const headers = { "content-type": "application/json", "x-garenne-csrf": csrf };
    const answer = await ask(path, { method: "POST", headers, body: JSON.stringify(body ?? {}) });
    const text = typeof done === "function" ? done(answer) : done;
    toast(answer?.remark ? `${text}. ${answer.remark}` : text);
    return true;
  } catch (error) {
    toast(error.message, true);
  }
}

// Waits until the user has closed a dialog. True if it was confirmed.
function closed(dialog) {
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }));
}

function confirmed(title, text) {
  const dialog = $("confirm");
  set($("confirm-title"), title);
  set($("confirm-text"), text);
  return closed(dialog);
}

// Enter activates the first submit button of a form, which must not be Cancel.
for (const cancel of document.querySelectorAll("dialog .cancel")) {
  cancel.addEventListener("click", () => cancel.closest("dialog").close("cancel"));
}

async function session() {
  known = await ask("/api/session");
  csrf = known.commands ? known.csrf : null;
  const account = $("account"), closed = !known.possible;
  account.disabled = closed || known.by_proxy;
  account.title = closed ? "Commands are disabled: the server has no login" : known.name ? `${known.name}, ${known.role}` : "";
  set(account, known.by_proxy ? known.name : known.name ? "Log out" : closed ? "Read only" : "Log in");
  $("group-form").hidden = !csrf;
  document.querySelectorAll(".auth").forEach((node) => { node.hidden = !csrf; });
  if (now) render();
}

// Whether the sender may give commands then. `viewing`: a login as a viewer is enough.
async function login(viewing = false) {
  if (!known.possible) { toast("Commands are disabled: start the server with --operators", true); return false; }
  if (known.name && !viewing) { toast(`${known.name} may only view`, true); return false; }
  const dialog = $("login"), named = known.with === "password";
  set($("login-text"), known.required ? "This dashboard shows nothing without a login." : "Commands such as stop, drain and replay need a login. Viewing does not.");
  set($("token-label"), named ? "Password" : "Admin token");
  $("name").hidden = $("name-label").hidden = !named;
  $("name").required = named;
  set($("login-error"), "");
  $("token").value = "";
  for (;;) {
    dialog.returnValue = "cancel";
    dialog.showModal();
    const chosen = await new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true }));
    if (chosen !== "login") return false;
    try {
      const secret = $("token").value;
      const body = JSON.stringify(named ? { name: $("name").value, password: secret } : { token: secret });
      await ask("/api/login", { method: "POST", headers: { "content-type": "application/json" }, body });
      await session();
      return viewing ? known.name !== null : csrf !== null;
    } catch (error) {
      set($("login-error"), error.message);
    } finally {
      $("token").value = "";
    }
  }
}

$("account").addEventListener("click", async () => {
  if (known.name) {
    const headers = { "content-type": "application/json", "x-garenne-csrf": known.csrf };
    await ask("/api/logout", { method: "POST", headers, body: "{}" }).then(() => toast("Logged out"), (error) => toast(error.message, true));
    if (known.required) location.reload();
    else await session();
  } else if (await login(true)) toast("Logged in");
});

// --- state ---------------------------------------------------------------------------------------------

const many = (n, word) => `${short(n)} ${word}${n === 1 ? "" : "s"}`;

function tiles() {
  const point = now.point, count = (state) => now.workers.filter((worker) => worker.state === state).length;
  const lanes = Object.values(point?.lanes ?? {}), sum = (of) => lanes.reduce((n, lane) => n + of(lane), 0);
  const slots = sum((lane) => lane.slots);
  const running = now.workers.filter((worker) => worker.state === "open").reduce((n, worker) => n + worker.running, 0);
  const silent = count("silent"), quiet = count("quiet") + count("stopping"), open = count("open");
  const all = [
    { name: "workers", value: short(open + quiet), css: silent ? "bad" : open ? "" : "warn", note: silent ? `${silent} silent` : quiet ? `${quiet} quiet or stopping` : `${short(running)} of ${short(slots)} slots busy`, bad: silent },
    { name: "backlog", value: point ? short(sum((lane) => lane.backlog)) : "–", note: point ? `${short(sum((lane) => lane.retrying))} waiting for a retry` : "" },
    { name: "arrivals per second", value: point ? short(sum((lane) => lane.arrival_rate)) : "–", note: "last minute" },
    { name: "removals per second", value: point ? short(sum((lane) => lane.removal_rate)) : "–", note: "last minute" },
    { name: "dead letters", value: point ? short(point.dead) : "–", css: point?.dead ? "bad" : "", note: point?.quarantine ? `${short(point.quarantine)} in quarantine` : "" },
    { name: "unroutable messages", value: point ? short(point.unroutable) : "–", css: point?.unroutable ? "warn" : "", note: point?.unroutable ? "no binding matches" : "" },
    { name: "sensor connections", value: short(now.gateways.reduce((n, gateway) => n + Object.values(gateway.connections).reduce((a, b) => a + b, 0), 0)), note: many(now.gateways.filter((it) => it.state === "open").length, "gateway") },
  ];
  keyed($("tiles"), all, (tile) => tile.name, () => {
    const node = h("div", "tile");
    node.append(h("span"), h("b"), h("em"));
    return node;
  }, (node, tile) => {
    node.className = "tile " + (tile.css ?? "");
    set(node.children[0], tile.name);
    set(node.children[1], tile.value);
    set(node.children[2], tile.note);
    node.children[2].className = tile.bad ? "bad" : "";
  });
}

function backlog(lane) {
  if (lane.backlog === 0) return "empty";
  return lane.backlog_seconds === null ? (lane.slots ? "?" : "no workers") : span(lane.backlog_seconds);
}

function lanes() {
  const all = Object.entries(now.point?.lanes ?? {});
  keyed($("lane-cards"), all, ([name]) => name, ([name]) => {
    const node = h("article", "card"), head = h("header"), big = h("span", "big");
    big.append(h("b"), document.createTextNode(" of backlog"));
    head.append(h("h3", "", name), big);
    node.chart = new Areas(`Messages in lane ${name} over time`, [
      { name: "unacked", css: "area-held", of: (point) => point.lanes[name]?.unacked ?? 0 },
      { name: "ready", css: "area-ready", of: (point) => point.lanes[name]?.ready ?? 0 },
    ], tip);
    const figures = h("dl", "figures");
    node.figures = ["ready", "unacked", "retrying", "arrivals/s", "removals/s", "service time", "busy slots"].map((title, n) => {
      const pair = h("div");
      pair.append(h("dt", ["ready", "held"][n] ?? "", title), h("dd"));
      figures.append(pair);
      return pair.lastChild;
    });
    node.meter = h("div", "meter");
    node.meter.append(h("i"));
    node.append(head, node.chart.node, figures, node.meter);
    node.big = big;
    return node;
  }, (node, [name, lane]) => {
    const unserved = lane.backlog > 0 && !lane.slots;
    set(node.big.firstChild, backlog(lane));
    node.big.lastChild.data = lane.backlog && !unserved ? " of backlog" : "";
    node.big.className = unserved ? "big bad" : "big";
    const open = now.workers.filter((worker) => worker.state === "open").map((worker) => worker.lanes[name]);
    const busy = open.reduce((n, own) => n + (own?.busy ?? 0), 0);
    const texts = [short(lane.ready), short(lane.unacked), short(lane.retrying), short(lane.arrival_rate), short(lane.removal_rate), span(lane.service_seconds), `${short(busy)} / ${short(lane.slots)}`];
    texts.forEach((text, n) => set(node.figures[n], text));
    const share = lane.slots ? busy / lane.slots : 0;
    node.meter.firstChild.style.width = Math.min(100, share * 100) + "%";
    node.meter.className = "meter" + (share > 0.95 ? " full" : "");
    node.chart.draw(points, minutes, now.at);
  });
}

function kinds() {
  const rows = Object.entries(now.point?.kinds ?? {});
  const running = {};
  for (const worker of now.workers) for (const task of worker.tasks) running[task.kind] = (running[task.kind] ?? 0) + 1;
  $("kind-table").hidden = rows.length === 0;
  $("no-kinds").hidden = rows.length > 0;
  const from = now.at - minutes * 60000, shown = points.filter((point) => point.at >= from);
  keyed($("kind-table").tBodies[0], rows, ([name]) => name, ([name]) => {
    const row = h("tr");
    row.append(h("td", "", name), ...["n", "n", "", "n", "n", "n", "", "n", "n"].map((css) => h("td", css)));
    return row;
  }, (row, [name, kind]) => {
    const cell = row.children;
    set(cell[1], short(kind.done_rate));
    set(cell[2], short(kind.failed_rate));
    cell[2].className = kind.failed_rate > 0 ? "n bad" : "n";
    set(cell[4], span(kind.p50));
    set(cell[5], span(kind.p95));
    set(cell[6], span(kind.p99));
    set(cell[8], short(running[name] ?? 0));
    set(cell[9], short(kind.dead));
    cell[9].className = kind.dead > 0 ? "n bad" : "n";
    const of = (what) => (point) => point.kinds[name]?.[what] ?? null;
    cell[3].replaceChildren(spark(`Done and failed ${name} per second`, shown, [{ css: "", of: of("done_rate") }, { css: "bad", of: of("failed_rate") }]));
    cell[7].replaceChildren(spark(`95th percentile of ${name}`, shown, [{ css: "soft", of: of("p95") }]));
  });
}

// --- workers -------------------------------------------------------------------------------------------

function matches(worker) {
  const words = [worker.id, worker.state, worker.host, ...worker.tasks.flatMap((task) => [task.id, task.kind, task.group ?? ""])];
  return filter === "" || words.some((word) => word.toLowerCase().includes(filter));
}

function makeWorker(worker) {
  const node = h("article", "card worker"), head = h("header");
  node.pill = h("span", "pill");
  head.append(h("h3", "", worker.id), node.pill);
  node.meta = h("p", "meta");
  node.slots = h("div", "slots");
  node.tasks = h("div");
  node.more = h("p", "more");
  const acts = h("div", "acts auth");
  acts.hidden = !csrf;
  const tell = (word, text) => () => act(`/api/workers/${encodeURIComponent(worker.id)}/${word}`, {}, text);
  node.pause = button("Quiet", "small", () => tell(node.isQuiet ? "resume" : "quiet", node.isQuiet ? `${worker.id} resumes` : `${worker.id} takes no more tasks`)());
  const drain = button("Drain", "small danger", async () => {
    const text = "The worker finishes or requeues its tasks and exits. Its supervisor may start it again.";
    if (await confirmed(`Drain ${worker.id}?`, text)) await tell("drain", `${worker.id} is shutting down`)();
  });
  label(drain, `Drain ${worker.id}`);
  acts.append(node.pause, drain);
  node.append(head, node.meta, node.slots, node.tasks, node.more, acts);
  return node;
}

// The groups whose tasks the worker holds.
function groupsOf(worker) {
  const groups = Object.entries(worker.groups ?? {}).map(([name, group]) => `${name} ${group.running} running +${group.queued}`);
  return groups.length ? `groups: ${groups.join(", ")}` : "";
}

function updateWorker(node, worker) {
  node.className = "card worker " + worker.state;
  node.pill.className = "pill " + worker.state;
  set(node.pill, worker.state);
  node.isQuiet = worker.state === "quiet";
  set(node.pause, node.isQuiet ? "Resume" : "Quiet");
  label(node.pause, `${node.isQuiet ? "Resume" : "Quiet"} ${worker.id}`);
  const heard = worker.heard_ms_ago === null ? "no heartbeat yet" : worker.state === "silent" ? `last heartbeat ${span(worker.heard_ms_ago / 1000)} ago` : `up ${span(Math.max(0, now.at - worker.started_at) / 1000)}`;
  const host = worker.host && !worker.id.startsWith(worker.host) ? [worker.host] : [];
  const reconnects = Object.values(worker.connections).reduce((sum, connection) => sum + connection.epoch, 0);
  const lost = reconnects ? [`${reconnects} reconnects`] : [];
  set(node.meta, [heard, ...host, worker.version && `v${worker.version}`, ...lost, worker.blocked && "publishing blocked", worker.paused?.length && `paused: ${worker.paused.join(", ")}`, groupsOf(worker)].filter(Boolean).join(" · "));
  const sinks = Object.values(worker.sinks ?? {}).filter((sink) => !sink.up);
  const lanes = Object.entries(worker.lanes).filter(([name, lane]) => name !== "quarantine" || lane.busy + lane.queued > 0);
  node.slots.replaceChildren(...lanes.flatMap(([name, lane]) => {
    const squares = h("span", "squares");
    squares.title = `${lane.busy} of ${lane.slots} slots busy, ${lane.stuck} stuck`;
    for (let n = 0; n < Math.min(lane.slots, 48); n++) squares.append(h("i", n < lane.stuck ? "stuck" : n < lane.busy ? "busy" : ""));
    const row = [h("span", "", name), squares, h("span", "wait", `${lane.busy}/${lane.slots}` + (lane.queued ? ` +${short(lane.queued)}` : ""))];
    const notes = [lane.trouble && `not consuming: ${lane.trouble}`].filter(Boolean);
    return notes.length ? [...row, h("span", "note", notes.join(" · "))] : row;
  }), ...sinks.map((sink) => h("span", "note", sink.trouble)));
  keyed(node.tasks, worker.tasks.slice(0, 5), (task) => task.id, (task) => {
    const row = h("div", "task");
    row.time = h("span", "for");
    row.end = button("Stop", "small danger auth", async () => {
      const text = `${task.kind} ${task.id} is interrupted and becomes a dead letter with reason stopped.`;
      if (await confirmed("Stop this task?", text)) await act("/api/tasks/stop", { id: task.id }, `Stopping ${task.id}`);
    });
    label(row.end, `Stop task ${task.id}`);
    row.end.hidden = !csrf;
    row.bar = h("div", "meter");
    row.bar.append(h("i"));
    row.append(h("span", "", task.kind + (task.group ? `, group ${task.group}` : "")), row.time, row.end, h("span", "id", task.id), row.bar);
    return row;
  }, (row, task) => {
    set(row.time, span(task.seconds) + (task.stopping ? ", stopping" : ""));
    row.time.className = task.seconds > 60 ? "for long" : "for";
    row.bar.hidden = task.progress === undefined;
    row.bar.firstChild.style.width = (task.progress ?? 0) * 100 + "%";
  });
  const hidden = worker.running - Math.min(worker.tasks.length, 5);
  set(node.more, hidden > 0 ? `and ${short(hidden)} more` : "");
}

function workers() {
  const shown = now.workers.filter(matches);
  $("no-workers").hidden = now.workers.length > 0;
  keyed($("worker-cards"), shown, (worker) => worker.id, makeWorker, updateWorker);
}

function gateways() {
  $("no-gateways").hidden = now.gateways.length > 0;
  $("gateway-table").hidden = now.gateways.length === 0;
  keyed($("gateway-table").tBodies[0], now.gateways, (gateway) => gateway.id, (gateway) => {
    const row = h("tr"), state = h("td");
    row.append(h("td", "id", gateway.id), state, h("td"), h("td"), h("td"));
    state.append(h("span", "pill"));
    return row;
  }, (row, gateway) => {
    const list = (of) => Object.entries(of).map(([name, n]) => `${short(n)} ${name}`).join(", ") || "none";
    const pill = row.children[1].firstChild;
    pill.className = "pill " + gateway.state;
    set(pill, gateway.state);
    set(row.children[2], list(gateway.connections));
    set(row.children[3], Object.entries(gateway.requests).map(([status, n]) => `${status}: ${short(n)}`).join(", ") || "none");
    set(row.children[4], gateway.version);
  });
}

// --- dead letters --------------------------------------------------------------------------------------

let shownDead = -1, loading = false, deadPage = 1;

async function loadDead() {
  if (loading) return;
  loading = true;
  try {
    const result = await ask(`/api/dead?page=${deadPage}`);
    deadPage = Math.min(deadPage, result.pages);
    showDead(result);
    // Another page was chosen while this one was read, or this one is beyond the last.
    if (deadPage !== result.page) setTimeout(loadDead);
    // The server caches the list for five seconds, and dead letters arrive while it reads them.
    if (!result.more && result.read !== (now?.point?.dead ?? 0)) setTimeout(loadDead, 5500);
  } catch (error) {
    set($("dead-note"), error.message);
  } finally {
    loading = false;
  }
}

const replayed = (answer) => {
  const failures = Object.entries(answer.failures), failed = failures.reduce((sum, [, kept]) => sum + kept.count, 0);
  const why = failures.length ? `, ${failed} failed: ${failures[0][0]} (${failures[0][1].letters.slice(0, 3).join(", ")})` : "";
  return `${answer.replayed} replayed` + why + (answer.missed ? `, ${answer.missed} consumed by another program` : "");
};

function deadNote(result) {
  const page = result.pages > 1 ? `, page ${result.page} of ${result.pages}` : "";
  const others = result.ungrouped ? `, ${short(result.ungrouped)} of further kinds` : "";
  const all = result.more ? `the oldest ${short(result.read)}` : `${short(result.read)} in total`;
  return result.read ? `${all}, newest first${page}${others}` : "";
}

function showDead(result) {
  $("no-dead").hidden = result.letters.length > 0;
  $("dead-table").hidden = result.letters.length === 0;
  set($("dead-note"), deadNote(result));
  $("newer").hidden = $("older").hidden = result.pages === 1;
  $("newer").disabled = result.page === 1;
  $("older").disabled = result.page >= result.pages;
  keyed($("dead-groups"), result.groups, (group) => group.kind + " " + group.reason, (group) => {
    const chip = h("span", "chip");
    const again = button("Replay all", "small auth", async () => {
      const text = `Every dead letter of kind ${group.kind} with reason ${group.reason} is published again with its attempts reset.`;
      if (await confirmed(`Replay ${group.kind}?`, text) && await act("/api/dead/replay", { kind: group.kind, reason: group.reason }, replayed)) await loadDead();
    });
    label(again, `Replay all ${group.kind} with reason ${group.reason}`);
    again.hidden = !csrf;
    chip.append(h("b"), h("span", "", `${group.kind}, ${group.reason}`), again);
    return chip;
  }, (chip, group) => set(chip.firstChild, short(group.count)));
  // Several dead letters can be equal in all properties. Each one gets a row.
  const rows = new Map();
  for (const letter of result.letters) {
    const same = `${letter.id} ${letter.kind} ${letter.died_at} ${letter.attempts}`;
    rows.set(same, (rows.get(same) ?? 0) + 1);
    letter.row = `${same} ${rows.get(same)}`;
  }
  keyed($("dead-table").tBodies[0], result.letters, (letter) => letter.row, (letter) => {
    const row = h("tr"), last = h("td");
    const again = button("Replay", "small auth", async () => {
      if (await act("/api/dead/replay", { id: letter.id }, replayed)) await loadDead();
    });
    label(again, `Replay ${letter.id}`);
    again.hidden = !csrf;
    if (letter.id) last.append(again);
    row.append(h("td", "id", letter.id ?? "–"), h("td", "", letter.kind + (letter.group ? `, group ${letter.group}` : "")), h("td"), h("td", "error", letter.error ?? ""), h("td", "n", String(letter.attempts)), h("td", "id", letter.worker ?? "–"), h("td", "n"), last);
    row.children[2].append(h("span", "pill silent", letter.reason));
    return row;
  }, (row, letter) => set(row.children[6], letter.died_at ? span(Math.max(0, result.at - Date.parse(letter.died_at)) / 1000) + " ago" : "–"));
}

$("refresh").addEventListener("click", loadDead);
for (const [id, step] of [["newer", -1], ["older", 1]]) {
  $(id).addEventListener("click", () => { deadPage = Math.max(1, deadPage + step); loadDead(); });
}

// --- alarms --------------------------------------------------------------------------------------------

const ALARMS_INTERVAL = 5000;
let alarmsTimer;

async function loadAlarms() {
  clearTimeout(alarmsTimer);
  let interval = ALARMS_INTERVAL;
  try {
    const result = await ask("/api/alarms");
    $("alarms").hidden = !result.configured;
    // Without a database there is nothing to ask for again.
    if (!result.configured) interval = null;
    else showAlarms(result);
  } catch (error) {
    $("alarms").hidden = false;
    set($("alarms-note"), error.message);
  } finally {
    if (interval) alarmsTimer = setTimeout(loadAlarms, interval);
  }
}

function alarmState(alarm) {
  const words = [alarm.missing ? "never sent" : "open"];
  if (alarm.acked_by) words.push(`acknowledged by ${alarm.acked_by}`);
  if (alarm.snoozed_until) words.push(`snoozed until ${new Date(alarm.snoozed_until).toLocaleString()}`);
  if (alarm.in_maintenance) words.push("in maintenance");
  return words.join(", ");
}

function showAlarms(result) {
  $("no-alarms").hidden = result.alarms.length > 0;
  $("alarm-table").hidden = result.alarms.length === 0;
  set($("alarms-note"), result.more ? `the newest ${short(result.alarms.length)}` : result.alarms.length ? many(result.alarms.length, "open alarm") : "");
  keyed($("alarm-table").tBodies[0], result.alarms, (alarm) => alarm.id, (alarm) => {
    const row = h("tr"), last = h("td"), acts = h("div", "acts auth");
    const change = async (word, body, done) => { if (await act(`/api/alarms/${encodeURIComponent(alarm.id)}/${word}`, body, done)) await loadAlarms(); };
    const name = `${alarm.rule} of ${alarm.device} ${alarm.metric}`;
    row.ack = button("Acknowledge", "small", async () => {
      await change("ack", {}, `${name} is acknowledged`);
      // A button that is disabled loses the focus.
      if (row.ack.disabled) row.snooze.focus();
    });
    row.snooze = button("Snooze", "small", async () => {
      if (row.isSnoozed) return change("unsnooze", {}, `${name} is snoozed no more`);
      set($("snooze-title"), `Snooze ${name}`);
      if (await closed($("snooze"))) await change("snooze", { for: $("snooze-time").value }, `${name} is snoozed`);
    });
    row.nameOf = name;
    label(row.ack, `Acknowledge ${name}`);
    acts.hidden = !csrf;
    acts.append(row.ack, row.snooze);
    last.append(acts);
    row.append(h("td"), h("td", "id", alarm.device), h("td", "", alarm.metric), h("td", "", alarm.rule), h("td", "n"), h("td"), h("td"), last);
    row.children[0].append(h("span"));
    ["severity", "device", "metric", "rule", "value", "since", "state"].forEach((title, n) => { row.children[n].dataset.name = title; });
    row.children[3].title = visible(alarm.says ?? "");
    return row;
  }, (row, alarm) => {
    const pill = row.children[0].firstChild;
    pill.className = "pill " + alarm.severity;
    set(pill, alarm.severity);
    set(row.children[4], alarm.value === null ? "–" : `${alarm.value}${alarm.unit ? " " + alarm.unit : ""}`);
    set(row.children[5], `${new Date(alarm.since).toLocaleString()} (${span(Math.max(0, result.at - Date.parse(alarm.since)) / 1000)})`);
    set(row.children[6], alarmState(alarm));
    row.isSnoozed = Boolean(alarm.snoozed_until);
    row.ack.disabled = Boolean(alarm.acked_by);
    set(row.snooze, row.isSnoozed ? "End snooze" : "Snooze");
    label(row.snooze, `${row.isSnoozed ? "End the snooze of" : "Snooze"} ${row.nameOf}`);
  });
}

// --- page ----------------------------------------------------------------------------------------------

function problems() {
  const all = [];
  if (now.fleet_problem) all.push(`No heartbeats from workers: ${now.fleet_problem}`);
  if (now.queue_problem) all.push(`Queues cannot be read: ${now.queue_problem}`);
  if (now.queues?.missing.length) all.push(`Missing: ${now.queues.missing.join(", ")}. Run garenne topology apply to create them.`);
  for (const [name, lane] of Object.entries(now.point?.lanes ?? {})) if (lane.ready > 0 && lane.consumers === 0) all.push(`Lane ${name}: ${short(lane.ready)} tasks are waiting and no worker consumes them.`);
  keyed($("problems"), all, (text) => text, (text) => h("div", "", text), () => {});
}

function render() {
  set($("where"), `${now.prefix} at ${now.broker}`);
  problems();
  tiles();
  lanes();
  kinds();
  workers();
  gateways();
  document.title = now.point?.dead ? `(${short(now.point.dead)}) Garenne` : "Garenne";
}

function live(state, text) {
  $("live").className = "live " + state;
  set($("live").lastChild, text);
}

let feed, lastHeard = 0;
async function connect() {
  points = await ask("/api/history").catch(() => points);
  feed?.close();
  feed = new EventSource("/api/events");
  feed.addEventListener("now", (event) => {
    now = JSON.parse(event.data);
    // A worker that never sent a heartbeat has an id and a state only.
    const unheard = { host: "", lanes: {}, tasks: [], connections: {}, running: 0 };
    now.workers = now.workers.map((worker) => ({ ...unheard, ...worker }));
    now.gateways = now.gateways.map((gateway) => ({ ...gateway, connections: {}, requests: {}, ...gateway.gateway }));
    lastHeard = Date.now();
    live("on", "live");
    const last = points.at(-1);
    if (now.point && (!last || now.point.at > last.at)) {
      points.push(now.point);
      while (points.length && points[0].at < now.at - 3600000) points.shift();
    }
    render();
    if ((now.point?.dead ?? 0) !== shownDead && now.point) { shownDead = now.point.dead; loadDead(); }
  });
  feed.onerror = () => live("off", "disconnected");
  feed.onopen = async () => {
    // After a pause, fetch the points that were missed.
    if (lastHeard && Date.now() - lastHeard > 15000) points = await ask("/api/history").catch(() => points);
  };
}

for (const input of document.querySelectorAll("input[name=span]")) {
  input.addEventListener("change", () => { minutes = Number(input.value); if (now) render(); });
}
$("filter").addEventListener("input", (event) => { filter = event.target.value.trim().toLowerCase(); if (now) workers(); });
$("group-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const word = event.submitter?.name ?? "pause", group = $("group-name").value.trim();
  if (word === "stop" && !(await confirmed(`Stop group ${group}?`, "Every task of the group that was published before now becomes a dead letter with reason stopped."))) return;
  await act(`/api/groups/${encodeURIComponent(group)}/${word}`, {}, `Group ${group}: ${word}`);
});
addEventListener("keydown", (event) => {
  if (event.target.matches("input, textarea") || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const section = { l: "lanes", k: "kinds", w: "workers", a: "alarms", d: "dead" }[event.key];
  if (event.key === "/") { event.preventDefault(); $("filter").focus(); }
  else if (section) { $(section).scrollIntoView(); $(section).querySelector("button:not([hidden]), input")?.focus({ preventScroll: true }); }
});

// A dashboard that requires a login shows nothing before it.
async function start() {
  await session().catch(() => {});
  while (known.required && !known.name) {
    live("off", "not logged in");
    if (!(await login(true))) return;
  }
  connect();
  loadAlarms();
}

start();
