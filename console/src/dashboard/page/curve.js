// The curve of a metric: the mean of each bucket as a line, between its minimum and maximum.
import { ceiling, moved, runs, svg } from "/charts.js";
import { moment } from "/dom.js";

const H = 190, LEFT = 58, RIGHT = 8, TOP = 10, BOTTOM = 22;

export function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  return size !== 0 && (size >= 1e6 || size < 1e-3) ? value.toExponential(3) : String(Number(value.toPrecision(6)));
}

// A moment on an axis over so many seconds.
export function when(at, seconds) {
  if (seconds > 62 * 86400) return moment(at, { dateStyle: "medium" });
  return seconds > 2 * 86400 ? moment(at) : moment(at, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
}

// Round numbers that enclose the values, about four steps apart.
function scale(low, high) {
  if (low === high) { low -= Math.abs(low) * 0.01 || 1; high += Math.abs(high) * 0.01 || 1; }
  const step = ceiling((high - low) / 4);
  const first = Math.floor(low / step), last = Math.ceil(high / step);
  return Array.from({ length: last - first + 1 }, (_, n) => (first + n) * step);
}

export class Curve {
  constructor(tip) {
    this.tip = tip;
    this.node = svg("svg", { class: "curve", role: "img", tabindex: "0" });
    this.node.addEventListener("pointermove", (event) => this.show(this.nearest(event.clientX), event));
    this.node.addEventListener("pointerleave", () => this.show(-1));
    this.node.addEventListener("blur", () => this.show(-1));
    this.node.addEventListener("keydown", (event) => {
      const place = moved(event, this.shown, this.points?.length);
      if (place === undefined) return;
      const box = this.node.getBoundingClientRect();
      this.show(place, { clientX: box.left + this.x(this.points[place].at), clientY: box.top });
    });
    new ResizeObserver(() => { if (this.points && this.width !== this.node.clientWidth) this.draw(this.points, this.from, this.to, this.label, this.unit); }).observe(this.node);
  }

  // `points` are {at, min, mean, max, count} in order.
  draw(points, from, to, label, unit) {
    if (this.shown >= 0) this.show(-1);
    Object.assign(this, { points, from, to, label, unit, shown: -1, cross: null, width: this.node.clientWidth });
    const w = Math.max(this.width, 240);
    this.node.setAttribute("viewBox", `0 0 ${w} ${H}`);
    this.node.setAttribute("aria-label", label);
    const x = (this.x = (at) => LEFT + ((at - from) / (to - from)) * (w - LEFT - RIGHT));
    const parts = [];
    const text = (x, y, anchor, value) => {
      const node = svg("text", { x, y, "text-anchor": anchor });
      node.textContent = value;
      parts.push(node);
    };
    const seconds = (to - from) / 1000, count = w > 520 ? 4 : 2;
    for (let n = 0; n <= count; n++) {
      const at = from + ((to - from) * n) / count;
      text(x(at), H - 5, n === 0 ? "start" : n === count ? "end" : "middle", when(at, seconds));
    }
    if (points.length) {
      const steps = scale(Math.min(...points.map((point) => point.min)), Math.max(...points.map((point) => point.max)));
      const [low, high] = [steps[0], steps.at(-1)];
      const y = (value) => TOP + (1 - (value - low) / (high - low)) * (H - TOP - BOTTOM);
      for (const value of steps) {
        parts.push(svg("line", { class: "grid", x1: LEFT, x2: w - RIGHT, y1: y(value), y2: y(value) }));
        text(LEFT - 6, y(value) + 4, "end", number(value));
      }
      const place = (of) => (point) => `${x(point.at).toFixed(1)},${y(of(point)).toFixed(1)}`;
      for (const run of this.runs()) {
        const band = [...run.map(place((point) => point.max)), ...run.toReversed().map(place((point) => point.min))];
        parts.push(svg("polygon", { class: "range", points: band.join(" ") }));
        if (run.length === 1) parts.push(svg("circle", { class: "dot", cx: x(run[0].at), cy: y(run[0].mean), r: 2 }));
        else parts.push(svg("polyline", { class: "line", points: run.map(place((point) => point.mean)).join(" ") }));
      }
    }
    this.node.replaceChildren(...parts);
  }

  // The line is interrupted where a device sent nothing for longer than it usually does.
  runs() {
    const gaps = this.points.slice(1).map((point, n) => point.at - this.points[n].at).sort((a, b) => a - b);
    return runs(this.points, () => 3 * (gaps[Math.floor(gaps.length / 2)] ?? 0));
  }

  nearest(clientX) {
    if (!this.points?.length) return -1;
    const at = clientX - this.node.getBoundingClientRect().left;
    const distance = (point) => Math.abs(this.x(point.at) - at);
    return this.points.reduce((best, point, n) => (distance(point) < distance(this.points[best]) ? n : best), 0);
  }

  show(place, event) {
    this.cross?.remove();
    this.shown = place;
    if (place < 0) { this.tip(null); return; }
    const point = this.points[place], at = this.x(point.at);
    this.cross = svg("line", { class: "cross", x1: at, x2: at, y1: TOP, y2: H - BOTTOM });
    this.node.append(this.cross);
    const range = point.count > 1 ? `\n${number(point.min)} to ${number(point.max)}, ${point.count} readings` : "";
    const said = `${when(point.at, (this.to - this.from) / 1000)}\n${number(point.mean)} ${this.unit ?? ""}${range}`;
    this.tip(said, event);
    this.node.setAttribute("aria-label", `${this.label} ${said}`);
  }
}
