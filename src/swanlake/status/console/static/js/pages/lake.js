// The lake: catalogs and forks as a tree, and what a catalog or a table holds.

import { columns } from "../lib/chart.js";
import { call, callText, change, describe } from "../lib/dialog.js";
import { query } from "../lib/api.js";
import { h, update } from "../lib/dom.js";
import * as format from "../lib/format.js";
import { badge, button, card, empty, facts, pageHead, table, tiles } from "../lib/parts.js";

const OUTCOMES = { done: "good", idle: "", skipped: "warn", failed: "bad", stopped: "warn", running: "info" };

export class Lake {
  constructor({ me, go, refresh }) {
    this.me = me;
    this.go = go;
    this.refresh = refresh;
    this.plan = null;
  }

  mount(root) {
    this.head = h("div");
    this.tree = h("nav", { class: "card tree", "aria-label": "Catalogs and tables" });
    this.detail = h("div", { class: "stack" });
    root.append(this.head, h("div", { class: "split" }, this.tree, this.detail));
  }

  parameters(parameters) {
    const isOther = JSON.stringify(parameters) !== JSON.stringify(this.selected);
    this.selected = parameters;
    if (isOther) this.plan = null;
  }

  show(document) {
    this.document = document;
    update(this.head, pageHead("Lake", `${format.plural(document.catalogs.length, "catalog")} in ${document.metastore}`));
    update(this.tree, this.catalogs(null));
    if (document.table) update(this.detail, this.table());
    else if (document.catalog) update(this.detail, this.catalog());
    else update(this.detail, card({ title: "Catalogs", key: "none" }, empty("You may read no catalog.", "An admin can give you a grant on one.", "swanlake token create NAME --role reader --grant 'sales=read'")));
  }

  fail(failure) {
    update(this.detail, h("div", { class: "notice bad", "data-key": "failure" }, h("p", {}, failure.message), h("a", { href: "/lake", "data-link": true }, "All catalogs")));
  }

  // ---- the tree --------------------------------------------------------------------------------

  catalogs(parent) {
    const names = new Set(this.document.catalogs.map((each) => each.name));
    const isChild = (each) => (parent ? each.parent === parent : !each.parent || !names.has(each.parent));
    const children = this.document.catalogs.filter(isChild);
    if (!children.length) return "";
    return h(
      "ul",
      { class: parent ? "forks" : "roots" },
      parent && h("li", { "data-key": "label" }, h("span", { class: "schema" }, "forks")),
      children.map((each) =>
        h(
          "li",
          { "data-key": each.name },
          this.link({ catalog: each.name }, h("span", { class: "name" }, each.name), each.parent && h("span", { class: "muted" }, each.parent_snapshot === null ? "" : `#${each.parent_snapshot}`)),
          this.document.catalog?.name === each.name && this.contents(this.document.catalog),
          this.catalogs(each.name),
        ),
      ),
    );
  }

  contents(catalog) {
    const shown = catalog.schemas.filter((schema) => schema !== "main" || catalog.tables.some((each) => each.schema === "main") || catalog.schemas.length === 1);
    return h(
      "ul",
      { class: "schemas" },
      shown.map((schema) =>
        h(
          "li",
          { "data-key": `s:${schema}` },
          h("span", { class: "schema" }, schema),
          h(
            "ul",
            {},
            catalog.tables.filter((each) => each.schema === schema).map((each) => h("li", { "data-key": `t:${each.name}` }, this.link({ catalog: catalog.name, schema, table: each.name }, h("span", { class: "name" }, each.name), h("span", { class: "muted" }, format.count(each.live_rows))))),
            catalog.views.filter((each) => each.schema === schema).map((each) => h("li", { "data-key": `v:${each.name}`, class: "view" }, h("span", {}, each.name), badge("view"))),
          ),
        ),
      ),
    );
  }

  link(target, ...content) {
    const { catalog, table: chosen } = this.document;
    const isCurrent = target.table ? chosen?.name === target.table && chosen.schema === target.schema && catalog.name === target.catalog : catalog?.name === target.catalog && !chosen;
    return h("a", { href: `/lake${query(target)}`, "data-link": true, "aria-current": isCurrent ? "true" : undefined }, content);
  }

  // ---- a catalog -------------------------------------------------------------------------------

  catalog() {
    const catalog = this.document.catalog;
    const sum = (field) => catalog.tables.reduce((total, each) => total + each[field], 0);
    return [
      h(
        "div",
        { class: "title", "data-key": "title" },
        h("h2", {}, catalog.name),
        catalog.parent && h("span", { class: "muted" }, `fork of ${catalog.parent} at snapshot ${catalog.parent_snapshot}`),
        this.me.is_admin && h("div", { class: "actions" }, this.compactButtons({ catalog: catalog.name })),
      ),
      this.planCard(),
      tiles([
        ["Tables", format.count(catalog.tables.length)],
        ["Rows", format.count(sum("live_rows"))],
        ["Files", format.count(sum("files")), sum("small_files") ? `${format.count(sum("small_files"))} small` : "none small"],
        ["Size", format.bytes(sum("bytes"))],
        ["Newest snapshot", catalog.timeline.length ? `#${catalog.timeline[0].id}` : "–", `${format.plural(catalog.snapshots, "snapshot")} kept`],
        ["Waiting for deletion", format.count(catalog.unneeded_files), "files"],
      ]),
      this.tables(catalog),
      lock(catalog),
      timeline(catalog),
      this.maintenance(catalog),
      card({ title: "Location", key: "location" }, h("div", { class: "card-body" }, facts([["Data", h("code", {}, catalog.data_path)], ["Created", format.time(catalog.created_at)]]))),
    ];
  }

  tables(catalog) {
    if (!catalog.tables.length) {
      return card({ title: "Tables", key: "tables" }, empty("The catalog has no table.", "Create one from any client:", `CREATE TABLE ${catalog.name}.main.events AS FROM 'events.parquet'`));
    }
    return card(
      { title: "Tables", key: "tables" },
      table({
        label: `Tables of ${catalog.name}`,
        rows: catalog.tables,
        key: (each) => `${each.schema}.${each.name}`,
        columns: [
          { label: "Table", wide: true, cell: (each) => h("a", { href: `/lake${query({ catalog: catalog.name, schema: each.schema, table: each.name })}`, "data-link": true, class: "mono" }, `${each.schema}.${each.name}`) },
          { label: "Rows", class: "num", cell: (each) => format.exact(each.live_rows) },
          { label: "Inlined", class: "num", cell: (each) => format.count(each.inlined_rows) },
          { label: "Deleted", class: "num", cell: (each) => format.count(each.deleted_rows) },
          { label: "Files", class: "num", cell: (each) => format.count(each.files) },
          { label: "Small", class: "num", cell: (each) => (each.small_files > 9 ? badge(format.count(each.small_files), "warn") : format.count(each.small_files)) },
          { label: "Size", class: "num", cell: (each) => format.bytes(each.bytes) },
        ],
      }),
    );
  }

  maintenance(catalog) {
    const rows = catalog.maintenance;
    if (!rows) return "";
    if (!rows.length) return card({ title: "Maintenance", key: "maintenance" }, empty("No maintenance job has run here yet.", "Jobs run when they are due; each can be started by hand, too.", `swanlake maintain compact --catalog ${catalog.name} --dry-run`));
    return card(
      { title: "Maintenance", key: "maintenance", note: "Newest first, of all servers" },
      table({
        label: "Maintenance history",
        rows,
        key: (each) => each.id,
        columns: [
          { label: "Job", cell: (each) => [each.job, each.table && h("span", { class: "sub mono" }, each.table)] },
          { label: "Outcome", cell: (each) => badge(each.outcome, OUTCOMES[each.outcome]) },
          { label: "Started", class: "num", cell: (each) => format.ago(each.started_at) },
          { label: "Took", class: "num", cell: (each) => format.duration(each.seconds) },
          { label: "Report", wide: true, cell: (each) => each.report },
          { label: "Server", cell: (each) => h("span", { class: "mono" }, each.server) },
        ],
      }),
    );
  }

  // ---- a table ---------------------------------------------------------------------------------

  table() {
    const { catalog, table: chosen } = this.document;
    const counted = catalog.tables.find((each) => each.schema === chosen.schema && each.name === chosen.name);
    return [
      h(
        "div",
        { class: "title", "data-key": "title" },
        h("h2", {}, h("a", { href: `/lake${query({ catalog: catalog.name })}`, "data-link": true }, catalog.name), ` / ${chosen.schema}.${chosen.name}`),
        h("div", { class: "actions" }, h("a", { class: "button", href: `/sql${query({ query: `FROM ${chosen.sql_name} LIMIT 100` })}`, "data-link": true }, "Query it"), this.me.is_admin && this.compactButtons({ table: chosen.sql_name })),
      ),
      this.planCard(),
      counted &&
        tiles([
          ["Rows", format.count(counted.live_rows)],
          ["Files", format.count(counted.files), counted.small_files ? `${format.count(counted.small_files)} small` : "none small"],
          ["Size", format.bytes(counted.bytes), counted.files ? `${format.bytes(counted.bytes / counted.files)} a file` : ""],
          ["Deleted rows", format.count(counted.deleted_rows), "in files"],
          ["Inlined rows", format.count(counted.inlined_rows), "in the metadata"],
        ]),
      sizes(chosen, counted),
      card(
        { title: "Columns", key: "columns", note: format.plural(chosen.columns.filter((each) => !each.depth).length, "column") },
        table({
          label: `Columns of ${chosen.name}`,
          rows: chosen.columns,
          key: (each) => each.path,
          columns: [
            { label: "Column", cell: (each) => h("span", { class: `mono depth-${Math.min(each.depth, 4)}` }, each.name) },
            { label: "Type", cell: (each) => h("code", {}, each.type) },
            { label: "Null", cell: (each) => (each.nullable ? "" : "NOT NULL") },
            { label: "Default", cell: (each) => (each.default === null ? "" : h("code", {}, each.default)) },
            { label: "Layout", cell: (each) => [each.partition && badge(each.partition === "identity" ? "partition" : `partition by ${each.partition}`, "info"), each.sort && badge(each.sort, "info")] },
          ],
        }),
      ),
      card(
        { title: "Layout", key: "layout" },
        h(
          "div",
          { class: "card-body" },
          facts([
            ["Partitioned by", chosen.partition_keys.join(", ") || h("span", { class: "muted" }, `not partitioned; ALTER TABLE ${chosen.name} SET PARTITIONED BY (…)`)],
            ["Sorted by", chosen.sort_keys.join(", ") || h("span", { class: "muted" }, `not sorted; ALTER TABLE ${chosen.name} SET SORTED BY (…)`)],
            ["Target file size", format.bytes(chosen.target_file_size)],
            ["Directory", h("code", {}, chosen.directory)],
            ...Object.entries(chosen.options).map(([name, value]) => [name.replaceAll("_", " "), String(value)]),
          ]),
        ),
      ),
      timeline(catalog, `${chosen.schema}.${chosen.name}`),
    ];
  }

  // ---- compaction ------------------------------------------------------------------------------

  compactButtons(parameters) {
    return [button("What would compaction do?", () => this.dryRun(parameters)), button("Compact", () => this.compact(parameters))];
  }

  async dryRun(parameters) {
    this.plan = { parameters, loading: true };
    this.show(this.document);
    const plan = this.plan;
    try {
      plan.rows = await call("swanlake_compact", { ...parameters, dry_run: true });
    } catch (failure) {
      plan.failure = describe(failure);
    }
    plan.loading = false;
    if (this.plan === plan) this.show(this.document);
  }

  planCard() {
    const plan = this.plan;
    if (!plan) return "";
    const close = button("Close", () => ((this.plan = null), this.show(this.document)), { class: "quiet small" });
    const rows = plan.rows ?? [];
    const title = "What compaction would do";
    let content;
    if (plan.loading) content = h("div", { class: "empty", "aria-live": "polite" }, "Planning…");
    else if (plan.failure) content = h("div", { class: "empty" }, h("span", { class: "error-text" }, plan.failure));
    else if (!rows.length) content = h("div", { class: "empty", "aria-live": "polite" }, h("b", {}, "Nothing."), "No file is small enough to be merged, and none has enough deleted rows.");
    else content = steps(rows);
    return card({ title, key: "plan", note: callText("swanlake_compact", { ...plan.parameters, dry_run: true }), actions: [close] }, content);
  }

  async compact(parameters) {
    const rows = await change({
      title: `Compact ${parameters.table ?? `the catalog ${parameters.catalog}`}?`,
      text: "Small files are merged, files with many deleted rows are rewritten, and inlined rows become files. Readers and writers go on meanwhile.",
      command: callText("swanlake_compact", parameters),
      confirm: "Compact",
      run: () => call("swanlake_compact", parameters),
      done: (done) => {
        const made = done.reduce((total, row) => total + (row.files_made ?? 0), 0);
        const read = done.reduce((total, row) => total + (row.action === "skip" ? 0 : (row.files ?? 0)), 0);
        const failed = done.filter((row) => row.action === "failed");
        if (failed.length) return `${format.plural(failed.length, "table")} failed: ${failed[0].reason}`;
        return made ? `${format.plural(read, "file")} and inlined rows became ${format.plural(made, "file")}.` : "There was nothing to compact.";
      },
    });
    if (rows) this.plan = null;
    this.refresh();
  }
}

function steps(rows) {
  return table({
    label: "Steps of the compaction",
    rows: rows.map((row, number) => ({ ...row, number })),
    key: (row) => row.number,
    columns: [
      { label: "Table", cell: (row) => h("span", { class: "mono" }, `${row.schema_name}.${row.table_name}`) },
      { label: "Action", cell: (row) => ({ merge: "merge small files", rewrite: "rewrite without deleted rows", fold: "write inlined rows to files" })[row.action] ?? row.action },
      { label: "Files", class: "num", cell: (row) => format.count(row.files) },
      { label: "Rows", class: "num", cell: (row) => format.count(row.rows) },
      { label: "Size", class: "num", cell: (row) => (row.bytes_before === null ? "" : `${format.bytes(row.bytes_before)} → ${format.bytes(row.bytes_after)}`) },
      { label: "Reason", wide: true, cell: (row) => row.reason ?? "" },
    ],
  });
}

function sizes(chosen, counted) {
  const title = "File sizes";
  if (!counted?.files) return card({ title, key: "sizes" }, empty("The table has no data file.", counted?.inlined_rows ? "Its rows are inlined in the metadata until they are compacted or flushed." : "It has no rows."));
  const texts = chosen.sizes.map((each, place) => {
    const from = place ? chosen.sizes[place - 1].below : 0;
    return each.below === null ? `≥ ${binary(from)}` : `< ${binary(each.below)}`;
  });
  const verdict = counted.small_files > 1 ? `${format.plural(counted.small_files, "file")} of ${format.count(counted.files)} are small: below ${format.percent(chosen.small_file_ratio)} of the target of ${format.bytes(chosen.target_file_size)}` : "Hardly any small file";
  return card(
    { title, key: "sizes", note: verdict },
    h(
      "figure",
      { class: "card-body chart" },
      columns({ title, entries: chosen.sizes.map((each, place) => ({ label: texts[place], value: each.files, text: `${format.plural(each.files, "file")} ${texts[place]}, ${format.bytes(each.bytes)}` })), format: format.count }),
    ),
  );
}

function binary(size) {
  for (const [unit, bytes] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) if (size >= bytes) return `${size / bytes} ${unit}`;
  return `${size} B`;
}

function lock(catalog) {
  const held = catalog.lock;
  const title = "Commit lock";
  if (!held) return card({ title, key: "lock", note: "free: no writer of this server holds it or waits for it" });
  const entries = [{ ...held.holder, role: "holds it" }, ...held.waiters.map((each) => ({ ...each, role: "waits" }))];
  return card(
    { title, key: "lock", note: `${format.plural(held.waiters.length, "writer")} waiting` },
    table({
      label: "Writers at the commit lock",
      rows: entries.map((each, place) => ({ ...each, place })),
      key: (each) => each.place,
      columns: [
        { label: "Writer", wide: true, cell: (each) => each.name || "a commit" },
        { label: "State", cell: (each) => badge(each.role, each.place ? "warn" : "info") },
        { label: "Since", class: "num", cell: (each) => format.duration(each.seconds) },
      ],
    }),
  );
}

function timeline(catalog, name = null) {
  const entries = name ? catalog.timeline.filter((each) => each.changes.some((change) => change.endsWith(name))) : catalog.timeline;
  const title = name ? "Snapshots that changed it" : "Snapshots";
  if (!entries.length) return card({ title, key: "timeline" }, empty("None of the last snapshots.", null, null));
  return card(
    { title, key: "timeline", note: `Of the last ${catalog.timeline.length}; time travel with AT (VERSION => ${entries[0].id})` },
    h(
      "ol",
      { class: "timeline" },
      entries.map((each) =>
        h(
          "li",
          { "data-key": each.id },
          h("span", { class: "id mono" }, `#${each.id}`),
          h("span", { class: "what" }, each.changes.join(", ") || "no change", each.message && h("q", { class: "muted" }, each.message)),
          h("span", { class: "muted" }, each.author ?? ""),
          h("time", { class: "muted", datetime: new Date(each.at * 1000).toISOString(), title: format.time(each.at) }, format.ago(each.at)),
        ),
      ),
    ),
  );
}
