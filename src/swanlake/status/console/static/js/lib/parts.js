// Parts of pages: buttons, badges, tables, tiles, empty states.

import { h } from "./dom.js";

export function button(text, onclick, attributes = {}) {
  return h("button", { type: "button", ...attributes, onclick }, text);
}

export function badge(text, kind = "") {
  return h("span", { class: `badge ${kind}` }, text);
}

/** A heading of a page with a sentence and buttons. */
export function pageHead(title, lead, ...actions) {
  return h("div", { class: "page-head" }, h("h1", {}, title), lead && h("p", { class: "lead" }, lead), actions.flat().some(Boolean) && h("div", { class: "actions" }, actions));
}

/** A card with a heading; attributes.key identifies it in updates. */
export function card({ title, note, actions, key, id }, ...content) {
  return h(
    "section",
    { class: "card", "data-key": key, "aria-label": title, id },
    h("div", { class: "card-head" }, h("h2", {}, title), note && h("span", { class: "note" }, note), actions?.some(Boolean) && h("div", { class: "actions" }, actions)),
    content,
  );
}

/** Numbers side by side: [[label, value, unit or sentence]]. */
export function tiles(entries) {
  return h(
    "dl",
    { class: "tiles" },
    entries.filter(Boolean).map(([label, value, sub]) => h("div", { class: "tile", "data-key": label }, h("dt", {}, label), h("dd", {}, value), sub && h("dd", { class: "sub" }, sub))),
  );
}

/** A description list. */
export function facts(entries) {
  return h("dl", { class: "facts" }, entries.filter(Boolean).map(([label, value]) => [h("dt", {}, label), h("dd", {}, value)]));
}

/** A table: columns are {label, class, wide, cell(row)}; detail(row) is a second row, if it is there. */
export function table({ label, columns, rows, key, detail }) {
  const shown = columns.filter(Boolean);
  const cells = (row) =>
    shown.map((column) => h("td", { class: [column.class, column.wide && "wide"].filter(Boolean).join(" ") || undefined, "data-label": column.label }, column.cell(row)));
  return h(
    "div",
    { class: "scroll" },
    h(
      "table",
      { class: "cards", "aria-label": label },
      h("thead", {}, h("tr", {}, shown.map((column) => h("th", { scope: "col", class: column.class }, column.label || h("span", { class: "visually-hidden" }, "Actions"))))),
      h(
        "tbody",
        {},
        rows.map((row) => {
          const more = detail?.(row);
          return [h("tr", { "data-key": `r:${key(row)}` }, cells(row)), more && h("tr", { class: "detail", "data-key": `d:${key(row)}` }, h("td", { colspan: shown.length }, more))];
        }),
      ),
    ),
  );
}

/** What to show instead of nothing: why it is empty, and the command that changes it. */
export function empty(text, hint, command) {
  return h("div", { class: "empty" }, h("b", {}, text), hint && h("span", {}, hint), command && commandLine(command));
}

/** A command with a button that copies it. */
export function commandLine(text) {
  const copy = button("Copy", async () => {
    await navigator.clipboard.writeText(text);
    copy.textContent = "Copied";
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  });
  return h("span", { class: "command" }, h("code", {}, text), copy);
}

/** A text that shows two lines and opens to all of it. */
export function longText(text, className = "sql-cell") {
  if (text.length < 160 && !text.includes("\n")) return h("div", { class: className }, text);
  return h("details", { class: `more ${className}` }, h("summary", {}, text));
}

/** How much of something is done, from 0 to 1. */
export function progressBar(share, label) {
  const bar = h("span", { class: "bar", role: "progressbar", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": Math.round(share * 100) });
  const width = Math.max(Math.min(share, 1), 0) * 100;
  bar.append(h("svg", { viewBox: "0 0 100 5", preserveAspectRatio: "none", width: "100%", height: 5, "aria-hidden": "true" }, h("rect", { class: "bar-fill", width, height: 5 })));
  return bar;
}
