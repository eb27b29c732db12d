// The form for a key, and what a user of the admin may choose.

import { byId, h } from "./dom.js";

/** Opens where the server wants to know who asks; `changed()` hears of another key or project, `forgets()` before a key goes. */
export class SignIn {
  constructor(door, { changed, forgets }) {
    this.door = door;
    this.changed = changed;
    const form = byId("key-form");
    byId("sign").hidden = door.facts.door === "open";
    byId("key-user").hidden = Boolean(door.facts.user || door.facts.without_permission);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#use(form.elements.key.value.trim());
    });
    byId("key-forget").addEventListener("click", () => {
      forgets();
      door.keep("");
      location.reload();
    });
    if (door.facts.projects?.length) this.#projects(form);
  }

  open(why = "") {
    if (byId("key").open) return;
    const { user } = this.door.facts;
    byId("key-title").textContent = user || this.door.key ? "Signed in" : "Sign in";
    byId("key-why").textContent = why || this.#who(user);
    byId("key-wrong").textContent = "";
    byId("key-forget").hidden = !this.door.key;
    byId("key").showModal();
  }

  #who(user) {
    if (this.door.key) return "This tab uses an API key.";
    const { without_permission: stranger } = this.door.facts;
    if (stranger) return `You are signed in as ${stranger}, who may not use the playground. Use an API key.`;
    return user ? `You are signed in as ${user}. An API key counts instead of that, in this tab.` : "This server asks who you are.";
  }

  async #use(key) {
    if (!/^[\w.~+/=-]+$/u.test(key)) {
      byId("key-wrong").textContent = "A key has letters, digits and - _ . ~ + only.";
      return;
    }
    if (this.isAsking) return;
    const before = this.door.key;
    this.isAsking = true;
    this.door.keep(key);
    try {
      await this.door.ask("/v1/models");
    } catch (error) {
      if (error.status === 401) {
        this.door.keep(before);
        byId("key-wrong").textContent = error.message;
        return;
      }
    } finally {
      this.isAsking = false;
    }
    byId("key").close();
    byId("key-form").reset();
    this.changed();
  }

  #projects(form) {
    const { projects } = this.door.facts;
    const choice = h("select", { name: "project" }, ...projects.map((name) => h("option", { value: name }, name)));
    choice.value = this.door.project;
    choice.addEventListener("change", () => {
      this.door.choose(choice.value);
      byId("key").close();
      this.changed();
    });
    form.querySelector(".panel-head").after(h("label", { class: "field" }, h("span", {}, "Project"), choice));
  }
}
