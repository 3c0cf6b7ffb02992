// What workers have stored of the lanes in Postgres: older than what the dashboard remembers, and there after its restart.
import { alarmSummary } from "/alarms.js";
import { $, set } from "/dom.js";
import { ask } from "/session.js";

const RANGES = { 1440: "day", 10080: "week" }, INTERVAL = 60000;
const NEEDED = "Curves of a day and a week need Postgres: workers with the sink postgres store them, and the dashboard reads them with --postgres-url.";
let range = null, points = [], timer;

// The points in memory, and before them the stored ones.
export function withStored(memory) {
  const first = memory[0]?.at ?? Infinity;
  return [...points.filter(({ at }) => at < first), ...memory];
}

// A point in the middle of each step. What nobody stored is a gap.
function pointsOf({ from, step_seconds: step, lanes }) {
  const named = Object.entries(lanes), begin = Date.parse(from);
  return Array.from({ length: named[0]?.[1].ready.length ?? 0 }, (_, n) => {
    const known = named.filter(([, of]) => of.ready[n] !== null && of.unacked[n] !== null);
    const figures = known.map(([name, of]) => [name, { ready: of.ready[n], unacked: of.unacked[n], stored_rate: of.settled[n] / step }]);
    return { at: begin + (n + 0.5) * step * 1000, gap: 1500 * step, lanes: Object.fromEntries(figures) };
  });
}

// Loads the stored points of so many minutes now, and again each minute.
export async function loadStored(minutes, draw) {
  clearTimeout(timer);
  const wanted = RANGES[minutes] ?? "hour", { configured, known } = alarmSummary;
  if (wanted !== range) points = [];
  range = wanted;
  let note = "";
  if (configured) {
    try {
      const answer = await ask(`/v1/lanes/history?range=${wanted}`);
      // Another range was chosen meanwhile.
      if (wanted !== range) return;
      points = pointsOf(answer);
      if (!points.length) note = `No worker has stored a curve of this ${wanted}.`;
    } catch (error) {
      note = `Stored curves are unknown: ${error.message}`;
    }
  } else if (known) note = NEEDED;
  if (wanted !== range) return;
  set($("stored-note"), wanted === "hour" ? "" : note);
  clearTimeout(timer);
  timer = setTimeout(() => loadStored(minutes, draw), INTERVAL);
  draw();
}
