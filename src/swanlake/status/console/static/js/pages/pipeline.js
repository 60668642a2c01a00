// The pipeline: where jobs run, the jobs, and the transforms of queued rows.

import { h, update } from "../lib/dom.js";
import * as format from "../lib/format.js";
import { badge, card, empty, longText, pageHead, table } from "../lib/parts.js";

const STATES = { running: "info", done: "good", idle: "", failed: "bad", skipped: "warn", stopped: "warn" };

export class Pipeline {
  mount(root) {
    this.root = h("div", { class: "stack" });
    root.append(this.root);
  }

  show(document) {
    update(this.root, pageHead("Pipeline", "Jobs that bring rows from the queue to the lake, and keep its files in shape."), runner(document.runner), jobs(document.jobs), transforms(document));
  }

  fail(failure) {
    update(this.root, pageHead("Pipeline"), h("p", { class: "notice bad" }, failure.message));
  }
}

function runner(state) {
  const isSpark = state.kind === "spark";
  const isReady = state.state === "ready";
  return h(
    "section",
    { class: `notice ${isReady ? "good" : "warn"}`, "data-key": "runner", "aria-label": "Where jobs run", "aria-live": "polite" },
    h("p", {}, h("b", {}, isSpark ? "Spark" : "Inline"), " ", isReady ? "Ready." : `Not ready: ${state.state}.`, " ", isSpark ? `Jobs run on ${state.location}.` : "Jobs run in the server process, one after another, without Spark."),
    isSpark && isReady && (state.ui_url ? h("p", {}, h("a", { href: state.ui_url, rel: "noreferrer", target: "_blank" }, "Spark's own pages"), h("span", { class: "muted" }, ` at ${state.ui_url}`)) : h("p", { class: "muted" }, "Spark's own pages are off; ", h("code", {}, "SWANLAKE_SPARK_CONF='spark.ui.enabled=true'"), " turns them on.")),
    isSpark && !isReady && h("p", { class: "muted" }, "Queued rows stay in the queue meanwhile. ", h("code", {}, state.log_file), " has Spark's log."),
  );
}

function jobs(rows) {
  if (!rows.length) {
    return card({ title: "Jobs", key: "jobs" }, empty("No job has run since the start.", "A flush runs when a table has enough queued rows, when its oldest row is old enough, or now:", "swanlake queue flush"));
  }
  return card(
    { title: "Jobs", key: "jobs", note: `${format.count(rows.filter((row) => row.state === "running").length)} running; flushes of this server, maintenance of all servers` },
    table({
      label: "Jobs",
      rows,
      key: (row) => row.id,
      columns: [
        { label: "Job", cell: (row) => row.job },
        { label: "Table", wide: true, cell: (row) => h("span", { class: "mono" }, row.table) },
        { label: "State", cell: (row) => badge(row.state, STATES[row.state]) },
        { label: "Started", class: "num", cell: (row) => format.ago(row.started_at) },
        { label: "Took", class: "num", cell: (row) => format.duration(row.seconds) },
        { label: "Rows", class: "num", cell: (row) => format.count(row.rows) },
        { label: "Files", class: "num", cell: (row) => format.count(row.files) },
        { label: "Size", class: "num", cell: (row) => format.bytes(row.bytes) },
        { label: "Snapshot", class: "num", cell: (row) => (row.snapshot === null ? "" : `#${row.snapshot}`) },
        { label: "Error", wide: true, cell: (row) => (row.error ? longText(row.error, "error-text") : "") },
      ],
    }),
  );
}

function transforms({ runner: state, transforms: rows }) {
  if (state.kind !== "spark") {
    return card({ title: "Transforms", key: "transforms" }, empty("Transforms need Spark.", "They are PySpark functions that change queued rows on their way to the lake. This server runs its jobs without Spark.", "swanlake serve --pipeline spark --transforms my_transforms"));
  }
  if (!rows.length) {
    return card({ title: "Transforms", key: "transforms" }, empty("There is no transform.", "A transform is a PySpark function for the queued rows of a table; the setting transforms names its module.", "swanlake serve --transforms my_transforms"));
  }
  return card(
    { title: "Transforms", key: "transforms" },
    table({
      label: "Transforms",
      rows,
      key: (row) => row.source,
      columns: [
        { label: "Of the queued rows of", cell: (row) => h("code", {}, row.source) },
        { label: "Into", cell: (row) => h("code", {}, row.into.join(", ")) },
        { label: "Last flush", class: "num", cell: (row) => format.ago(row.last_at) },
        { label: "Last error", wide: true, cell: (row) => (row.last_error ? longText(row.last_error, "error-text") : h("span", { class: "muted" }, "none")) },
      ],
    }),
  );
}
