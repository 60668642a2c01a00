// The queue: tables with queued rows, and dead letters.

import { get } from "../lib/api.js";
import { call, callText, change, describe } from "../lib/dialog.js";
import { h, update } from "../lib/dom.js";
import * as format from "../lib/format.js";
import { badge, button, card, empty, pageHead, table, tiles } from "../lib/parts.js";

const STATES = { open: "", sealed: "info", flushing: "info", retrying: "bad", paused: "warn" };

export class Queue {
  constructor({ me, refresh }) {
    this.me = me;
    this.refresh = refresh;
    /** The first rows of the dead letters that are open, by segment. */
    this.opened = new Map();
  }

  mount(root) {
    this.root = h("div", { class: "stack" });
    root.append(this.root);
  }

  show(document) {
    this.document = document;
    update(this.root, this.head(), this.notice(), this.numbers(), this.tables(), this.letters());
  }

  fail(failure) {
    update(this.root, pageHead("Queue"), h("p", { class: "notice bad" }, failure.message));
  }

  head() {
    const { paused, tables } = this.document;
    const mayWrite = this.me.role !== "reader";
    return pageHead(
      "Queue",
      "Rows that are safe on disk and not in the lake yet.",
      this.me.is_admin && (paused ? button("Resume flushing", () => this.resume()) : button("Pause flushing", () => this.pause())),
      mayWrite && tables.length > 0 && button("Flush all", () => this.flush(), { class: "primary", disabled: paused }),
    );
  }

  notice() {
    if (!this.document.paused) return "";
    return h("p", { class: "notice warn", role: "status" }, h("span", {}, h("b", {}, "Paused. "), "The queue accepts rows and flushes none, also after a restart, until it is resumed."));
  }

  numbers() {
    const { tables, letters } = this.document;
    const sum = (field) => tables.reduce((total, each) => total + each[field], 0);
    const oldest = Math.max(0, ...tables.map((each) => each.oldest_seconds));
    return tiles([
      ["Queued rows", format.count(sum("rows"))],
      ["Bytes", format.bytes(sum("bytes")), this.document.max_bytes ? `of ${format.bytes(this.document.max_bytes)}` : ""],
      ["Oldest row", tables.length ? format.duration(oldest) : "–"],
      ["Tables", format.count(tables.length)],
      ["Dead letters", format.count(letters.length)],
    ]);
  }

  tables() {
    const { tables, paused } = this.document;
    if (!tables.length) {
      return card({ title: "Tables", key: "tables" }, empty("The queue is empty.", "Rows inserted into duckling_queue.… wait here until they are flushed to the lake.", "INSERT INTO duckling_queue.events VALUES (…)"));
    }
    const mayFlush = (each) => each.may_write && !paused;
    return card(
      { title: "Tables", key: "tables", note: format.plural(tables.length, "table") },
      table({
        label: "Tables with queued rows",
        rows: tables,
        key: (each) => each.name,
        columns: [
          { label: "Table", wide: true, cell: (each) => h("span", { class: "mono" }, each.name) },
          { label: "State", class: "fit", cell: (each) => badge(each.state, STATES[each.state]) },
          { label: "Rows", class: "num", cell: (each) => format.exact(each.rows) },
          { label: "Bytes", class: "num", cell: (each) => format.bytes(each.bytes) },
          { label: "Segments", class: "num", cell: (each) => format.count(each.segments) },
          { label: "Oldest row", class: "num", cell: (each) => format.duration(each.oldest_seconds) },
          { label: "Last error", wide: true, cell: (each) => (each.last_error ? h("span", { class: "error-text" }, `${each.last_error} (${format.plural(each.failures, "failure")})`) : "") },
          tables.some(mayFlush) && { label: "", class: "acts", cell: (each) => (mayFlush(each) ? button("Flush", () => this.flush(each), { class: "small", "aria-label": `Flush ${each.name}` }) : "") },
        ],
      }),
    );
  }

  letters() {
    const { letters } = this.document;
    if (!letters.length) {
      return card({ title: "Dead letters", key: "letters" }, empty("There are no dead letters.", "Rows that can never reach their table, such as those of a dropped table, would be kept here with the reason."));
    }
    const isAdmin = this.me.is_admin;
    return card(
      { title: "Dead letters", key: "letters", note: "Segments that no retry can deliver", actions: [isAdmin && button("Replay all", () => this.replay(), { class: "small" })] },
      table({
        label: "Dead letters",
        rows: letters,
        key: (letter) => letter.segment_id,
        detail: (letter) => this.opened.has(letter.segment_id) && firstRows(this.opened.get(letter.segment_id)),
        columns: [
          { label: "Table", cell: (letter) => [h("span", { class: "mono" }, letter.name), h("span", { class: "sub mono" }, letter.segment_id)] },
          { label: "Since", class: "fit", cell: (letter) => format.ago(letter.at) },
          { label: "Rows", class: "num", cell: (letter) => (letter.replayable ? format.exact(letter.rows) : "damaged") },
          { label: "Bytes", class: "num", cell: (letter) => format.bytes(letter.bytes) },
          { label: "Reason", wide: true, cell: (letter) => letter.reason },
          {
            label: "",
            class: "acts",
            cell: (letter) => [
              letter.replayable && button(this.opened.has(letter.segment_id) ? "Hide rows" : "Rows", () => this.toggle(letter), { class: "small", "aria-expanded": String(this.opened.has(letter.segment_id)) }),
              isAdmin && letter.replayable && button("Replay", () => this.replay(letter), { class: "small" }),
              isAdmin && button("Discard", () => this.discard(letter), { class: "small" }),
            ],
          },
        ],
      }),
    );
  }

  async toggle(letter) {
    const id = letter.segment_id;
    if (this.opened.delete(id)) return this.show(this.document);
    this.opened.set(id, { loading: true });
    this.show(this.document);
    try {
      this.opened.set(id, await get("/api/queue/rows", { segment: id }));
    } catch (failure) {
      this.opened.set(id, { failure: describe(failure) });
    }
    this.show(this.document);
  }

  flush(each) {
    const parameters = each ? { table: each.sql_name } : {};
    const what = each ? each.name : format.plural(this.document.tables.length, "table");
    return this.run({
      title: `Flush ${what}?`,
      text: "The queued rows become files of the lake now, whatever their number.",
      procedure: "duckling_queue_flush",
      parameters,
      confirm: "Flush",
      done: (rows) => {
        const total = rows.reduce((sum, row) => sum + row.rows, 0);
        const letters = rows.reduce((sum, row) => sum + row.dead_letters, 0);
        if (!rows.length) return "There was nothing to flush: the rows are in the lake already.";
        return `Flushed ${format.plural(total, "row")} in ${format.plural(rows.reduce((sum, row) => sum + row.files, 0), "file")}.${letters ? ` ${format.plural(letters, "segment")} became dead letters.` : ""}`;
      },
    });
  }

  pause() {
    return this.run({ title: "Pause flushing?", text: "Inserts are still accepted, and stay in the queue until flushing is resumed, also after a restart.", procedure: "duckling_queue_pause", confirm: "Pause", done: () => "Flushing is paused." });
  }

  resume() {
    return this.run({ title: "Resume flushing?", text: "Tables with enough rows, or old ones, are flushed at once.", procedure: "duckling_queue_resume", confirm: "Resume", done: () => "Flushing is resumed." });
  }

  replay(letter) {
    return this.run({
      title: letter ? "Replay this dead letter?" : "Replay all dead letters?",
      text: letter ? `${format.plural(letter.rows, "row")} go back into the queue, for the table that is named ${letter.name} now.` : "The rows go back into the queue, for the tables that have their names now.",
      procedure: "duckling_queue_replay",
      parameters: letter ? { segment: letter.segment_id } : {},
      confirm: "Replay",
      done: (rows) => {
        const refused = rows.filter((row) => row.refused);
        const replayed = `${format.plural(rows.length - refused.length, "dead letter")} went back into the queue.`;
        return refused.length ? `${replayed} ${refused.length} stay: ${refused[0].refused}` : replayed;
      },
    });
  }

  discard(letter) {
    return this.run({
      title: "Discard this dead letter?",
      text: `${letter.replayable ? format.plural(letter.rows, "row") : format.bytes(letter.bytes)} of ${letter.name} are deleted for ever.`,
      procedure: "duckling_queue_discard",
      parameters: { segment: letter.segment_id },
      confirm: "Discard for ever",
      danger: true,
      done: () => "The dead letter is deleted.",
    });
  }

  async run({ procedure, parameters = {}, ...question }) {
    await change({ ...question, command: callText(procedure, parameters), run: () => call(procedure, parameters) });
    this.refresh();
  }
}

function firstRows(opened) {
  if (opened.loading) return h("p", { class: "muted" }, "Reading…");
  if (opened.failure) return h("p", { class: "error-text" }, opened.failure);
  if (!opened.rows.length) return h("p", { class: "muted" }, "Its bytes are damaged: no row can be read.");
  return h(
    "div",
    { class: "scroll plain" },
    h(
      "table",
      { "aria-label": "First rows of the dead letter" },
      h("thead", {}, h("tr", {}, opened.columns.map((column) => h("th", { scope: "col" }, column.name, h("span", { class: "sub" }, column.type))))),
      h("tbody", {}, opened.rows.map((row) => h("tr", {}, row.map((value) => h("td", { class: "mono" }, value === null ? h("span", { class: "null" }, "NULL") : String(value)))))),
    ),
  );
}
