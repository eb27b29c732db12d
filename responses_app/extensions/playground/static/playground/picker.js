// Picks vector stores, containers or files from the lists of the API.

import { Newest } from "./asking.js";
import { byId, bytes, h } from "./dom.js";

const PAGE = 100; // that are asked for at once

export const KINDS = {
  vector_stores: { title: "Vector stores", path: "/v1/vector_stores", prefix: "vs_", none: "There are no vector stores in this project." },
  containers: { title: "Containers", path: "/v1/containers", prefix: "cntr_", none: "There are no containers in this project.", empty: "A new one" },
  files: { title: "Files", path: "/v1/files", prefix: "file-", none: "There are no files in this project." },
};

/** One dialog for all kinds. */
export class Picker {
  constructor(door) {
    this.newest = new Newest(door);
    this.dialog = byId("picker");
    this.list = byId("picker-list");
    this.search = byId("picker-search");
    this.search.addEventListener("input", () => this.#filter());
    byId("picker-more").addEventListener("click", () => this.#load());
    byId("picker-form").addEventListener("submit", (event) => this.#submit(event));
    this.list.addEventListener("change", () => this.#count());
  }

  /** Open for a kind with these ids chosen; `keep(ids)` hears what is chosen then. */
  async open(kind, ids, keep, { several = true } = {}) {
    Object.assign(this, { kind: KINDS[kind], keep, several, rows: [], last: "", chosen: new Set(ids) });
    byId("picker-title").textContent = this.kind.title;
    byId("picker-pasted").value = "";
    byId("picker-pasted").placeholder = `${this.kind.prefix}…`;
    byId("picker-wrong").textContent = "";
    this.search.value = "";
    this.list.replaceChildren();
    this.dialog.showModal();
    this.search.focus();
    this.#count();
    if (!several) this.#add({ id: "", name: this.kind.empty });
    await this.#load();
  }

  async #load() {
    const { path, none } = this.kind;
    const more = byId("picker-more");
    more.hidden = true;
    byId("picker-told").textContent = "Loading…";
    try {
      const page = await this.newest.ask(`${path}?limit=${PAGE}${this.last ? `&after=${encodeURIComponent(this.last)}` : ""}`);
      const known = new Set(this.rows.map(({ id }) => id));
      for (const each of page.data.filter(({ id }) => !known.has(id))) this.#add(each);
      this.last = page.last_id ?? page.data.at(-1)?.id;
      more.hidden = !page.has_more;
      byId("picker-told").textContent = this.rows.some(({ id }) => id) ? "" : none;
      if (!page.has_more) for (const id of this.chosen) if (!this.rows.some((row) => row.id === id)) this.#add({ id, name: "Not in the list" });
    } catch (error) {
      if (error.name === "AbortError") return;
      byId("picker-told").textContent = `The list could not be read: ${error.message}`;
    }
    this.#filter();
  }

  #add(each) {
    const name = each.name || each.filename || "No name";
    const box = h("input", { type: this.several ? "checkbox" : "radio", name: "picked", value: each.id });
    box.checked = each.id ? this.chosen.has(each.id) : !this.chosen.size;
    const row = h("li", {}, h("label", {}, box, h("span", { class: "what" }, h("span", {}, name), h("small", {}, [each.id, ...facts(each)].filter(Boolean).join(" · ")))));
    this.rows.push({ id: each.id, text: `${name} ${each.id}`.toLowerCase(), row, box });
    this.list.append(row);
  }

  #filter() {
    const words = this.search.value.toLowerCase().split(/\s+/u).filter(Boolean);
    for (const { text, row } of this.rows) row.hidden = !words.every((word) => text.includes(word));
  }

  #count() {
    const count = this.rows.filter(({ box }) => box.checked).length;
    byId("picker-keep").textContent = !this.several ? "Use it" : count ? `Use ${count}` : "Use none";
  }

  #submit(event) {
    event.preventDefault();
    const pasted = byId("picker-pasted").value.split(/[\s,]+/u).filter(Boolean);
    const strange = pasted.find((id) => !/^[\w-]{1,256}$/u.test(id));
    if (strange) {
      byId("picker-wrong").textContent = `${strange.slice(0, 40)} is not an id: it has letters, digits, _ and -.`;
      return;
    }
    const picked = this.rows.filter(({ id, box }) => id && box.checked).map(({ id }) => id);
    const unseen = [...this.chosen].filter((id) => !this.rows.some((row) => row.id === id)); // on a page that was not read
    const ids = [...new Set([...picked, ...(this.several ? unseen : []), ...pasted])];
    this.dialog.close();
    this.keep(this.several ? ids : ids.slice(-1));
  }
}

function facts({ bytes: size, file_counts: files, status, created_at: made }) {
  return [
    files ? `${files.total} ${files.total === 1 ? "file" : "files"}` : "",
    size === undefined ? "" : bytes(size),
    status && !["completed", "processed", "running"].includes(status) ? status : "",
    made ? new Date(made * 1000).toLocaleDateString() : "",
  ].filter(Boolean);
}
