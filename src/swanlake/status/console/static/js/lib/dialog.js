// Questions before a change, and messages about what it did.

import { ApiError, post } from "./api.js";
import { h } from "./dom.js";
import { button } from "./parts.js";

const TOAST_MS = 9000;

/** Asks, runs the change if it is confirmed, and says what it did; the result, or undefined.
 *
 * { title, text, command, commandLabel, confirm, danger, run, done(result) }
 */
export function change({ title, text, command, commandLabel = "It runs", confirm, danger = false, run, done }) {
  const opener = document.activeElement;
  return new Promise((resolve) => {
    const yes = h("button", { class: danger ? "danger" : "primary", type: "submit" }, confirm);
    const no = h("button", { type: "button", onclick: () => dialog.close() }, "Keep as it is");
    const failure = h("p", { class: "error-text", role: "alert" });
    let result;
    const form = h(
      "form",
      { method: "dialog", onsubmit: submit },
      h("h2", { id: "dialog-title" }, title),
      text && h("p", {}, text),
      command && h("div", {}, h("p", { class: "muted" }, commandLabel), h("pre", {}, h("code", {}, command))),
      failure,
      h("div", { class: "actions" }, no, yes),
    );
    const dialog = h("dialog", { "aria-labelledby": "dialog-title" }, form);
    dialog.onclose = () => {
      dialog.remove();
      if (opener?.isConnected) opener.focus();
      resolve(result);
    };
    document.body.append(dialog);
    dialog.showModal();
    no.focus();

    async function submit(event) {
      event.preventDefault();
      yes.disabled = true;
      yes.textContent = "Working…";
      failure.textContent = "";
      try {
        result = await run();
        dialog.close();
        say(done(result));
      } catch (error) {
        failure.textContent = describe(error);
        yes.disabled = false;
        yes.textContent = confirm;
      }
    }
  });
}

/** Calls a procedure of the server; its rows. */
export async function call(procedure, parameters = {}, deadline = 320_000) {
  return (await post("/api/call", { procedure, arguments: parameters }, { deadline })).rows;
}

/** Parameters that stand without their names: each is the first of its procedure. */
const BY_POSITION = new Set(["table", "segment"]);

/** The statement that calls a procedure, for people. */
export function callText(procedure, parameters = {}) {
  const text = (value) => (typeof value === "string" ? `'${value.replaceAll("'", "''")}'` : value);
  const written = Object.entries(parameters).map(([name, value]) => (BY_POSITION.has(name) ? text(value) : `${name} := ${text(value)}`));
  return `CALL ${procedure}(${written.join(", ")})`;
}

/** Shows a message for a while. */
export function say(text, kind = "good") {
  const toast = h("div", { class: `toast ${kind}` }, h("p", {}, text), button("Close", () => toast.remove(), { class: "quiet small" }));
  document.getElementById("toasts").append(toast);
  setTimeout(() => toast.remove(), TOAST_MS);
}

/** An error as a sentence with its identifier. */
export function describe(error) {
  return error instanceof ApiError ? `${error.message} (${error.identifier})` : String(error);
}
