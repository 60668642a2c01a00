// Statements that run, were slow or failed, and sessions.

import { post } from "../lib/api.js";
import { change } from "../lib/dialog.js";
import { h, update } from "../lib/dom.js";
import * as format from "../lib/format.js";
import { badge, button, card, empty, longText, pageHead, progressBar, table } from "../lib/parts.js";

/** Rows of a list that is not shown whole. */
const FIRST = 10;

export class Statements {
  constructor({ me, refresh }) {
    this.me = me;
    this.refresh = refresh;
    /** The lists that are shown whole. */
    this.whole = new Set();
  }

  mount(root) {
    this.root = h("div", { class: "stack" });
    root.append(this.root);
  }

  show(document) {
    this.document = document;
    const lead = this.me.is_admin ? "Of all users." : "Your own; admins see those of all users.";
    update(this.root, pageHead("Statements and sessions", lead), this.running(), this.sessions(), this.slow(), this.errors());
  }

  fail(failure) {
    update(this.root, pageHead("Statements and sessions"), h("p", { class: "notice bad" }, failure.message));
  }

  running() {
    const { running } = this.document;
    return card(
      { title: "Running now", key: "running", note: running.length ? format.plural(running.length, "statement") : "" },
      running.length
        ? table({
            label: "Running statements",
            rows: running,
            key: (each) => each.query_id,
            columns: [
              { label: "Statement", wide: true, cell: (each) => longText(each.sql) },
              { label: "User", class: "fit", cell: (each) => [each.user, h("span", { class: "sub mono", title: each.session_id }, short(each.session_id))] },
              { label: "For", class: "num", cell: (each) => format.duration(each.seconds) },
              { label: "Rows", class: "num", cell: (each) => format.count(each.rows) },
              { label: "State", cell: (each) => [each.state, each.progress !== null && [h("span", { class: "sub" }, format.percent(each.progress)), progressBar(each.progress, `Progress of ${each.query_id}`)]] },
              { label: "", class: "acts", cell: (each) => button("Cancel", () => this.cancel(each), { class: "small" }) },
            ],
          })
        : empty("No statement is running.", "Statements of any client show up here while they run.", "swanlake sql -c 'FROM range(10)'"),
    );
  }

  sessions() {
    const { sessions } = this.document;
    return card(
      { title: "Sessions", key: "sessions", note: sessions.length ? format.plural(sessions.length, "session") : "" },
      sessions.length
        ? table({
            label: "Sessions",
            rows: sessions,
            key: (each) => `${each.user} ${each.session_id}`,
            columns: [
              { label: "Session", wide: true, cell: (each) => [h("span", { class: "mono" }, each.session_id), each.address && each.address !== each.session_id && h("span", { class: "sub mono" }, each.address)] },
              { label: "User", cell: (each) => [each.user, h("span", { class: "sub" }, each.role)] },
              { label: "State", cell: (each) => badge(each.state, each.state === "executing" ? "info" : each.in_transaction ? "warn" : "") },
              { label: "Idle", class: "num", cell: (each) => format.duration(each.idle_seconds) },
              { label: "Opened", class: "num", cell: (each) => format.ago(each.opened_at) },
              { label: "Statements", class: "num", cell: (each) => format.count(each.statements) },
              { label: "Catalog", cell: (each) => each.catalog ?? "" },
              { label: "", class: "acts", cell: (each) => button("Kill", () => this.kill(each), { class: "small", "aria-label": `Kill the session ${each.session_id}` }) },
            ],
          })
        : empty("There is no session.", "A session opens with the first statement of a client.", "swanlake sql"),
    );
  }

  slow() {
    const { slow } = this.document;
    return card(
      { title: "Most time", key: "slow", note: "Statements that differ in values only, since the start, by total time", actions: [this.more("slow", slow)] },
      slow.length
        ? table({
            label: "Groups of statements by total time",
            rows: this.first("slow", slow),
            key: (each) => `${each.user} ${each.fingerprint}`,
            columns: [
              { label: "Statement", wide: true, cell: (each) => longText(each.text) },
              { label: "User", class: "fit", cell: (each) => each.user },
              { label: "Count", class: "num", cell: (each) => format.count(each.count) },
              { label: "Total", class: "num", cell: (each) => format.duration(each.total_seconds) },
              { label: "Mean", class: "num", cell: (each) => format.duration(each.mean_seconds) },
              { label: "p50", class: "num", cell: (each) => format.duration(each.p50_seconds) },
              { label: "p99", class: "num", cell: (each) => format.duration(each.p99_seconds) },
              { label: "Max", class: "num", cell: (each) => format.duration(each.max_seconds) },
              { label: "Errors", class: "num", cell: (each) => (each.errors ? h("span", { class: "error-text" }, format.count(each.errors)) : "0") },
              { label: "Last", class: "num", cell: (each) => format.ago(each.last_seen_at) },
            ],
          })
        : empty("No statement has ended yet.", "Statements are grouped here by their text without its values.", "swanlake sql -c 'SELECT 42'"),
    );
  }

  errors() {
    const errors = collapsed(this.document.errors);
    return card(
      { title: "Recent errors", key: "errors", note: errors.length ? `The last ${this.document.errors.length}, equal ones of a user together` : "", actions: [this.more("errors", errors)] },
      errors.length
        ? table({
            label: "Recent errors",
            rows: this.first("errors", errors),
            key: (each) => each.query_id,
            columns: [
              { label: "When", class: "num", cell: (each) => format.ago(each.started + each.seconds) },
              { label: "Times", class: "num", cell: (each) => format.count(each.times) },
              { label: "User", class: "fit", cell: (each) => each.user },
              { label: "Error", wide: true, cell: (each) => [badge(each.outcome, "bad"), longText(each.error ?? "", "error-text sub")] },
              { label: "Statement", wide: true, cell: (each) => longText(each.sql) },
              { label: "After", class: "num", cell: (each) => format.duration(each.seconds) },
            ],
          })
        : empty("No statement has failed.", "The last failed statements show up here, with the identifier and the text of their error."),
    );
  }

  first(name, rows) {
    return this.whole.has(name) ? rows : rows.slice(0, FIRST);
  }

  more(name, rows) {
    if (rows.length <= FIRST) return "";
    const isWhole = this.whole.has(name);
    const toggle = () => {
      if (!this.whole.delete(name)) this.whole.add(name);
      this.show(this.document);
    };
    return button(isWhole ? "Show fewer" : `Show all ${rows.length}`, toggle, { class: "small", "aria-expanded": String(isWhole) });
  }

  async cancel(each) {
    await change({
      title: "Cancel this statement?",
      text: `It has been running for ${format.duration(each.seconds)} for ${each.user}, who gets the error QUERY_CANCELLED.`,
      command: each.sql.length > 600 ? `${each.sql.slice(0, 600)}…` : each.sql,
      commandLabel: "The statement",
      confirm: "Cancel the statement",
      danger: true,
      run: () => post("/api/statements/cancel", { query_id: each.query_id }),
      done: (answer) => (answer.was_running ? "The statement was interrupted." : "The statement was cancelled: it waited, or only its result was left."),
    });
    this.refresh();
  }

  async kill(each) {
    await change({
      title: "Kill this session?",
      text: `The session ${each.session_id} of ${each.user} is closed: its statement is cancelled, its transaction is rolled back, and its temporary tables are gone.`,
      confirm: "Kill the session",
      danger: true,
      run: () => post("/api/sessions/close", { session_id: each.session_id, user: each.user }),
      done: (answer) => `The session is closed${answer.cancelled ? `, and ${format.plural(answer.cancelled, "statement")} with it` : ""}.`,
    });
    this.refresh();
  }
}

/** The start of an id that says nothing to people. */
function short(id) {
  return id.length > 18 ? `${id.slice(0, 13)}…` : id;
}

/** The newest of equal errors of a user, and how many there are. */
function collapsed(errors) {
  const found = new Map();
  for (const each of errors) {
    const key = JSON.stringify([each.user, each.outcome, each.error]);
    const first = found.get(key);
    if (first) first.times += 1;
    else found.set(key, { ...each, times: 1 });
  }
  return [...found.values()];
}
