// Health with its reasons, numbers of now, and charts of the last hour.

import { LineChart } from "../lib/chart.js";
import { h, update } from "../lib/dom.js";
import * as format from "../lib/format.js";
import { pageHead, tiles } from "../lib/parts.js";

/** Titles, series and how their values are read from a minute of the history. */
const CHARTS = [
  { title: "Statements / s", series: ["all", "failed"], format: format.decimal, read: (m) => [m.statements_per_second, m.errors_per_second] },
  { title: "Latency", series: ["p50", "p99"], format: format.duration, read: (m) => [m.statement_p50_seconds, m.statement_p99_seconds] },
  { title: "Rows ingested / s", series: ["rows"], format: format.decimal, read: (m) => [m.rows_per_second] },
  { title: "Rows in the queue", series: ["rows"], format: format.count, read: (m) => [m.queue_rows] },
  { title: "Flush time", series: ["p50", "p99"], format: format.duration, read: (m) => [m.flush_p50_seconds, m.flush_p99_seconds] },
  { title: "Commit time", series: ["p50", "p99"], format: format.duration, read: (m) => [m.commit_p50_seconds, m.commit_p99_seconds] },
  { title: "Commits / s", series: ["commits"], format: format.decimal, read: (m) => [m.commits_per_second] },
  { title: "Sessions", series: ["open"], format: format.count, read: (m) => [m.sessions] },
  { title: "Memory of the process", series: ["bytes"], format: format.bytes, read: (m) => [m.memory_bytes] },
];

export class Overview {
  mount(root) {
    this.head = h("div");
    this.charts = CHARTS.map((chart) => ({ ...chart, view: new LineChart(chart) }));
    this.hour = h("section", { "aria-label": "The last hour", class: "charts" }, this.charts.map((chart) => chart.view.element));
    root.append(h("div", { class: "stack" }, this.head, this.hour));
  }

  show(document) {
    update(this.head, h("div", { class: "stack" }, header(document), health(document), now(document)));
    this.hour.hidden = !document.history; // the charts are about all callers
    for (const chart of document.history ? this.charts : []) {
      chart.view.update(document.history.map((minute) => ({ at: minute.at, values: chart.read(minute) })));
    }
  }

  fail(failure) {
    update(this.head, pageHead("Overview"), h("p", { class: "notice bad" }, failure.message));
  }
}

function header(document) {
  return pageHead("Overview", `${document.url} · version ${document.version} · up ${format.duration(document.uptime_seconds)}`);
}

function health(document) {
  const isWell = !document.reasons.length;
  const checks = document.checks.map((check) =>
    h("li", { "data-key": check.name, class: check.problem ? "is-bad" : "is-good" }, h("b", {}, check.name), " ", check.problem ?? "ok", h("small", { class: "muted" }, check.age_seconds === null ? "" : ` ${check.age_seconds} s ago`)),
  );
  return h(
    "section",
    { class: `notice health ${isWell ? "good" : "bad"}`, "aria-label": "Health", "aria-live": "polite" },
    h("p", {}, h("b", {}, isWell ? "Healthy" : "Not ready"), " ", isWell ? "The server accepts statements." : document.reasons.join(" ")),
    checks.length ? h("ul", { class: "checks" }, checks) : "",
  );
}

function now(document) {
  const numbers = document.now;
  return tiles([
    ["Statements running", format.count(numbers.running), numbers.results_waiting === null ? "" : `${format.plural(numbers.results_waiting, "result")} waiting`],
    ["Sessions", format.count(numbers.sessions), numbers.max_sessions ? `of ${format.count(numbers.max_sessions)}` : ""],
    ["Queued rows", format.count(numbers.queue_rows), format.bytes(numbers.queue_bytes)],
    ["Oldest queued row", numbers.oldest_seconds === null ? "–" : format.duration(numbers.oldest_seconds), numbers.paused ? "flushing is paused" : ""],
    numbers.dead_letters !== null && ["Dead letters", format.count(numbers.dead_letters), numbers.dead_letters ? "see Queue" : "none"],
    numbers.memory_bytes !== null && ["Memory", format.bytes(numbers.memory_bytes), "of the process"],
    ["Pipeline", numbers.pipeline, numbers.pipeline_state],
  ]);
}
