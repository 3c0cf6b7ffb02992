// What is wrong with the fleet, the worst first.
import { span } from "/charts.js";
import { $, h, keyed, set, visible } from "/dom.js";

// The section of the page that shows more of a problem.
const SECTIONS = {
  "silent-worker": "workers", "restart-loop": "workers", "clock-skew": "workers", "hung-tasks": "workers", "sink-down": "workers",
  "no-heartbeats": "workers", "database-unavailable": "alarms", "dead-letters": "dead", "dead-letters-growing": "dead",
  "bridge-disconnected": "gateways", "spool-waiting": "gateways", "spool-segments-aside": "gateways",
};

// Problems that are shown until the others are asked for.
const SHOWN = 6;
let showsAll = false, drawn = null;

function lasted({ since }, now) {
  if (since === null) return "";
  return now - since < 1000 ? " (new)" : ` (for ${span((now - since) / 1000)})`;
}

// Text with commands between backquotes.
function setStep(node, text) {
  if (node.textContent === visible(text).replaceAll("`", "")) return;
  node.replaceChildren(...text.split("`").map((part, n) => h(n % 2 ? "code" : "span", "", part)));
}

// The problem as text. The figures in it and the time are not read aloud again with each update.
export function drawVerdict(fleet) {
  drawn = fleet;
  const { now } = fleet, more = now.problems.length - SHOWN;
  $("all-problems").hidden = more <= 0;
  set($("all-problems"), showsAll ? "Show fewer" : `Show ${Math.max(0, more)} more`);
  const worst = now.problems[0]?.severity ?? (now.has_looked ? "fine" : ""), verdict = $("verdict");
  verdict.className = "verdict " + worst;
  set($("verdict-text"), now.verdict[0].toUpperCase() + now.verdict.slice(1));
  keyed($("problems"), showsAll ? now.problems : now.problems.slice(0, SHOWN), (it) => `${it.problem} ${it.subject}`, (it) => {
    const node = h("li"), link = h("a");
    link.href = "#" + (SECTIONS[it.problem] ?? "lanes");
    link.append(h("b"), h("span"));
    node.append(h("span", "pill"), link, h("em"));
    return node;
  }, (node, it) => {
    const [pill, link, next] = node.children;
    pill.className = "pill " + it.severity;
    set(pill, it.severity);
    set(link.children[0], it.subject ? it.subject + ": " : "");
    set(link.children[1], it.detail + lasted(it, now.at));
    setStep(next, it.next);
  });
}

$("all-problems").addEventListener("click", () => {
  showsAll = !showsAll;
  drawVerdict(drawn);
});
