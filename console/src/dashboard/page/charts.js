// Charts as SVG. The style sheet defines the colors.
import { moment } from "/dom.js";

const NS = "http://www.w3.org/2000/svg";

export function svg(name, attributes = {}, ...children) {
  const node = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

export function short(n) {
  if (n === null || n === undefined) return "–";
  if (n >= 1e6) return (n / 1e6).toFixed(n >= 1e7 ? 0 : 1) + "M";
  if (n >= 1e4) return (n / 1e3).toFixed(n >= 1e5 ? 0 : 1) + "k";
  if (n >= 100 || Number.isInteger(n)) return Math.round(n).toLocaleString("en");
  return n >= 10 ? n.toFixed(1) : n >= 0.095 ? n.toFixed(2) : n > 0 ? n.toFixed(3) : "0";
}

// A count in full, with its noun.
export const many = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;

// A duration in seconds, in one unit.
export function span(s) {
  if (s === null || s === undefined) return "–";
  if (s < 0.001) return Math.round(s * 1e6) + " µs";
  if (s < 1) return (s * 1e3).toPrecision(s < 0.1 ? 2 : 3) + " ms";
  if (s < 120) return (s < 10 ? s.toFixed(1) : Math.round(s)) + " s";
  if (s < 7200) return Math.round(s / 60) + " min";
  if (s < 172800) return Math.round(s / 3600) + " h";
  return s < 2 * 31557600 ? Math.round(s / 86400) + " d" : Math.floor(s / 31557600) + " years";
}

const clock = (at) => new Date(at).toLocaleTimeString("en-GB");

// The sections of the axis over so many minutes, and the unit of its texts in minutes.
const AXES = { 5: [5, 1, "min"], 15: [3, 1, "min"], 60: [4, 1, "min"], 1440: [4, 60, "h"], 10080: [7, 1440, "d"] };

// The next round number at or above the largest value.
export function ceiling(most) {
  if (most <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= most);
}

// Milliseconds between two points beyond which the line is interrupted. A stored point has its own `gap`: 1.5 steps.
const GAP = 20000;

const gap = (last, point) => Math.max(last.gap ?? GAP, point.gap ?? GAP);

// The points between interruptions. `longest` is the most that may lie between two points.
export function runs(points, longest = gap) {
  const all = [];
  for (const point of points) {
    const last = all.at(-1)?.at(-1);
    if (last && point.at - last.at <= longest(last, point)) all.at(-1).push(point);
    else all.push([point]);
  }
  return all;
}

// The place to which an arrow key moves from `shown`, or -1 for none, among so many points. Nothing for other keys.
export function moved(event, shown, count) {
  const move = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
  if (move === undefined || !count) return undefined;
  event.preventDefault();
  const from = shown >= 0 ? shown : move < 0 ? count : -1;
  return Math.max(0, Math.min(count - 1, from + move));
}

// A stored point between two gaps is as wide as its step.
const widened = ([point]) => [-1, 1].map((side) => ({ ...point, at: point.at + (side * (point.gap ?? 0)) / 3 }));

const NARROWEST = 240, H = 150, LEFT = 44, BOTTOM = 18, TOP = 8;

// Stacked areas with a crosshair. `bands` are {name, css, of}, the lowest first. `more` are further lines of a point's text.
export class Areas {
  constructor(label, bands, tip, more) {
    this.bands = bands;
    this.more = more;
    this.tip = tip;
    this.node = svg("svg", { class: "chart", role: "img", tabindex: "0", "aria-label": label });
    this.label = label;
    this.shown = null;
    this.node.addEventListener("pointermove", (event) => this.point(event));
    for (const leave of ["pointerleave", "blur"]) this.node.addEventListener(leave, () => this.hide());
    this.node.addEventListener("keydown", (event) => this.key(event));
    // Before it is part of the page, it has no width.
    new ResizeObserver(() => { if (this.drawn && this.width !== this.node.clientWidth) this.draw(...this.drawn); }).observe(this.node);
  }

  hide() {
    this.shown = null;
    this.tip(null);
    this.cross?.remove();
  }

  // The arrow keys read the values, from the newest on.
  key(event) {
    const points = this.points ?? [], place = moved(event, points.findIndex((point) => point.at === this.shown), points.length);
    if (place === undefined) return;
    const point = points[place], box = this.node.getBoundingClientRect();
    const said = this.show(point, { clientX: box.left + this.x(point.at), clientY: box.top });
    this.node.setAttribute("aria-label", `${this.label} ${said}`);
  }

  draw(points, minutes, now) {
    const from = now - minutes * 60000;
    Object.assign(this, { drawn: [points, minutes, now], width: this.node.clientWidth });
    this.clock = minutes > 60 ? (at) => moment(at) : clock;
    this.points = points.filter((point) => point.at >= from);
    // As wide as it is shown, so that its texts keep their size.
    const width = Math.max(this.width, NARROWEST);
    this.node.setAttribute("viewBox", `0 0 ${width} ${H}`);
    const sum = (point) => this.bands.reduce((n, band) => n + band.of(point), 0);
    const top = ceiling(Math.max(1, ...this.points.map(sum)));
    const x = (this.x = (at) => LEFT + ((at - from) / (now - from)) * (width - LEFT));
    const y = (n) => TOP + (1 - n / top) * (H - TOP - BOTTOM);
    const parts = [];
    for (const n of [0, top / 2, top]) {
      parts.push(svg("line", { class: "grid", x1: LEFT, x2: width, y1: y(n), y2: y(n) }));
      const text = svg("text", { x: LEFT - 6, y: y(n) + 4, "text-anchor": "end" });
      text.textContent = short(n);
      parts.push(text);
    }
    const [steps, size, unit] = AXES[minutes];
    for (let n = 0; n <= steps; n++) {
      const at = from + ((now - from) * n) / steps;
      const anchor = n === 0 ? "start" : n === steps ? "end" : "middle";
      const text = svg("text", { x: x(at), y: H - 3, "text-anchor": anchor });
      text.textContent = n === steps ? "now" : `-${(minutes * (steps - n)) / steps / size} ${unit}`;
      parts.push(text);
    }
    for (const points of runs(this.points)) {
      const run = points.length > 1 ? points : widened(points);
      const floor = run.map(() => 0);
      for (const band of this.bands) {
        const low = run.map((point, i) => `${x(point.at).toFixed(1)},${y(floor[i]).toFixed(1)}`).reverse();
        run.forEach((point, i) => { floor[i] += band.of(point); });
        const high = run.map((point, i) => `${x(point.at).toFixed(1)},${y(floor[i]).toFixed(1)}`);
        parts.unshift(svg("polygon", { class: band.css, points: [...high, ...low].join(" ") }));
      }
    }
    this.node.replaceChildren(...parts);
  }

  point(event) {
    if (!this.points?.length) return;
    const at = event.clientX - this.node.getBoundingClientRect().left;
    const near = this.points.reduce((a, b) => (Math.abs(this.x(b.at) - at) < Math.abs(this.x(a.at) - at) ? b : a));
    this.show(near, event);
  }

  // Marks a point. Returns what the tip says.
  show(point, event) {
    this.cross?.remove();
    this.shown = point.at;
    const at = this.x(point.at);
    this.cross = svg("line", { class: "cross", x1: at, x2: at, y1: TOP, y2: H - BOTTOM });
    this.node.append(this.cross);
    const said = [this.clock(point.at), ...this.bands.map((band) => `${band.name} ${short(band.of(point))}`).reverse(), ...this.more(point)].join("\n");
    this.tip(said, event);
    return said;
  }
}

// Sparklines. `lines` are {css, of}; an unknown value is a gap.
export function spark(label, points, lines) {
  const w = 150, h = 30;
  const node = svg("svg", { class: "spark", viewBox: `0 0 ${w} ${h}`, role: "img", "aria-label": label });
  if (points.length < 2) return node;
  const [from, to] = [points[0].at, points.at(-1).at];
  const most = Math.max(1e-9, ...points.flatMap((point) => lines.map((line) => line.of(point) ?? 0)));
  for (const line of lines) {
    // An error line without errors is left out.
    if (line.css === "bad" && points.every((point) => !line.of(point))) continue;
    const known = points.filter((point) => line.of(point) !== null && line.of(point) !== undefined);
    for (const run of runs(known)) {
      const place = (p) => `${(((p.at - from) / (to - from)) * w).toFixed(1)},${(h - 2 - (line.of(p) / most) * (h - 4)).toFixed(1)}`;
      node.append(svg("polyline", { class: "line " + line.css, points: run.map(place).join(" ") }));
    }
  }
  return node;
}
