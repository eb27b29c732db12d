// A field for JSON. While one types it says where the text is no JSON, and then what the server says of it.

import { h } from "./dom.js";
import { problemOf } from "./json.js";

const PAUSE = 400; // milliseconds without a key, behind which the server is asked
const LONGEST = 256 * 1024; // characters: more than the server takes of a schema or a tool

let count = 0;

/**
 * `label` names the field. `example` is what *Insert example* writes. `own(value)` returns what is wrong before the
 * server is asked, "" for nothing; `ask(value, signal)` resolves to what the server says, "" where it takes the value.
 * `changed(value)` hears of each text that is JSON and that `own` lets pass.
 */
export class JsonEditor {
  #timer = 0;
  #asking = null;

  constructor({ label, name, example, rows = 14, own = () => "", ask = null, taken = "The server accepts it.", changed = () => {}, optional = false }) {
    Object.assign(this, { example, own, ask, taken, changed, optional });
    const id = `json-${++count}`;
    this.field = h("textarea", { id, name, rows, class: "code", spellcheck: "false", autocapitalize: "off", maxlength: LONGEST, "aria-describedby": `${id}-told` });
    this.told = h("span", {});
    this.place = h("button", { type: "button", class: "link", hidden: true, on: { click: () => this.#goThere() } }, "Go there");
    this.status = h("p", { class: "json-told", id: `${id}-told`, role: "status" }, this.told);
    const button = (text, click) => h("button", { type: "button", class: "link", on: { click } }, text);
    this.insert = button("Insert example", () => this.#write(JSON.stringify(this.example, null, 2)));
    this.format = button("Format", () => this.#write(JSON.stringify(this.value, null, 2)));
    const head = h("div", { class: "json-head" }, h("label", { for: id }, label), h("span", { class: "push" }), example === undefined ? null : this.insert, this.format);
    this.element = h("div", { class: "json field" }, head, this.field, h("div", { class: "json-foot" }, this.status, this.place));
    this.field.addEventListener("input", () => this.#look());
    this.field.addEventListener("keydown", (event) => this.#indent(event));
  }

  /** What is written, parsed; undefined for what is no JSON. */
  get value() {
    return this.problem || !this.field.value.trim() ? undefined : JSON.parse(this.field.value);
  }

  /** Whether what is written can be kept; what the server alone refuses can, as another model may take it. */
  get isRight() {
    return !this.problem && !this.refused;
  }

  show(value) {
    this.field.value = value === undefined ? "" : JSON.stringify(value, null, 2);
    this.field.setSelectionRange(0, 0);
    this.#look();
  }

  /** No longer wait for the server. */
  stop() {
    clearTimeout(this.#timer);
    this.#asking?.abort();
  }

  focus() {
    this.field.focus();
  }

  #write(text) {
    this.field.focus();
    this.field.select();
    // The one way that leaves what was written to be undone by keys; where it is gone, the text is set.
    if (!document.execCommand?.("insertText", false, text)) this.field.value = text;
    this.field.setSelectionRange(0, 0);
    this.field.scrollTop = 0;
    this.#look();
  }

  /** Keep the indentation of a line in the next one. */
  #indent(event) {
    if (event.key !== "Enter" || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    const { value, selectionStart } = this.field;
    const line = value.slice(value.lastIndexOf("\n", selectionStart - 1) + 1, selectionStart);
    const opens = /[[{]\s*$/u.test(line) ? "  " : "";
    const indented = `\n${/^\s*/u.exec(line)[0]}${opens}`;
    if (indented === "\n" || !document.execCommand?.("insertText", false, indented)) return;
    event.preventDefault();
  }

  #look() {
    this.stop();
    const text = this.field.value;
    const isEmpty = !text.trim();
    this.problem = isEmpty && this.optional ? null : problemOf(text);
    this.refused = "";
    this.format.disabled = Boolean(this.problem) || isEmpty;
    this.place.hidden = !this.problem || isEmpty;
    if (this.problem) return this.#say(isEmpty ? this.problem.message : `Line ${this.problem.line}, column ${this.problem.column}: ${this.problem.message}`, isEmpty ? "" : "bad");
    this.refused = isEmpty ? "" : this.own(this.value);
    if (this.refused) return this.#say(this.refused, "bad");
    this.changed(this.value);
    if (isEmpty || !this.ask) return this.#say(isEmpty ? "" : "This is JSON.", "good");
    this.#say("This is JSON. The server is asked…", "");
    this.#timer = setTimeout(() => this.#askServer(), PAUSE);
    return undefined;
  }

  async #askServer() {
    this.#asking = new AbortController();
    const { signal } = this.#asking;
    try {
      const denied = await this.ask(this.value, signal);
      if (!signal.aborted) this.#say(denied || this.taken, denied ? "bad" : "good");
    } catch (error) {
      if (!signal.aborted) this.#say(`This is JSON. The server could not be asked: ${error.message}`, "");
    }
  }

  #say(text, tone) {
    this.told.textContent = text;
    this.status.dataset.tone = tone;
    this.field.setAttribute("aria-invalid", String(tone === "bad"));
  }

  #goThere() {
    const { at } = this.problem;
    this.field.focus();
    this.field.setSelectionRange(at, Math.min(at + 1, this.field.value.length));
  }
}
