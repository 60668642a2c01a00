// The schema browser: catalogs, tables and columns; a click puts a name into the editor.

import { get } from "../lib/api.js";
import { describe } from "../lib/dialog.js";
import { h, update } from "../lib/dom.js";
import { button } from "../lib/parts.js";

export class SchemaBrowser {
  constructor(insert) {
    this.insert = insert;
    this.catalogs = [];
    /** What was read: catalogs by name, tables by catalog, schema and name. */
    this.read = new Map();
    this.open = new Set();
    this.filter = "";
    this.list = h("ul", { class: "roots" });
    const filter = h("input", { type: "search", placeholder: "Filter tables", "aria-label": "Filter tables", oninput: () => ((this.filter = filter.value.trim().toLowerCase()), this.draw()) });
    this.element = h("nav", { class: "card tree browser", "aria-label": "Schema browser" }, h("div", { class: "browser-head" }, filter, button("Reload", () => this.reload(), { class: "quiet small" })), this.list);
  }

  show(catalogs, current) {
    const isFirst = !this.catalogs.length;
    this.catalogs = catalogs;
    if (isFirst && catalogs.length) this.toggle([catalogs.find((each) => each.name === current)?.name ?? catalogs[0].name]);
    this.draw();
  }

  reload() {
    this.read.clear();
    for (const key of this.open) this.load(JSON.parse(key));
  }

  toggle(path) {
    const key = JSON.stringify(path);
    if (!this.open.delete(key)) {
      this.open.add(key);
      if (!this.read.has(key)) this.load(path);
    }
    this.draw();
  }

  async load([catalog, schema, table]) {
    const key = JSON.stringify([catalog, schema, table].filter((part) => part !== undefined));
    try {
      this.read.set(key, await get("/api/schema", { catalog, schema, table }));
    } catch (failure) {
      this.read.set(key, { failure: describe(failure) });
    }
    this.draw();
  }

  draw() {
    update(this.list, this.catalogs.map((each) => h("li", { "data-key": each.name }, this.node([each.name], each.name, () => this.tables(each.name)))));
  }

  node(path, label, children, extra = "") {
    const key = JSON.stringify(path);
    const isOpen = this.open.has(key);
    return [
      h("div", { class: "node" }, button(h("span", {}, isOpen ? "▾" : "▸"), () => this.toggle(path), { class: "quiet twist", "aria-expanded": String(isOpen), "aria-label": `${label}: ${isOpen ? "close" : "open"}` }), button(label, () => (path.length > 1 ? this.insert(this.read.get(JSON.stringify([path[0]])).tables.find((each) => each.schema === path[1] && each.name === path[2]).sql_name) : this.toggle(path)), { class: "quiet name" }), extra),
      isOpen && children(),
    ];
  }

  tables(catalog) {
    const found = this.read.get(JSON.stringify([catalog]));
    if (!found) return h("p", { class: "muted" }, "Reading…");
    if (found.failure) return h("p", { class: "error-text" }, found.failure);
    const shown = found.tables.filter((each) => `${each.schema}.${each.name}`.toLowerCase().includes(this.filter));
    if (!shown.length) return h("p", { class: "muted" }, found.tables.length ? "No table matches." : "No table yet: CREATE TABLE …");
    return h(
      "ul",
      {},
      shown.map((each) => {
        const name = each.schema === "main" ? each.name : `${each.schema}.${each.name}`;
        if (each.is_view) return h("li", { "data-key": `v:${name}` }, h("div", { class: "node leaf" }, button(name, () => this.insert(each.sql_name), { class: "quiet name" }), h("span", { class: "muted" }, "view")));
        return h("li", { "data-key": `t:${name}` }, this.node([catalog, each.schema, each.name], name, () => this.columns(catalog, each)));
      }),
    );
  }

  columns(catalog, table) {
    const found = this.read.get(JSON.stringify([catalog, table.schema, table.name]));
    if (!found) return h("p", { class: "muted" }, "Reading…");
    if (found.failure) return h("p", { class: "error-text" }, found.failure);
    return h("ul", { class: "columns" }, found.columns.map((column) => h("li", { "data-key": column.path, class: `depth-${Math.min(column.depth, 4)}` }, button(column.name, () => this.insert(column.sql_name), { class: "quiet name mono" }), h("span", { class: "muted" }, column.type.toLowerCase()))));
  }
}
