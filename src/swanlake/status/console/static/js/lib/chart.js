// Charts as SVG: lines over time, and columns.

import { h } from "./dom.js";
import { time } from "./format.js";

const HEIGHT = 118;
const TOP = 8;
const BOTTOM = 17;
const LEFT = 44;

/** Round values from 0 to at least the highest, at most four. */
export function ticks(highest) {
  if (!(highest > 0)) return [0, 1];
  const rough = highest / 3;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= rough * 0.999);
  const found = [];
  for (let value = 0; ; value += step) {
    found.push(value);
    if (value >= highest * 0.999) return found;
  }
}

/** A chart of values over time: update(points), points are {at, values}; a missing value is null. */
export class LineChart {
  constructor({ title, series, format }) {
    this.title = title;
    this.series = series;
    this.format = format;
    this.points = [];
    this.index = null;
    this.svg = h("svg", { role: "img", tabindex: "0" });
    this.now = h("span", { class: "now" });
    this.none = h("p", { class: "none" }, "Collecting: the first minute is not over yet");
    this.tip = h("div", { class: "tip", hidden: true });
    const legend = series.length > 1 && h("span", { class: "legend" }, series.map((name, number) => h("span", { class: `s${number + 1}` }, h("i"), name)));
    this.element = h("figure", { class: "chart card" }, h("figcaption", {}, h("h3", {}, title), legend, this.now), this.svg, this.none, this.tip);
    this.svg.onpointermove = (event) => this.point(event);
    this.svg.onpointerleave = () => this.show(null);
    this.svg.onblur = () => this.show(null);
    this.svg.onkeydown = (event) => this.step(event);
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  update(points) {
    this.points = points;
    this.draw();
  }

  draw() {
    const width = Math.round(this.svg.clientWidth);
    if (!width) return;
    const values = this.points.flatMap((point) => point.values).filter((value) => value !== null && value !== undefined);
    const marks = ticks(Math.max(0, ...values));
    const highest = marks.at(-1);
    const first = this.points[0]?.at ?? 0;
    const last = this.points.at(-1)?.at ?? 1;
    this.x = (at) => LEFT + ((width - LEFT - 6) * (at - first)) / Math.max(last - first, 1);
    this.y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / highest);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.none.hidden = values.length > 0;
    const latest = this.points.at(-1)?.values ?? [];
    const texts = latest.map((value) => (value === null || value === undefined ? "–" : this.format(value)));
    this.now.textContent = values.length ? texts.join(" / ") : "";
    this.svg.setAttribute("aria-label", this.describe(texts, values));
    const parts = marks.map((mark) => [
      h("line", { class: "grid", x1: LEFT, x2: width, y1: this.y(mark), y2: this.y(mark) }),
      h("text", { class: "axis", x: LEFT - 6, y: this.y(mark) + 3.5, "text-anchor": "end" }, values.length ? this.format(mark) : ""),
    ]);
    if (this.points.length > 1) {
      for (const [at, anchor] of [[first, "start"], [last, "end"]]) {
        parts.push(h("text", { class: "axis", x: this.x(at), y: HEIGHT - 3, "text-anchor": anchor }, time(at).slice(-8, -3)));
      }
    }
    this.series.forEach((_, number) => parts.push(...this.lines(number)));
    this.cursor = h("g", {});
    this.svg.replaceChildren(...parts.flat(), this.cursor);
    this.show(this.index);
  }

  lines(number) {
    const runs = [[]];
    for (const point of this.points) {
      const value = point.values[number];
      if (value === null || value === undefined) runs.push([]);
      else runs.at(-1).push([this.x(point.at), this.y(value)]);
    }
    const drawn = [];
    for (const run of runs.filter((each) => each.length)) {
      const path = run.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join("L");
      if (run.length === 1) drawn.push(h("circle", { class: `dotmark s${number + 1}`, cx: run[0][0], cy: run[0][1], r: 2.2 }));
      else {
        if (number === 0) drawn.push(h("path", { class: "area", d: `M${run[0][0].toFixed(1)},${this.y(0)}L${path}L${run.at(-1)[0].toFixed(1)},${this.y(0)}Z` }));
        drawn.push(h("path", { class: `line s${number + 1}`, d: `M${path}` }));
      }
    }
    return drawn;
  }

  describe(texts, values) {
    if (!values.length) return `${this.title}: no values yet`;
    const now = this.series.map((name, number) => (this.series.length > 1 ? `${name} ${texts[number]}` : texts[number])).join(", ");
    return `${this.title}: now ${now}; at most ${this.format(Math.max(...values))} in the last hour. Arrow keys read the values.`;
  }

  point(event) {
    const box = this.svg.getBoundingClientRect();
    const x = event.clientX - box.left;
    let best = null;
    this.points.forEach((point, index) => {
      if (best === null || Math.abs(this.x(point.at) - x) < Math.abs(this.x(this.points[best].at) - x)) best = index;
    });
    this.show(best);
  }

  step(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move || !this.points.length) return;
    event.preventDefault();
    const from = this.index ?? this.points.length;
    this.show(Math.min(Math.max(from + move, 0), this.points.length - 1));
    this.svg.setAttribute("aria-label", this.tip.textContent);
  }

  show(index) {
    this.index = index;
    const point = index === null ? undefined : this.points[index];
    this.tip.hidden = !point;
    this.cursor?.replaceChildren();
    if (!point || !this.cursor) return;
    const x = this.x(point.at);
    this.cursor.append(h("line", { class: "cursor", x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM }));
    const texts = this.series.map((name, number) => {
      const value = point.values[number];
      const isThere = value !== null && value !== undefined;
      if (isThere) this.cursor.append(h("circle", { class: `dotmark s${number + 1}`, cx: x, cy: this.y(value), r: 3 }));
      return `${this.series.length > 1 ? `${name} ` : ""}${isThere ? this.format(value) : "–"}`;
    });
    this.tip.textContent = `${time(point.at).slice(-8, -3)}  ${texts.join("  ")}`;
    const left = this.svg.offsetLeft + x;
    const isRight = x > this.svg.clientWidth / 2;
    this.tip.style.left = isRight ? "" : `${left + 10}px`;
    this.tip.style.right = isRight ? `${this.element.clientWidth - left + 10}px` : "";
    this.tip.style.top = `${this.svg.offsetTop + 4}px`;
  }
}

/** A column per entry {label, value, text}; as an element for update(). */
export function columns({ title, entries, format }) {
  const width = 560;
  const height = 132;
  const highest = Math.max(1, ...entries.map((entry) => entry.value));
  const step = width / entries.length;
  const bars = entries.map((entry, index) => {
    const size = entry.value ? Math.max(((height - 40) * entry.value) / highest, 2) : 0;
    const middle = step * (index + 0.5);
    return [
      h("rect", { class: "column", x: step * index + step * 0.12, width: step * 0.76, y: height - 20 - size, height: size, rx: 2 }, h("title", {}, entry.text)),
      entry.value ? h("text", { class: "axis", x: middle, y: height - 25 - size, "text-anchor": "middle" }, format(entry.value)) : "",
      h("text", { class: "axis", x: middle, y: height - 5, "text-anchor": "middle" }, entry.label),
    ];
  });
  const spoken = entries.filter((entry) => entry.value).map((entry) => entry.text).join("; ");
  return h("svg", { class: "histogram", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}: ${spoken || "none"}` }, bars);
}
