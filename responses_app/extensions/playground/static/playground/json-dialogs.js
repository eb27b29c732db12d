// Two dialogs with JSON: the schema of an answer, and fields that have no control.

import { wrongOf } from "./asking.js";
import { byId } from "./dom.js";
import { JsonEditor } from "./json-editor.js";
import { EXAMPLE_SCHEMA, requestOf } from "./request.js";

const NAME = /^[\w-]{1,64}$/u;
// The page writes these itself: another value would break the lane, or add tools that nobody sees in the setup.
const OWN = ["type", "stream_id", "input", "previous_response_id", "conversation", "stream", "background", "generate", "tools"];

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const modelOf = ({ model }) => (model ? { model } : {});

/** What all dialogs with an editor do: `keep` hears what was written, as soon as it is right. */
class JsonDialog {
  constructor(name, editor) {
    this.dialog = byId(name);
    this.form = byId(`${name}-form`);
    this.wrong = byId(`${name}-wrong`);
    this.editor = editor;
    byId(`${name}-editor`).replaceChildren(editor.element);
    this.dialog.addEventListener("close", () => editor.stop());
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.wrong.textContent = this.problem() || (editor.isRight ? "" : "What is written cannot be kept: see below the field.");
      if (this.wrong.textContent) return;
      this.dialog.close();
      this.keep(this.read());
    });
  }

  problem() {
    return "";
  }

  open(setup, keep) {
    Object.assign(this, { setup, keep });
    this.wrong.textContent = "";
    this.fill();
    this.dialog.showModal();
    this.editor.focus();
  }
}

/** The schema of an answer: its name, whether it is strict, and the schema itself. */
export class SchemaDialog extends JsonDialog {
  constructor(door) {
    const ask = (schema, signal) => wrongOf(door, { ...modelOf(this.setup), text: { format: { type: "json_schema", ...this.read(), name: "answer" } } }, signal);
    const own = (value) => (isObject(value) ? "" : "A schema is an object, like the example.");
    super("schema", new JsonEditor({ label: "JSON schema", example: EXAMPLE_SCHEMA, own, ask, taken: "The server accepts this schema: every answer will fit it." }));
  }

  fill() {
    const { name, description, strict, schema } = this.setup.schema;
    const { elements } = this.form;
    elements.name.value = name;
    elements.description.value = description ?? "";
    elements.strict.checked = Boolean(strict);
    this.editor.show(schema);
  }

  problem() {
    return NAME.test(this.form.elements.name.value.trim()) ? "" : "A name has letters, digits, _ and -, 64 at most.";
  }

  read() {
    const { name, description, strict } = this.form.elements;
    const described = description.value.trim();
    return { name: name.value.trim(), ...(described ? { description: described } : {}), strict: strict.checked, schema: this.editor.value };
  }
}

/** Fields of a request that have no control in the setup. */
export class ExtraDialog extends JsonDialog {
  constructor(door) {
    const ask = (extra, signal) => wrongOf(door, { ...requestOf({ ...this.setup, extra }), tools: [] , tool_choice: undefined }, signal);
    super("extra", new JsonEditor({ label: "Fields of the request", example: { context_management: [{ type: "compaction", compact_threshold: 2000 }] }, own: wrongWithExtra, ask, taken: "The server accepts these fields.", optional: true }));
  }

  fill() {
    this.editor.show(Object.keys(this.setup.extra).length ? this.setup.extra : undefined);
  }

  read() {
    return this.editor.value ?? {};
  }
}

/** Return what is wrong with extra fields, "" for nothing. */
export function wrongWithExtra(value) {
  if (!isObject(value)) return 'These are fields of a request: an object, like {"top_p": 0.9}.';
  const name = Object.keys(value).find((each) => OWN.includes(each));
  return name ? `The page sets '${name}' itself. Leave it out.` : "";
}
