// One line of the list of chats: a link, its menu, and the field in which it is renamed.

import { h, icon } from "./dom.js";

const DAY = 86_400_000;
const PIN = "M10 2.2 13.8 6l-2.3.8-2.2 2.2.1 2.6-1.2 1.2-5-5 1.2-1.2 2.6.1L9.2 4.5zM5.6 10.4 2.5 13.5";
const MOST_TITLE = 200; // characters that the server takes

const midnight = (time) => new Date(time).setHours(0, 0, 0, 0);
const seconds = (time) => new Date(time * 1000);

/** Return the head under which a chat stands. */
export function groupOf(chat, now = Date.now()) {
  if (chat.pinned) return "Pinned";
  const days = Math.round((midnight(now) - midnight(chat.updated_at * 1000)) / DAY); // a day may have 23 hours
  if (days <= 0) return "Today";
  return days === 1 ? "Yesterday" : days <= 7 ? "Last 7 days" : "Older";
}

/** Return when a chat was used last, as short as the head above it allows. */
function when(chat, now = Date.now()) {
  const at = seconds(chat.updated_at);
  const days = Math.round((midnight(now) - midnight(at)) / DAY);
  if (days <= 0 || (days === 1 && !chat.pinned)) return at.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  if (days <= 7) return days === 1 ? "Yesterday" : at.toLocaleDateString("en-GB", { weekday: "long" });
  const isThisYear = at.getFullYear() === new Date(now).getFullYear();
  return at.toLocaleDateString("en-GB", { day: "numeric", month: "short", year: isThisYear ? undefined : "numeric" });
}

/** `list`: open(chat), menu(row), rename(chat, title). */
export class ChatRow {
  constructor(chat, list) {
    this.list = list;
    this.title = h("span", { class: "chat-title" });
    this.about = h("span", { class: "chat-about" });
    this.link = h("a", { class: "chat-link", tabindex: "-1", on: { click: (event) => this.#open(event) } }, this.title, this.about);
    this.more = h("button", { type: "button", class: "chat-more", tabindex: "-1", "aria-haspopup": "menu", on: { click: () => list.menu(this) } }, dots());
    this.element = h("li", { class: "chat", data: { chat: chat.id } }, this.link, this.more);
    this.show(chat);
  }

  show(chat) {
    this.chat = chat;
    const title = chat.title || "Untitled";
    const at = h("time", { datetime: seconds(chat.updated_at).toISOString(), title: seconds(chat.updated_at).toLocaleString("en-GB") }, when(chat));
    const pin = chat.pinned ? [icon(PIN), h("span", { class: "unseen" }, "Pinned. ")] : [];
    this.title.replaceChildren(...pin, h("span", {}, title));
    this.about.replaceChildren(h("span", { class: "chat-model" }, chat.model ?? ""), at);
    this.link.href = `/?chat=${encodeURIComponent(chat.id)}`;
    this.link.title = title;
    this.more.setAttribute("aria-label", `Actions for ${title}`);
  }

  /** Say that something is done with it. */
  busy(text) {
    this.about.replaceChildren(h("span", { class: "waiting" }, text));
  }

  /** Whether it is what the keyboard reaches, and whether it is what a lane shows. */
  mark({ isReached, isOpen, isShown }) {
    this.link.tabIndex = this.more.tabIndex = isReached ? 0 : -1;
    this.element.toggleAttribute("data-open", isOpen);
    if (isShown) this.link.setAttribute("aria-current", "page");
    else this.link.removeAttribute("aria-current");
  }

  #open(event) {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return; // a tab or a window of its own
    event.preventDefault();
    this.list.open(this.chat);
  }

  /** Write its title anew, in place. */
  rename() {
    const field = h("input", { "aria-label": "Title of the chat", maxlength: MOST_TITLE, value: this.chat.title });
    const form = h("form", { class: "chat-rename" }, field);
    let isOver = false;
    const end = (title) => {
      if (isOver) return; // taking the field away blurs it, too
      isOver = true;
      const hadFocus = form.contains(document.activeElement);
      form.replaceWith(this.link);
      this.more.hidden = false;
      if (hadFocus) this.link.focus();
      if (title && title !== this.chat.title) this.list.rename(this.chat, title);
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      end(field.value.trim());
    });
    field.addEventListener("blur", () => end(field.value.trim()));
    field.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key === "Escape") end("");
    });
    this.link.replaceWith(form);
    this.more.hidden = true;
    field.focus();
    field.select();
  }
}

function dots() {
  const made = icon("M3.5 8h.01M8 8h.01M12.5 8h.01");
  made.classList.add("dots");
  return made;
}
