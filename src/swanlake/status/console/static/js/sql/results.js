// The result of a statement: a table with types, a chart, and downloads.

import { ticks } from "../lib/chart.js";
import { query } from "../lib/api.js";
import { h } from "../lib/dom.js";
import * as format from "../lib/format.js";

/** The rows as a table; long values are cut off and shown whole as a title. */
export function resultTable({ columns, rows }) {
  return h(
    "div",
    { class: "scroll result-rows", tabindex: "0", role: "region", "aria-label": "Rows of the result" },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, h("th", { class: "num rownum", scope: "col" }, "#"), columns.map((column) => h("th", { scope: "col", class: column.numeric ? "num" : undefined }, column.name, h("span", { class: "sub" }, column.type.toLowerCase()))))),
      h("tbody", {}, rows.map((row, number) => h("tr", {}, h("td", { class: "num rownum" }, number + 1), row.map((value, place) => cell(value, columns[place]))))),
    ),
  );
}

function cell(value, column) {
  if (value === null) return h("td", { class: column.numeric ? "num null" : "null" }, "NULL");
  const text = String(value);
  const isLong = text.length > 300;
  return h("td", { class: column.numeric ? "num" : undefined, title: isLong ? text : undefined }, isLong ? `${text.slice(0, 300)}…` : text);
}

/** Links that download all rows; the server streams them once. */
export function downloads(result) {
  if (!result.result_id) return "";
  const link = (kind) => h("a", { class: "button", href: `/api/sql/download${query({ result: result.result_id, format: kind })}`, download: `result.${kind}` }, kind === "csv" ? "CSV" : "Parquet");
  return [link("csv"), link("parquet")];
}

const WIDTH = 900;
const HEIGHT = 260;
const LEFT = 58;
const BOTTOM = 34;

/** The columns that can be drawn: numbers, and their default axes. */
export function chartable(columns) {
  return columns.map((column, place) => ({ ...column, place })).filter((column) => column.numeric);
}

/** A chart of one column over another, as lines or bars. */
export function resultChart({ columns, rows }, { x, y, kind }) {
  const points = rows.map((row) => ({ label: row[x], value: row[y] === null ? null : Number(row[y]) })).filter((point) => Number.isFinite(point.value) && point.value !== null);
  if (!points.length) return h("p", { class: "muted pad" }, "There is nothing to draw: the column has no numbers.");
  const lowest = Math.min(0, ...points.map((point) => point.value));
  const marks = ticks(Math.max(0, ...points.map((point) => point.value)) || 1);
  const highest = marks.at(-1);
  const isNumeric = columns[x].numeric && kind === "line";
  const numbers = points.map((point) => Number(point.label));
  const [first, last] = [Math.min(...numbers), Math.max(...numbers)];
  const step = (WIDTH - LEFT - 10) / points.length;
  const place = (point, index) => (isNumeric ? LEFT + ((WIDTH - LEFT - 14) * (Number(point.label) - first)) / (last - first || 1) : LEFT + step * (index + 0.5));
  const height = (value) => 8 + (HEIGHT - 8 - BOTTOM) * (1 - (value - lowest) / (highest - lowest));
  const parts = marks.map((mark) => [h("line", { class: "grid", x1: LEFT, x2: WIDTH, y1: height(mark), y2: height(mark) }), h("text", { class: "axis", x: LEFT - 7, y: height(mark) + 4, "text-anchor": "end" }, format.decimal(mark))]);
  if (kind === "bar") {
    parts.push(points.map((point, index) => h("rect", { class: "column", x: place(point, index) - step * 0.4, width: Math.max(step * 0.8, 0.5), y: Math.min(height(point.value), height(0)), height: Math.max(Math.abs(height(point.value) - height(0)), 0.5) }, h("title", {}, `${point.label}: ${point.value}`))));
  } else {
    const ordered = points.map((point, index) => [place(point, index), height(point.value)]).sort((one, other) => (isNumeric ? one[0] - other[0] : 0));
    parts.push(h("path", { class: "line", d: `M${ordered.map(([left, top]) => `${left.toFixed(1)},${top.toFixed(1)}`).join("L")}` }));
    if (ordered.length <= 60) parts.push(ordered.map(([left, top]) => h("circle", { class: "dotmark", cx: left, cy: top, r: 2.5 })));
  }
  const name = labels(points.map((point) => point.label));
  const every = Math.max(Math.ceil(points.length / 9), 1);
  parts.push(points.map((point, index) => (index % every ? "" : h("text", { class: "axis", x: place(point, index), y: HEIGHT - BOTTOM + 16, "text-anchor": "middle" }, name(point.label)))));
  return h("figure", { class: "chart result-chart" }, h("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${columns[y].name} over ${columns[x].name}, ${format.plural(points.length, "value")}` }, parts));
}

/** How values stand at the axis: times of one day without the day, and no more than fits. */
function labels(values) {
  const days = new Set(values.map((value) => /^(\d{4}-\d\d-\d\d) \d\d:/.exec(value ?? "")?.[1]));
  const [day] = days;
  if (days.size === 1 && day) return (value) => String(value).slice(11, 16);
  if (!days.has(undefined)) return (value) => String(value).slice(5, 16);
  return (value) => String(value ?? "NULL").slice(0, 14);
}
