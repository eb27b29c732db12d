// A function, by a form or as JSON. What the form cannot show is left to JSON.

import { wrongOf } from "./asking.js";
import { byId, h } from "./dom.js";
import { JsonEditor } from "./json-editor.js";
import { tabs } from "./tabs.js";

const TYPES = ["string", "number", "integer", "boolean"];
const NAME = /^[\w-]{1,64}$/u;
const SIMPLE = ["type", "description"];
const EXAMPLE = {
  type: "function",
  name: "get_weather",
  description: "Tells the weather of a city.",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false },
  strict: true,
};

/**
 * Opens for a new function or one that is there; `keep(tool, place)` takes it, `keep(null, place)` removes it. `door`
 * reaches the server, which says what is wrong with a tool; `model()` is the one that is to call it.
 */
export class FunctionDialog {
  constructor(keep, door, model) {
    this.keep = keep;
    const ask = (tool, signal) => wrongOf(door, { ...(model() ? { model: model() } : {}), tools: [tool] }, signal);
    this.editor = new JsonEditor({ label: "A tool, as a request has it", name: "json", example: EXAMPLE, own: wrongWith, ask, taken: "The server accepts this tool." });
    byId("tool-json").replaceChildren(this.editor.element);
    this.dialog = byId("tool");
    this.form = byId("tool-form");
    this.wrong = byId("tool-wrong");
    this.tabs = tabs([byId("tool-by-form"), byId("tool-by-json")], (tab) => this.#turn(tab.id === "tool-by-json"));
    byId("add-parameter").addEventListener("click", () => this.#parameter().querySelector("input").focus());
    byId("tool-remove").addEventListener("click", () => this.#done(null));
    this.form.addEventListener("submit", (event) => this.#submit(event));
    this.dialog.addEventListener("close", () => this.editor.stop());
  }

  open(tool, place) {
    this.place = place;
    this.wrong.textContent = "";
    byId("tool-remove").hidden = place === undefined;
    const shown = tool ?? { type: "function", name: "", description: "", parameters: { type: "object", properties: {} } };
    this.asJson = !fits(shown);
    this.#show();
    if (this.asJson) this.editor.show(shown);
    else this.#fill(shown);
    this.dialog.showModal();
    (this.asJson ? this.editor : this.form.elements.name).focus();
  }

  #show() {
    this.tabs.select(byId(this.asJson ? "tool-by-json" : "tool-by-form"));
    byId("tool-fields").hidden = this.asJson;
    byId("tool-json").hidden = !this.asJson;
  }

  /** Go over to the other way of writing it, with what is written. */
  #turn(asJson) {
    if (asJson === this.asJson) return;
    this.wrong.textContent = "";
    if (asJson) {
      this.editor.show(this.#read());
    } else {
      const tool = this.#parsed();
      if (!tool) return this.#show();
      if (!fits(tool)) {
        this.wrong.textContent = "The form shows functions whose parameters are plain values. This one stays JSON.";
        return this.#show();
      }
      this.#fill(tool);
    }
    this.asJson = asJson;
    this.#show();
  }

  #fill(tool) {
    this.form.elements.name.value = tool.name ?? "";
    this.form.elements.description.value = tool.description ?? "";
    byId("parameters").replaceChildren();
    const { properties = {}, required = [] } = tool.parameters ?? {};
    for (const [name, schema] of Object.entries(properties)) this.#parameter(name, schema, required.includes(name));
  }

  #parameter(name = "", schema = { type: "string" }, required = true) {
    const type = h("select", { "aria-label": "Type" }, ...TYPES.map((each) => h("option", { value: each }, each)));
    type.value = schema.type;
    const needed = h("input", { type: "checkbox" });
    needed.checked = required;
    const row = h(
      "div",
      { class: "parameter" },
      h("input", { "aria-label": "Name of the parameter", placeholder: "city", value: name, spellcheck: "false" }),
      type,
      h("label", {}, needed, " needed"),
      h("button", { type: "button", class: "link", on: { click: () => row.remove() } }, "Remove"),
      h("input", { class: "whole", "aria-label": "Description of the parameter", placeholder: "What it is", value: schema.description ?? "" }),
    );
    byId("parameters").append(row);
    return row;
  }

  #read() {
    const rows = [...byId("parameters").children].map((row) => {
      const [name, needed, description] = row.querySelectorAll("input");
      return { name: name.value.trim(), type: row.querySelector("select").value, needed: needed.checked, description: description.value };
    });
    const named = rows.filter(({ name }) => name);
    const properties = Object.fromEntries(named.map(({ name, type, description }) => [name, { type, ...(description ? { description } : {}) }]));
    return {
      type: "function",
      name: this.form.elements.name.value.trim(),
      ...(this.form.elements.description.value ? { description: this.form.elements.description.value } : {}),
      parameters: { type: "object", properties, required: named.filter(({ needed }) => needed).map(({ name }) => name), additionalProperties: false },
      strict: named.every(({ needed }) => needed),
    };
  }

  #parsed() {
    if (this.editor.isRight) return this.editor.value;
    this.wrong.textContent = "What is written is no tool yet: see below the field.";
    return null;
  }

  #submit(event) {
    event.preventDefault();
    const tool = this.asJson ? this.#parsed() : this.#read();
    if (!tool) return;
    if (tool.type === "function" && !NAME.test(tool.name ?? "")) {
      this.wrong.textContent = "A name has letters, digits, _ and -, 64 at most.";
      return;
    }
    this.#done(tool);
  }

  #done(tool) {
    this.dialog.close();
    this.keep(tool, this.place);
  }
}

/** Return what is wrong with a tool, "" for nothing. */
function wrongWith(tool) {
  return tool?.type ? "" : 'A tool is an object with a "type", such as {"type": "function", "name": …}.';
}

/** Whether the form can show a tool with nothing left out. */
function fits(tool) {
  const known = ["type", "name", "description", "parameters", "strict"];
  const { type, properties = {}, required, additionalProperties, ...more } = tool.parameters ?? {};
  const plain = Object.values(properties).every((schema) => TYPES.includes(schema?.type) && Object.keys(schema).every((key) => SIMPLE.includes(key)));
  return tool.type === "function" && Object.keys(tool).every((key) => known.includes(key)) && plain && !Object.keys(more).length;
}
