// Setups that are saved by name, for everybody of the project. No access token is ever part of one.

import { Newest } from "./asking.js";
import { byId, h, say } from "./dom.js";
import { fromSomebodyElse } from "./presets.js";
import { withoutSecrets } from "./request.js";

const PATH = "/v1/playground/prompts";
const LONGEST = 100; // characters of a name

/** `panel`: door, setup, replace(setup, told), changed(). */
export class Prompts {
  constructor(panel) {
    this.panel = panel;
    this.newest = new Newest(panel.door);
    this.dialog = byId("prompts");
    this.wrong = byId("prompts-wrong");
    this.name = byId("prompts-name");
    this.name.maxLength = LONGEST;
    byId("open-prompts").addEventListener("click", () => this.open());
    byId("prompts-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#do(() => this.#save());
    });
    this.name.addEventListener("input", () => this.#button());
  }

  async open() {
    this.name.value = this.panel.setup.prompt;
    this.prompts = [];
    this.wrong.textContent = "";
    byId("prompts-list").replaceChildren();
    byId("prompts-none").hidden = true;
    this.#button();
    this.dialog.showModal();
    this.name.focus();
    await this.#do(() => this.#load());
  }

  async #do(what) {
    this.wrong.textContent = "";
    try {
      await what();
    } catch (error) {
      if (error.name !== "AbortError") this.wrong.textContent = error.message;
    }
  }

  async #load() {
    const { data } = await this.newest.ask(PATH);
    this.prompts = data;
    this.#list();
  }

  #list() {
    byId("prompts-none").hidden = this.prompts.length > 0;
    byId("prompts-list").replaceChildren(...this.prompts.map((prompt) => this.#row(prompt)));
    this.#button();
  }

  #row(prompt) {
    const { name, updated_at: saved } = prompt;
    const button = (text, kind, click) => h("button", { type: "button", class: kind, "aria-label": `${text}: ${name}`, on: { click } }, text);
    const when = saved ? h("small", {}, `Saved ${new Date(saved * 1000).toLocaleString()}`) : null;
    const row = h("li", {}, h("span", { class: "what" }, h("span", {}, name), when), h("span", { class: "push" }));
    const load = button("Load", "quiet", () => this.#do(() => this.#use(prompt)));
    const remove = button("Delete", "link", () => {
      const yes = button("Delete it", "danger", () => this.#do(() => this.#delete(prompt)));
      const no = button("Keep it", "quiet", () => {
        row.replaceChild(load, yes);
        row.replaceChild(remove, no);
        remove.focus();
      });
      row.replaceChild(yes, load);
      row.replaceChild(no, remove);
      no.focus();
    });
    row.append(load, remove);
    return row;
  }

  #use({ name, setup }) {
    const loaded = { ...fromSomebodyElse(setup), prompt: name };
    this.dialog.close();
    this.panel.replace(loaded, `“${name}” is loaded.`);
  }

  async #save() {
    const name = this.name.value.trim();
    if (!name) throw new Error("Write a name first.");
    const shown = this.panel.setup;
    const { prompt: _, cards: __, ...setup } = withoutSecrets(shown);
    const saved = await this.panel.door.ask(PATH, { method: "POST", json: { name, setup } });
    shown.prompt = saved.name; // another lane's may be shown by now
    this.panel.changed();
    say(`“${saved.name}” is saved.`);
    await this.#load();
  }

  async #delete({ id, name }) {
    await this.panel.door.ask(`${PATH}/${encodeURIComponent(id)}`, { method: "DELETE" });
    if (this.panel.setup.prompt === name) this.panel.setup.prompt = "";
    this.panel.changed();
    say(`“${name}” is deleted.`);
    await this.#load();
    this.name.focus();
  }

  #button() {
    const name = this.name.value.trim();
    byId("prompts-save").textContent = this.prompts?.some((each) => each.name === name) ? "Replace" : "Save";
  }
}
