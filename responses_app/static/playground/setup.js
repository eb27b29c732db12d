// The panel that says what the chosen lane's requests are made of.

import { byId, h } from "./dom.js";
import { FunctionDialog } from "./function-dialog.js";

const SWITCHES = {
  web_search: ["Web search", "Finds pages and cites them"],
  code_interpreter: ["Code interpreter", "Runs Python in a sandbox"],
  file_search: ["File search", "Searches vector stores"],
  image_generation: ["Image generation", "Draws what is described"],
};

/** Shows one lane's setup at a time, and changes it; `changed()` hears of it. */
export class SetupPanel {
  constructor(facts, { changed }) {
    this.facts = facts;
    this.keep = changed; // hears that the setup is another one
    this.form = byId("setup-form");
    this.dialog = new FunctionDialog((tool, place) => this.#keepFunction(tool, place));
    this.#switches();
    this.#servers();
    byId("add-function").addEventListener("click", () => this.dialog.open());
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
    this.setup = setup;
    this.title = title;
    const { elements } = this.form;
    if (this.names?.length && !this.names.includes(setup.model)) setup.model = this.names[0];
    elements.model.value = setup.model;
    for (const name of ["instructions", "temperature", "max_output_tokens"]) elements[name].value = setup[name];
    for (const each of elements.effort) each.checked = each.value === setup.effort; // Chromium chooses none by value ""
    elements.store.checked = setup.store;
    for (const type of Object.keys(this.switched)) {
      if (this.switched[type]) this.switched[type].checked = setup.switched.includes(type);
    }
    if (this.stores) {
      this.stores.value = setup.vector_stores;
      this.stores.closest(".field").hidden = !setup.switched.includes("file_search");
    }
    byId("setup-lane").textContent = title ?? "";
    byId("setup-lane").hidden = !title;
    this.#list();
  }

  #read() {
    const { elements } = this.form;
    for (const name of ["model", "instructions", "effort", "temperature", "max_output_tokens"]) this.setup[name] = elements[name].value;
    this.setup.store = elements.store.checked;
    this.setup.switched = Object.keys(this.switched).filter((type) => this.switched[type]?.checked);
    if (this.stores) {
      this.setup.vector_stores = this.stores.value;
      this.stores.closest(".field").hidden = !this.setup.switched.includes("file_search");
    }
    this.keep();
  }

  #switches() {
    const offered = Object.keys(SWITCHES).filter((type) => this.facts.tools.includes(type));
    this.switched = Object.fromEntries(offered.map((type) => [type, h("input", { type: "checkbox", name: `on-${type}` })]));
    const made = offered.map((type) => toggle(this.switched[type], ...SWITCHES[type]));
    if (offered.includes("file_search")) {
      this.stores = h("input", { name: "vector_stores", placeholder: "vs_…", spellcheck: "false" });
      made.splice(offered.indexOf("file_search") + 1, 0, h("label", { class: "field inset", hidden: true }, h("span", {}, "Vector stores"), this.stores));
    }
    const none = h("p", { class: "hint" }, "This server runs no tools of its own.");
    byId("switches").replaceChildren(...(made.length ? made : [none]));
  }

  #servers() {
    byId("mcp").hidden = !this.facts.tools.includes("mcp");
    byId("add-server").hidden = !this.facts.servers_by_url;
    const dialog = byId("server");
    const form = byId("server-form");
    byId("add-server").addEventListener("click", () => {
      form.reset();
      dialog.showModal();
    });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const server = { ...Object.fromEntries(new FormData(form)), on: true };
      this.setup.servers = [...this.setup.servers.filter((each) => each.server_label !== server.server_label), server];
      dialog.close();
      this.keep();
      this.#list();
    });
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
    byId("servers").replaceChildren(...this.#knownServers().map((server) => this.#server(server)));
  }

  /** Those that the operator has configured, and those that were added here. */
  #knownServers() {
    const added = this.setup.servers.filter(({ server_url }) => server_url);
    const configured = this.facts.servers.map(
      (label) => this.setup.servers.find((each) => each.server_label === label && !each.server_url) ?? { server_label: label, require_approval: "always", on: false },
    );
    return [...configured, ...added];
  }

  #server(server) {
    const box = h("input", { type: "checkbox" });
    box.checked = server.on;
    const asks = h("select", { "aria-label": `Approval of calls of ${server.server_label}` });
    asks.append(h("option", { value: "always" }, "Ask me"), h("option", { value: "never" }, "Never ask"));
    asks.value = server.require_approval;
    const change = () => {
      Object.assign(server, { on: box.checked, require_approval: asks.value });
      if (!this.setup.servers.includes(server)) this.setup.servers.push(server);
      this.keep();
    };
    box.addEventListener("change", change);
    asks.addEventListener("change", change);
    const remove = () => {
      this.setup.servers = this.setup.servers.filter((each) => each !== server);
      this.keep();
      this.#list();
    };
    const button = h("button", { type: "button", class: "link", "aria-label": `Remove ${server.server_label}`, on: { click: remove } }, "Remove");
    return h("li", { class: "server" }, toggle(box, server.server_label, server.server_url ?? "Of this server's settings"), asks, server.server_url ? button : null);
  }

  #keepFunction(tool, place) {
    if (!tool) this.setup.functions.splice(place, 1);
    else if (place === undefined) this.setup.functions.push(tool);
    else this.setup.functions[place] = tool;
    this.keep();
    this.#list();
  }
}

const toggle = (box, title, what) =>
  h("label", { class: "switch" }, box, h("span", { class: "track", "aria-hidden": "true" }), h("span", { class: "what" }, title, h("small", {}, what)));
