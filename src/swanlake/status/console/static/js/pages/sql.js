// SQL: an editor with a schema browser, results, a chart and downloads.

import { ApiError, post } from "../lib/api.js";
import { describe, say } from "../lib/dialog.js";
import { h, replace, update } from "../lib/dom.js";
import * as format from "../lib/format.js";
import { badge, button, empty } from "../lib/parts.js";
import { SchemaBrowser } from "../sql/browser.js";
import { Editor } from "../sql/editor.js";
import * as history from "../sql/history.js";
import { chartable, downloads, resultChart, resultTable } from "../sql/results.js";

const DRAFT = "swanlake.draft";
const LIMITS = [100, 1000, 10_000];
/** Longer than any statement may run: the server ends it first. */
const DEADLINE_MS = 3_700_000;

export class Sql {
  constructor({ go }) {
    this.go = go;
    this.running = null;
    this.result = null;
    this.view = "table";
    this.axes = { kind: "line" };
  }

  mount(root) {
    this.editor = new Editor({ text: localStorage.getItem(DRAFT) ?? "", onChange: (text) => localStorage.setItem(DRAFT, text), onRun: () => this.run() });
    this.browser = new SchemaBrowser((text) => this.editor.insert(text));
    this.runButton = button("Run", () => this.run(), { class: "primary" });
    this.cancelButton = button("Cancel", () => this.cancel(), { disabled: true });
    this.limit = h("select", {}, LIMITS.map((limit) => h("option", { value: limit, selected: limit === 1000 }, format.exact(limit))));
    this.session = h("span", { class: "muted session" });
    this.output = h("section", { class: "card results", "aria-label": "Result", "aria-live": "polite" });
    document.addEventListener("selectionchange", (this.onSelect = () => (this.runButton.textContent = this.editor.hasSelection ? "Run selection" : "Run")));
    const bar = h(
      "div",
      { class: "sql-bar" },
      this.runButton,
      this.cancelButton,
      h("label", { class: "field" }, "Show at most", this.limit, "rows"),
      h("div", { class: "actions end" }, button("History", () => this.showHistory()), button("New session", () => this.newSession(), { title: "Forgets temporary tables, settings and an open transaction" })),
    );
    const help = h("p", { class: "muted help", id: "editor-help" }, h("kbd", {}, "Ctrl"), "+", h("kbd", {}, "Enter"), " runs the selection, or all of it. ", h("kbd", {}, "Esc"), " then ", h("kbd", {}, "Tab"), " leaves the editor.");
    root.append(
      h("h1", { class: "visually-hidden" }, "SQL"),
      h("div", { class: "split sql" }, this.browser.element, h("div", { class: "stack" }, h("section", { class: "card", "aria-label": "Statement" }, this.editor.element, bar), help, this.output)),
    );
    this.draw();
  }

  parameters({ query }) {
    if (query === undefined) return;
    this.editor.text = query;
    localStorage.setItem(DRAFT, query);
    this.go("/sql", { replace: true });
  }

  leave() {
    document.removeEventListener("selectionchange", this.onSelect);
  }

  show(document) {
    this.browser.show(document.catalogs, document.catalog);
  }

  fail(failure) {
    say(failure.message, "bad");
  }

  // ---- running ---------------------------------------------------------------------------------

  async run() {
    const sql = this.editor.wanted.trim();
    if (!sql || this.running) return;
    const query_id = crypto.randomUUID();
    this.running = { query_id, since: Date.now() };
    this.runButton.disabled = true;
    this.cancelButton.disabled = false;
    this.result = null;
    this.tick();
    const entry = { sql, at: Date.now() / 1000 };
    try {
      this.result = await post("/api/sql/run", { sql, query_id, session: sessionId(), limit: Number(this.limit.value) }, { deadline: DEADLINE_MS });
      Object.assign(entry, { seconds: this.result.seconds, rows: this.result.rows.length });
      this.axes = defaultAxes(this.result);
      this.view = "table";
    } catch (failure) {
      this.result = { failure };
      entry.error = failure instanceof ApiError ? failure.identifier : "FAILED";
    }
    history.add(entry);
    this.running = null;
    clearTimeout(this.timer);
    this.runButton.disabled = false;
    this.cancelButton.disabled = true;
    this.draw();
  }

  tick() {
    if (!this.running) return;
    this.draw();
    this.timer = setTimeout(() => this.tick(), 250);
  }

  async cancel() {
    if (!this.running) return;
    this.cancelButton.disabled = true;
    try {
      await post("/api/statements/cancel", { query_id: this.running.query_id });
    } catch (failure) {
      say(describe(failure), "bad");
    }
  }

  newSession() {
    sessionStorage.setItem("swanlake.session", crypto.randomUUID());
    say("The next statement runs in a new session.");
  }

  // ---- the result ------------------------------------------------------------------------------

  draw() {
    if (this.running) {
      update(this.output, h("div", { class: "pad running" }, badge("running", "info"), ` ${format.duration((Date.now() - this.running.since) / 1000)}`));
    } else if (!this.result) {
      replace(this.output, empty("No statement has run here yet.", "Write one above, or try:", "SHOW ALL TABLES"));
    } else if (this.result.failure) {
      replace(this.output, failureOf(this.result.failure));
    } else {
      replace(this.output, this.resultHead(), this.result.columns.length ? this.resultBody() : "");
    }
  }

  resultHead() {
    const { result } = this;
    const isQuery = result.columns.length > 0;
    const shown = format.plural(result.rows.length, "row");
    let text = result.is_complete ? shown : `The first ${shown}; there are more`;
    if (!isQuery) text = result.affected === null ? "Done" : `${format.plural(result.affected, "row")} affected`;
    const toggle = (view, label) => button(label, () => ((this.view = view), this.draw()), { "aria-pressed": String(this.view === view), class: "small" });
    return h(
      "div",
      { class: "card-head" },
      h("h2", {}, text),
      h("span", { class: "note" }, format.duration(result.seconds), result.in_transaction ? " · in an open transaction" : ""),
      isQuery && h("div", { class: "actions" }, chartable(result.columns).length > 0 && result.rows.length > 1 && h("div", { class: "toggle", role: "group", "aria-label": "View" }, toggle("table", "Table"), toggle("chart", "Chart")), h("span", { class: "note" }, result.result_id ? "Download all rows:" : ""), downloads(result)),
    );
  }

  resultBody() {
    if (!this.result.rows.length) return h("div", { class: "empty" }, h("b", {}, "No rows."), h("span", {}, this.result.columns.map((column) => `${column.name} ${column.type.toLowerCase()}`).join(", ")));
    if (this.view === "table") return resultTable(this.result);
    const choose = (label, name, options) =>
      h("label", { class: "field" }, label, h("select", { onchange: (event) => ((this.axes[name] = name === "kind" ? event.target.value : Number(event.target.value)), this.draw()) }, options.map(([value, text]) => h("option", { value, selected: this.axes[name] === value }, text))));
    const all = this.result.columns.map((column, place) => [place, column.name]);
    const numbers = chartable(this.result.columns).map((column) => [column.place, column.name]);
    return h("div", { class: "card-body" }, h("div", { class: "actions axes" }, choose("Draw", "kind", [["line", "lines"], ["bar", "bars"]]), choose("of", "y", numbers), choose("over", "x", all)), resultChart(this.result, this.axes));
  }

  showHistory() {
    const list = h("ol", { class: "history" });
    const filter = h("input", { type: "search", placeholder: "Find", "aria-label": "Find in the history", oninput: () => draw() });
    const dialog = h("dialog", { class: "wide", "aria-label": "History" }, h("form", { method: "dialog" }, h("div", { class: "dialog-head" }, h("h2", {}, "History"), filter, button("Clear", () => (history.clear(), draw()), { class: "quiet" }), h("button", { type: "submit" }, "Close")), list));
    const draw = () => {
      const found = history.entries().filter((entry) => entry.sql.toLowerCase().includes(filter.value.toLowerCase()));
      replace(
        list,
        found.length ? found.map((entry) => h("li", {}, h("button", { type: "button", class: "entry", onclick: () => ((this.editor.text = entry.sql), this.editor.changed(), dialog.close(), this.editor.area.focus()) }, h("code", {}, entry.sql), h("small", { class: "muted" }, `${format.ago(entry.at)} · ${entry.error ?? `${format.plural(entry.rows, "row")}, ${format.duration(entry.seconds)}`}`)))) : h("li", { class: "muted" }, "Nothing was found. Statements that run here are kept in this browser."),
      );
    };
    dialog.onclose = () => dialog.remove();
    document.body.append(dialog);
    draw();
    dialog.showModal();
  }
}

/** The session of this tab: statements share temporary tables and transactions. */
function sessionId() {
  let id = sessionStorage.getItem("swanlake.session");
  if (!id) sessionStorage.setItem("swanlake.session", (id = crypto.randomUUID()));
  return id;
}

function defaultAxes({ columns }) {
  const numbers = chartable(columns);
  const y = numbers.at(-1)?.place ?? 0;
  const x = columns.findIndex((_, place) => place !== y);
  return { kind: x >= 0 && !columns[x].numeric && !/date|time/i.test(columns[x].type) ? "bar" : "line", x: Math.max(x, 0), y };
}

function failureOf(failure) {
  return h("div", { class: "pad failure", role: "alert" }, badge(failure.identifier ?? "FAILED", "bad"), h("pre", { class: "error-text" }, failure.message));
}
