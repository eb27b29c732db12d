// The controls of the fields in `fields.js`, each in its group of the setup.

import { h } from "./dom.js";
import { FIELDS, wrongWith } from "./fields.js";

const WIDE = ["lines", "json", "tool"]; // these take a whole line

/** Makes the controls within a form; a form's `input` event tells of a change, and `read` takes it. */
export class Controls {
  constructor(form) {
    this.made = new Map();
    for (const group of form.querySelectorAll("[data-fields]")) {
      const fields = FIELDS.filter((field) => field.group === group.dataset.fields);
      group.querySelector("summary").after(h("div", { class: "fields" }, ...fields.map((field) => this.#field(field))));
    }
  }

  show(setup) {
    for (const field of FIELDS) {
      const { control, wrong } = this.made.get(field.name);
      if (field.of === "tool") offerTools(control, setup);
      control.value = setup[field.name];
      tell(field, control, wrong);
    }
  }

  /** Offer the tools there are now. */
  tools(setup) {
    const { control } = this.made.get("tool_choice");
    offerTools(control, setup);
    control.value = setup.tool_choice;
  }

  read(setup) {
    for (const field of FIELDS) {
      const { control, wrong } = this.made.get(field.name);
      setup[field.name] = control.value;
      tell(field, control, wrong);
    }
  }

  #field(field) {
    const { name, label, of, options, example, hint, longest } = field;
    const attributes = { name, "aria-describedby": `${name}-wrong`, spellcheck: "false", autocapitalize: "off" };
    let control;
    if (of === "choice" || of === "boolean" || of === "tool") {
      const offered = of === "boolean" ? { true: "On", false: "Off" } : (options ?? {});
      control = h("select", attributes, option("", "Default"), ...Object.entries(offered).map(([value, text]) => option(value, text)));
    } else if (of === "lines") {
      control = h("textarea", { ...attributes, rows: "2" });
    } else {
      const mode = { number: "decimal", integer: "numeric" }[of];
      control = h("input", { ...attributes, placeholder: example ?? "", inputmode: mode, maxlength: of === "text" ? longest : 4096 });
    }
    const wrong = h("p", { class: "wrong", id: `${name}-wrong`, role: "status" });
    this.made.set(name, { control, wrong });
    const shown = h("label", { class: "field" }, h("span", {}, label), control, hint ? h("small", {}, hint) : null);
    return h("div", { class: WIDE.includes(of) || hint ? "wide" : null }, shown, wrong);
  }
}

const option = (value, text) => h("option", { value }, text);

function tell(field, control, wrong) {
  wrong.textContent = wrongWith(field, control.value);
  control.setAttribute("aria-invalid", String(Boolean(wrong.textContent)));
}

/** Offer what `tool_choice` can name of a setup. A tool that is gone stays, where it is chosen. */
function offerTools(select, setup) {
  const choices = new Map([["", "Default: as the model likes"], ["none", "No tool"], ["required", "Some tool, always"]]);
  const add = (choice, text) => choices.set(JSON.stringify(choice), text);
  for (const { type, name } of setup.functions) add({ type, ...(name ? { name } : {}) }, `Always ${name ?? type}`);
  for (const type of setup.switched) add({ type }, `Always ${type}`);
  for (const { server_label: label, on } of setup.servers) if (on !== false) add({ type: "mcp", server_label: label }, `Always ${label}`);
  if (!choices.has(setup.tool_choice)) choices.set(setup.tool_choice, `${setup.tool_choice.slice(0, 60)} (not among the tools)`);
  select.replaceChildren(...[...choices].map(([value, text]) => option(value, text)));
}
