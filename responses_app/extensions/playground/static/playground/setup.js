// The panel that says what the chosen lane's requests are made of.

import { Controls } from "./controls.js";
import { byId, copy, h } from "./dom.js";
import { toldOf } from "./fields.js";
import { FunctionDialog } from "./function-dialog.js";
import { ExtraDialog, SchemaDialog } from "./json-dialogs.js";
import { Servers } from "./mcp.js";
import { KINDS, Picker } from "./picker.js";
import { linkOf, Links } from "./presets.js";
import { Prompts } from "./prompts.js";
import { copyOf, emptySetup, idsIn } from "./request.js";

const SWITCHES = {
  web_search: ["Web search", "Finds pages and cites them"],
  code_interpreter: ["Code interpreter", "Runs Python in a sandbox"],
  file_search: ["File search", "Searches vector stores"],
  image_generation: ["Image generation", "Draws what is described"],
};
const TEXTS = ["model", "instructions", "effort", "format"];
const IDS = {
  vector_stores: { tool: "file_search", label: "Vector stores", kind: "vector_stores", placeholder: "vs_…", several: true },
  container: { tool: "code_interpreter", label: "Container", kind: "containers", placeholder: "a new one", several: false },
  container_files: { tool: "code_interpreter", label: "Files in it", kind: "files", placeholder: "none", several: true },
};

/** Shows one lane's setup at a time, and changes it; `changed()` hears of it. */
export class SetupPanel {
  constructor(facts, door, { changed }) {
    Object.assign(this, { facts, door, keep: changed });
    this.form = byId("setup-form");
    this.controls = new Controls(this.form);
    this.picker = new Picker(door);
    const schema = new SchemaDialog(door);
    const extra = new ExtraDialog(door);
    this.dialog = new FunctionDialog((tool, place) => this.#keepFunction(tool, place), door, () => this.setup.model);
    this.#switches();
    this.servers = new Servers(this);
    this.prompts = new Prompts(this);
    this.links = new Links(this);
    byId("add-function").addEventListener("click", () => this.dialog.open());
    byId("edit-schema").addEventListener("click", () => schema.open(this.setup, (kept) => this.#take({ schema: kept })));
    byId("edit-extra").addEventListener("click", () => extra.open(this.setup, (kept) => this.#take({ extra: kept })));
    byId("setup-link").addEventListener("click", ({ target }) => this.#link(target));
    byId("setup-reset").addEventListener("click", () => this.replace(emptySetup(this.setup.model), "The setup is empty again."));
    this.form.addEventListener("input", () => this.#read());
    this.form.addEventListener("submit", (event) => event.preventDefault());
  }

  /** Say which models there are. */
  models(names) {
    this.form.elements.model.replaceChildren(...names.map((name) => h("option", { value: name }, name)));
    this.names = names;
    if (this.setup) this.show(this.setup);
  }

  /** Show a setup; `title` is its lane's, where there are several. */
  show(setup, title = this.title) {
    if (this.setup !== setup) byId("setup-replaced").hidden = true;
    Object.assign(setup, { ...emptySetup(), ...setup }); // one that was kept by an earlier version lacks some fields
    this.setup = setup;
    this.title = title;
    const { elements } = this.form;
    if (this.names?.length && !this.names.includes(setup.model)) setup.model = this.names[0];
    for (const name of ["model", "instructions"]) elements[name].value = setup[name];
    // Chromium chooses none of the radio buttons by value "".
    for (const name of ["effort", "format"]) for (const each of elements[name]) each.checked = each.value === setup[name];
    this.controls.show(setup);
    elements.store.checked = setup.store;
    for (const [type, box] of Object.entries(this.switched)) box.checked = setup.switched.includes(type);
    for (const [name, field] of Object.entries(this.ids)) field.value = setup[name];
    byId("setup-lane").textContent = title ?? "";
    byId("setup-lane").hidden = !title;
    this.#list();
    this.#tell();
  }

  /** Put another setup in place of the one that is shown, and offer to undo that. */
  replace(setup, told) {
    const before = copyOf(this.setup);
    Object.assign(this.setup, copyOf(setup));
    this.show(this.setup);
    this.keep();
    const undo = () => {
      Object.assign(this.setup, before);
      this.show(this.setup);
      this.keep();
      byId("setup-replaced").hidden = true;
      byId("model").focus();
    };
    byId("setup-replaced").replaceChildren(`${told} `, h("button", { type: "button", class: "link", on: { click: undo } }, "Undo"));
    byId("setup-replaced").hidden = false;
  }

  #read() {
    const { elements } = this.form;
    for (const name of TEXTS) this.setup[name] = elements[name].value;
    this.controls.read(this.setup);
    this.setup.store = elements.store.checked;
    const known = Object.keys(this.switched);
    const others = this.setup.switched.filter((type) => !known.includes(type)); // of a setup that was made elsewhere
    this.setup.switched = [...known.filter((type) => this.switched[type].checked), ...others];
    for (const [name, field] of Object.entries(this.ids)) this.setup[name] = field.value;
    this.changed();
  }

  #take(values) {
    Object.assign(this.setup, values);
    this.changed();
  }

  /** Something of the setup has changed. */
  changed() {
    this.controls.tools(this.setup);
    this.keep();
    this.#tell();
  }

  /** Say in one line of each group what is set. */
  #tell() {
    const { setup } = this;
    const extra = Object.keys(setup.extra).join(", ");
    const more = [toldOf("more", setup), setup.store ? "" : "not stored", extra].filter(Boolean).join(", ");
    const on = setup.servers.filter((server) => server.on !== false).map(({ server_label: label }) => label);
    const told = {
      functions: setup.functions.map((tool) => tool.name ?? tool.type).join(", "),
      switched: setup.switched.map((type) => SWITCHES[type]?.[0] ?? type).join(", "),
      servers: on.join(", "),
      more,
    };
    for (const place of this.form.querySelectorAll("[data-set]")) {
      const set = told[place.dataset.set] ?? toldOf(place.dataset.set, setup);
      place.textContent = set || (place.dataset.set in told && place.dataset.set !== "more" ? "None" : "Default");
      place.toggleAttribute("data-is-set", Boolean(set));
    }
    byId("schema-line").hidden = setup.format !== "json_schema";
    byId("schema-name").textContent = setup.schema.name;
    byId("extra-told").textContent = extra || "Any other field of the request, as JSON";
    byId("setup-prompt").textContent = setup.prompt;
    byId("setup-prompt").hidden = !setup.prompt;
    for (const [name, { tool }] of Object.entries(IDS)) {
      const field = this.ids[name];
      if (field) field.closest(".inset").hidden = !setup.switched.includes(tool) || (name === "container_files" && setup.container !== "");
    }
  }

  #switches() {
    const offered = Object.keys(SWITCHES).filter((type) => this.facts.tools.includes(type));
    this.switched = Object.fromEntries(offered.map((type) => [type, h("input", { type: "checkbox", name: `on-${type}` })]));
    this.ids = {};
    const made = offered.flatMap((type) => [
      toggle(this.switched[type], ...SWITCHES[type]),
      ...Object.entries(IDS).filter(([, { tool }]) => tool === type).map(([name, each]) => this.#idsOf(name, each)),
    ]);
    const none = h("p", { class: "hint" }, "This server runs no tools of its own.");
    byId("switches").replaceChildren(...(made.length ? made : [none]));
  }

  /** Ids can be written, and chosen from the list. */
  #idsOf(name, { label, kind, placeholder, several }) {
    const field = (this.ids[name] = h("input", { name, placeholder, spellcheck: "false", autocapitalize: "off" }));
    const choose = () =>
      this.picker.open(kind, idsIn(field.value), (ids) => {
        field.value = ids.join(", ");
        this.#read();
      }, { several });
    const button = h("button", { type: "button", class: "quiet", "aria-label": `Choose ${KINDS[kind].title.toLowerCase()}`, on: { click: choose } }, "Choose");
    return h("div", { class: "inset with-button", hidden: true }, h("label", { class: "field" }, h("span", {}, label), field), button);
  }

  #list() {
    const { functions } = this.setup;
    byId("no-functions").hidden = functions.length > 0;
    byId("functions").replaceChildren(
      ...functions.map((tool, place) => {
        const edit = () => this.dialog.open(tool, place);
        const name = tool.name ?? tool.type;
        return h("li", {}, h("code", {}, name), h("span", { class: "push" }), h("button", { type: "button", class: "link", "aria-label": `Edit ${name}`, on: { click: edit } }, "Edit"));
      }),
    );
    this.servers.show();
  }

  #keepFunction(tool, place) {
    if (!tool) this.setup.functions.splice(place, 1);
    else if (place === undefined) this.setup.functions.push(tool);
    else this.setup.functions[place] = tool;
    this.#list();
    this.changed();
  }

  #link(button) {
    const { link, problem } = linkOf(this.setup);
    if (problem) {
      byId("setup-replaced").textContent = problem;
      byId("setup-replaced").hidden = false;
    } else {
      copy(link, button);
    }
  }
}

const toggle = (box, title, what) =>
  h("label", { class: "switch" }, box, h("span", { class: "track", "aria-hidden": "true" }), h("span", { class: "what" }, title, h("small", {}, what)));
