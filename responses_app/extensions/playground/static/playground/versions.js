// The versions of a chat: turns as a tree, and the buttons by which one walks it. The tree knows no page and no server.

import { h } from "./dom.js";

/**
 * Turns by what they go on from. A node has an `id`; `previous_response_id` says its parent, where `add` is not told.
 * A node that is `warm` says nothing: it has no versions, and what goes on from it goes on from the turn before it.
 */
export class Tree {
  #nodes = new Map(); // by id: {node, parent, chosen}, in the order in which they came
  #children = new Map(); // by parent, null for the first ones: ids

  get size() {
    return this.#nodes.size;
  }

  /** All nodes with what each goes on from, in the order in which they came. */
  get all() {
    return [...this.#nodes.values()].map(({ node, parent }) => ({ node, parent }));
  }

  /** Take a node; one whose id is known stays where it is. Returns the node that is there. */
  add(node, parent = node.previous_response_id ?? null) {
    const known = this.#nodes.get(node.id);
    if (known) return known.node;
    this.#nodes.set(node.id, { node, parent, chosen: null });
    this.#childrenOf(parent).push(node.id);
    return node;
  }

  get(id) {
    return this.#nodes.get(id)?.node;
  }

  parentOf(id) {
    return this.#nodes.get(id)?.parent ?? null;
  }

  /** Let a node go on from another one. */
  move(id, parent) {
    const entry = this.#nodes.get(id);
    if (entry.parent === parent) return;
    this.#leave(id, entry.parent);
    entry.parent = parent;
    this.#childrenOf(parent).push(id);
  }

  /** Give a node the id by which the server knows it. */
  rename(from, to) {
    if (from === to) return;
    const entries = [...this.#nodes].map(([id, entry]) => [id === from ? to : id, entry]); // in the same order
    for (const [, entry] of entries) {
      if (entry.parent === from) entry.parent = to;
      if (entry.chosen === from) entry.chosen = to;
    }
    this.#nodes = new Map(entries);
    const siblings = this.#childrenOf(this.parentOf(to));
    siblings[siblings.indexOf(from)] = to;
    this.#children.set(to, this.#children.get(from) ?? []);
    this.#children.delete(from);
    this.get(to).id = to;
  }

  /** Take a node out; what goes on from it goes on from its parent. */
  remove(id) {
    const { parent } = this.#nodes.get(id);
    for (const child of [...this.#childrenOf(id)]) this.move(child, parent);
    this.#leave(id, parent);
    this.#children.delete(id);
    this.#nodes.delete(id);
  }

  /** Return the nodes from the first one to this one; none for no id. */
  path(tip) {
    const found = [];
    const seen = new Set(); // what comes from elsewhere may be a ring
    for (let id = tip; this.#nodes.has(id) && !seen.has(id); id = this.parentOf(id)) {
      seen.add(id);
      found.push(this.get(id));
    }
    return found.reverse();
  }

  /** Return the versions of a node, itself among them, in the order in which they came. */
  siblings(id) {
    const node = this.get(id);
    if (!node || node.warm) return node ? [node] : [];
    return this.#below(this.#spokenBefore(id));
  }

  /** Remember which versions are on the way to this one. */
  choose(tip) {
    for (const { id } of this.path(tip)) {
      const entry = this.#nodes.get(this.parentOf(id));
      if (entry) entry.chosen = id;
    }
  }

  /** Return the id of the last turn behind this one: those that were chosen before, else the newest. */
  leaf(id) {
    const seen = new Set();
    let last = id;
    while (!seen.has(last)) {
      seen.add(last);
      const children = this.#childrenOf(last);
      const spoken = children.filter((child) => !this.get(child).warm);
      last = this.#nodes.get(last)?.chosen ?? spoken.at(-1) ?? children.at(-1) ?? last;
    }
    return last;
  }

  /** Whether something goes on from a node. */
  hasMore(id) {
    return this.#childrenOf(id).length > 0;
  }

  #spokenBefore(id) {
    let parent = this.parentOf(id);
    while (this.get(parent)?.warm) parent = this.parentOf(parent);
    return parent;
  }

  #below(parent) {
    const found = this.#childrenOf(parent).flatMap((id) => (this.get(id).warm ? this.#below(id) : [this.get(id)]));
    const order = [...this.#nodes.keys()];
    return found.length < 2 ? found : found.sort((one, other) => order.indexOf(one.id) - order.indexOf(other.id));
  }

  #childrenOf(parent) {
    if (!this.#children.has(parent)) this.#children.set(parent, []);
    return this.#children.get(parent);
  }

  #leave(id, parent) {
    const siblings = this.#childrenOf(parent);
    siblings.splice(siblings.indexOf(id), 1);
    const entry = this.#nodes.get(parent);
    if (entry?.chosen === id) entry.chosen = null;
  }
}

/** The buttons ‹ 2/3 › under a turn; `walk(by)` goes to another version. Nothing is shown where there is one only. */
export class Walker {
  constructor(walk) {
    const button = (sign, name, by) => {
      const made = h("button", { type: "button", class: "link", "aria-label": name, title: name }, sign);
      made.addEventListener("click", () => made.getAttribute("aria-disabled") === "true" || walk(by));
      return made;
    };
    this.before = button("‹", "Version before", -1);
    this.behind = button("›", "Next version", 1);
    this.told = h("span", {});
    this.element = h("span", { class: "versions", role: "group", hidden: true }, this.before, this.told, this.behind);
    this.element.addEventListener("keydown", ({ key }) => {
      if (key === "ArrowLeft") this.before.click();
      if (key === "ArrowRight") this.behind.click();
    });
  }

  /** Tell which version of how many is shown. */
  tell(place, count) {
    this.element.hidden = count < 2;
    this.told.textContent = `${place}/${count}`;
    this.element.setAttribute("aria-label", `Version ${place} of ${count}`);
    this.before.setAttribute("aria-disabled", String(place <= 1));
    this.behind.setAttribute("aria-disabled", String(place >= count));
  }

  /** Put the focus on the button that was used on another version. */
  focus(by) {
    (by < 0 ? this.before : this.behind).focus({ preventScroll: true });
  }
}
