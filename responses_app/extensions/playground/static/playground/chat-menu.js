// The menu of a chat: what can be done with it. Arrows go through it, Escape closes it.

import { byId, h } from "./dom.js";

const GAP = 4; // pixels

/** `actions(row)` returns what is in it: name, key, function, and "danger" where it is one. */
export class ChatMenu {
  constructor(actions) {
    this.actions = actions;
    this.element = byId("chat-menu");
    this.element.addEventListener("toggle", ({ newState }) => {
      const isOpen = newState === "open";
      this.row?.more.setAttribute("aria-expanded", String(isOpen));
      this.row?.element.toggleAttribute("data-menu", isOpen);
    });
    this.element.addEventListener("keydown", (event) => this.#step(event));
    byId("chats-scroll").addEventListener("scroll", () => this.element.hidePopover(), { passive: true });
  }

  open(row) {
    this.row = row;
    const act = (what) => () => {
      this.element.hidePopover(); // and gives the keyboard back to the list
      what();
    };
    this.element.replaceChildren(
      ...this.actions(row).map(([name, key, what, kind]) =>
        h("button", { type: "button", role: "menuitem", tabindex: "-1", class: kind, on: { click: act(what) } }, h("span", {}, name), key && h("kbd", { "aria-hidden": "true" }, key)),
      ),
    );
    row.more.focus(); // where it goes back to
    this.element.showPopover();
    this.#place(row.more.getBoundingClientRect());
    this.element.firstChild.focus();
  }

  #place(button) {
    const { offsetWidth, offsetHeight, style } = this.element;
    const isBelow = button.bottom + GAP + offsetHeight < innerHeight;
    style.left = `${Math.max(GAP, Math.min(button.left, innerWidth - offsetWidth - GAP))}px`;
    style.top = `${isBelow ? button.bottom + GAP : Math.max(GAP, button.top - GAP - offsetHeight)}px`;
  }

  #step(event) {
    event.stopPropagation();
    const items = [...this.element.children];
    const place = items.indexOf(document.activeElement);
    const to = { ArrowDown: place + 1, ArrowUp: place - 1, Home: 0, End: items.length - 1 }[event.key];
    if (event.key === "Tab") this.element.hidePopover();
    if (to === undefined) return;
    event.preventDefault();
    items[(to + items.length) % items.length].focus();
  }
}
