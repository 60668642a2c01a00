// The editor: a textarea above the same text in colours.

import { h, replace } from "../lib/dom.js";
import { tokens } from "./highlight.js";

/** Longer texts have no colours: building them would slow down typing. */
const MAX_COLOURED = 50_000;

export class Editor {
  constructor({ text, onChange, onRun }) {
    this.onChange = onChange;
    this.onRun = onRun;
    this.area = h("textarea", {
      id: "editor",
      spellcheck: "false",
      autocapitalize: "off",
      autocomplete: "off",
      "aria-label": "SQL statement",
      "aria-describedby": "editor-help",
      rows: "9",
      oninput: () => this.changed(),
      onkeydown: (event) => this.key(event),
    });
    this.colours = h("pre", { "aria-hidden": "true" });
    this.area.addEventListener("scroll", () => {
      this.colours.scrollTop = this.area.scrollTop;
      this.colours.scrollLeft = this.area.scrollLeft;
    });
    this.element = h("div", { class: "editor" }, this.colours, this.area);
    this.leavesOnTab = false;
    this.text = text;
  }

  get text() {
    return this.area.value;
  }

  set text(text) {
    this.area.value = text;
    this.paint();
  }

  /** The selected part, or all of it. */
  get wanted() {
    const { selectionStart, selectionEnd, value } = this.area;
    const selected = value.slice(selectionStart, selectionEnd);
    return selected.trim() ? selected : value;
  }

  get hasSelection() {
    return this.wanted !== this.area.value;
  }

  insert(text) {
    this.area.setRangeText(text, this.area.selectionStart, this.area.selectionEnd, "end");
    this.area.focus();
    this.changed();
  }

  changed() {
    this.paint();
    this.onChange(this.area.value);
  }

  paint() {
    const text = this.area.value;
    const parts = text.length > MAX_COLOURED ? [["", text]] : tokens(text);
    replace(this.colours, parts.map(([kind, part]) => (kind ? h("span", { class: `t-${kind}` }, part) : part)), "\n");
  }

  key(event) {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      this.onRun();
    } else if (event.key === "Escape") this.leavesOnTab = true;
    else if (event.key === "Tab" && !event.shiftKey && !this.leavesOnTab) {
      event.preventDefault();
      this.insert("  ");
    } else if (event.key !== "Shift" && event.key !== "Tab") this.leavesOnTab = false;
  }
}
