// The page of the fleet: takes the state that the server sends every two seconds, and passes it to the sections. Elements
// are updated in place, so that focus and selection are kept.
import { parameter, remember } from "/address.js";
import { loadAlarms } from "/alarms.js";
import { short } from "/charts.js";
import { $, set } from "/dom.js";
import { drawGateways } from "/gateways.js";
import { drawGroups } from "/groups.js";
import { drawJobs } from "/jobs.js";
import { drawKinds } from "/kinds.js";
import { drawLanes } from "/lanes.js";
import { drawLetters, loadLetters, readLetters } from "/letters.js";
import { ask, isLoggedOut, login, session } from "/session.js";
import { loadStored } from "/stored.js";
import { offerKinds } from "/test_task.js";
import { drawTiles } from "/tiles.js";
import { drawVerdict } from "/verdict.js";
import { drawWorkers, readWorkers } from "/workers.js";

const HOUR = 3600000, RETRY = 2000;
const fleet = { now: null, points: [], minutes: 15 };

function render() {
  const { now } = fleet;
  if (!now) return;
  set($("where"), `${now.prefix} at ${now.broker}`);
  for (const draw of [drawVerdict, drawTiles, drawGroups, drawLanes, drawKinds, drawWorkers, drawGateways, offerKinds]) draw(fleet);
  const title = now.point?.dead ? `(${short(now.point.dead)}) Garenne` : "Garenne";
  if (document.title !== title) document.title = title;
}

const loadCurves = () => loadStored(fleet.minutes, render);

function live(state, text) {
  $("live").className = "live " + state;
  set($("live").lastChild, text);
}

// The state of the address.
function read() {
  const given = parameter("range", "15");
  const input = document.querySelector(`input[name=span][value="${CSS.escape(given)}"]`) ?? document.querySelector("input[name=span][value='15']");
  input.checked = true;
  fleet.minutes = Number(input.value);
  readWorkers();
  readLetters();
  loadCurves();
  render();
}

let feed, lastHeard = 0, knownDead = -1;

function take(now) {
  // What is not heard of is unknown, and not none.
  now.unknown = { queues: now.queue_problem !== null, workers: !now.is_heard };
  // A worker that never sent a heartbeat has an id and a state only.
  const unheard = { host: "", lanes: {}, tasks: [], connections: {}, running: 0 };
  now.workers = now.workers.map((worker) => ({ ...unheard, ...worker }));
  now.gateways = now.gateways.map((gateway) => ({ ...gateway, connections: {}, requests: {}, ...gateway.gateway }));
  const unread = { broker: "", connected: false, subscriptions: [], in_flight: 0, messages: {} };
  now.bridges = now.bridges.map((bridge) => ({ ...bridge, ...unread, ...bridge.bridge }));
  fleet.now = now;
  lastHeard = Date.now();
  // The dashboard answers, but what it shows may be old.
  const { queues, workers } = now.unknown;
  live(queues || workers ? "off" : "on", queues || workers ? "figures are old" : "live");
  const { points } = fleet, last = points.at(-1);
  if (now.point && (!last || now.point.at > last.at)) {
    points.push(now.point);
    while (points.length && points[0].at < now.at - HOUR) points.shift();
  }
  render();
  drawLetters(now.at);
  if (now.point && now.point.dead !== knownDead) {
    knownDead = now.point.dead;
    loadLetters(knownDead);
  }
}

async function connect() {
  fleet.points = await ask("/api/history").catch(() => fleet.points);
  feed?.close();
  feed = new EventSource("/api/events");
  feed.addEventListener("now", (event) => take(JSON.parse(event.data)));
  feed.addEventListener("jobs", (event) => drawJobs(JSON.parse(event.data), () => loadLetters()));
  feed.onerror = () => {
    live("off", "disconnected");
    // The browser tries again after a lost connection, but not after another answer, such as a proxy's 502.
    if (feed.readyState === EventSource.CLOSED) setTimeout(connect, RETRY);
  };
  feed.onopen = async () => {
    // After a pause, fetch the points that were missed.
    if (lastHeard && Date.now() - lastHeard > 15000) fleet.points = await ask("/api/history").catch(() => fleet.points);
  };
}

for (const input of document.querySelectorAll("input[name=span]")) {
  input.addEventListener("change", () => {
    fleet.minutes = Number(input.value);
    remember({ range: input.value === "15" ? null : input.value });
    loadCurves();
    render();
  });
}
addEventListener("popstate", read);
for (const event of ["session", "alarms"]) document.addEventListener(event, render);

const SECTIONS = { l: "lanes", k: "kinds", w: "workers", a: "alarms", d: "dead", g: "gateways" };
addEventListener("keydown", (event) => {
  const writes = event.target.matches("input:not([type=checkbox], [type=radio]), textarea, select");
  if (writes || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const section = SECTIONS[event.key] && $(SECTIONS[event.key]);
  if (event.key === "/") { event.preventDefault(); $("filter").focus(); }
  else if (section && !section.hidden) {
    section.scrollIntoView();
    // The first button that does something with a row, else the section itself.
    const first = [...section.querySelectorAll("tbody button:not(.condition, .fold *), article button")].find((it) => it.checkVisibility() && !it.disabled);
    (first ?? section).focus({ preventScroll: true });
  }
});

// A dashboard that requires a login shows nothing before it.
async function start() {
  read();
  await session().catch(() => {});
  while (isLoggedOut()) {
    live("off", "not logged in");
    if (!(await login(true))) return;
  }
  connect();
  loadAlarms().then(loadCurves);
}

start();
