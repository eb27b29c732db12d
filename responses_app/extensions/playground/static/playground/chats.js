// The list of chats: the newest first, those that are pinned before them; searched by the server, longer on scroll.

import { Newest } from "./asking.js";
import { ChatMenu } from "./chat-menu.js";
import { ChatRow, groupOf } from "./chat-row.js";
import { byId, copy, h, say } from "./dom.js";
import { nameFor } from "./naming.js";
import { ofSite, ofTab } from "./storage.js";
import { toast } from "./toast.js";

const AT_ONCE = 30; // chats of one page
const PAUSE = 250; // milliseconds without a key before it searches
const PATH = "/v1/playground/chats";
const SHOWS_ALL = "respsite.chats-all"; // kept where chats of the API are shown, too
const LEAVING = "respsite.chats-leaving"; // what is being deleted, for the page that comes next in this tab
const MOST_LEAVING = 20;

/** `page`: open(chat); shown(), isOpen(id) say what lanes show; listed() hears of titles; deleted(id) returns what undoes it; gone(id). */
export class Chats {
  #rows = new Map(); // by id, in the order of the list
  #reached = ""; // the id of the row that Tab goes to
  #deleting = new Set(JSON.parse(ofTab.get(LEAVING) ?? "[]")); // and those that are gone: an answer that is on its way may have them yet
  #hasMore = false;
  #shown = { search: "", isAll: false }; // what the rows were asked for with

  constructor(door, facts, page) {
    Object.assign(this, { door, facts, page });
    this.newest = new Newest(door);
    this.list = byId("chats-list");
    this.foot = byId("chats-foot");
    this.search = byId("chats-search");
    this.all = byId("chats-all");
    this.all.checked = ofSite.get(SHOWS_ALL) === "on";
    this.all.addEventListener("change", () => {
      ofSite.put(SHOWS_ALL, this.all.checked ? "on" : "off");
      this.load();
    });
    this.menu = new ChatMenu((row) => this.#actions(row));
    this.search.addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.load(), PAUSE);
    });
    this.search.addEventListener("keydown", (event) => this.#fromSearch(event));
    this.list.addEventListener("focusin", (event) => this.#reach(event.target.closest("[data-chat]")?.dataset.chat));
    this.end = new IntersectionObserver((seen) => seen.at(-1).isIntersecting && this.#more(), { root: byId("chats-scroll"), rootMargin: "200px" });
    document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && this.load());
    ofTab.drop(LEAVING);
    this.tell("Loading the list");
  }

  /** Hear of what other tabs of the same owner change; they hear of this one. */
  listenFor(owner) {
    this.others?.close();
    this.others = owner ? new BroadcastChannel(`respsite.chats|${owner}`) : null;
    if (this.others) this.others.onmessage = () => this.load();
  }

  titleOf(id) {
    return this.#rows.get(id)?.chat.title;
  }

  changed() {
    this.others?.postMessage("changed");
  }

  get(id) {
    return this.door.ask(`${PATH}/${encodeURIComponent(id)}`);
  }

  /** Forget the list: somebody else asks from now on. */
  clear() {
    this.newest.stop();
    this.#rows.clear();
    this.#hasMore = false;
    this.search.value = "";
    this.#draw();
    this.tell("Sign in to see your chats.");
  }

  /** Load the beginning of the list; what was loaded behind it stays. */
  load() {
    return this.#ask({ search: this.search.value.trim(), isAll: this.all.checked });
  }

  /** What stands in the field may be newer than the rows: what comes behind them answers the same search as they do. */
  #more() {
    const last = [...this.#rows.keys()].at(-1);
    return this.#hasMore && !this.newest.isAsking && last ? this.#ask(this.#shown, last) : undefined;
  }

  async #ask(wanted, after = "") {
    if (this.door.isShut) return this.clear();
    const { search, isAll } = wanted;
    const query = new URLSearchParams({ limit: AT_ONCE, ...(isAll ? {} : { made_in: "playground" }), ...(search ? { search } : {}), ...(after ? { after } : {}) });
    try {
      const page = await this.newest.ask(`${PATH}?${query}`);
      const isNew = search !== this.#shown.search || isAll !== this.#shown.isAll;
      this.#shown = wanted;
      this.#take(page, { after, isNew });
    } catch (error) {
      if (error.name === "AbortError") return undefined;
      this.#failed(error);
    }
    return undefined;
  }

  /** Take a page: rows that are known stay the same elements, so that what has the focus keeps it. */
  #take({ data, has_more }, { after, isNew }) {
    const known = [...this.#rows.values()].map(({ chat }) => chat);
    const behind = after || isNew || !has_more ? [] : behindLast(known, data.at(-1));
    const rows = new Map();
    for (const chat of [...(after ? known : []), ...data, ...behind]) if (!rows.has(chat.id)) rows.set(chat.id, this.#row(chat));
    this.#rows = rows;
    this.#hasMore = behind.length ? this.#hasMore : has_more;
    this.#draw();
    this.#tellEnd();
    this.page.listed();
  }

  #tellEnd() {
    const { search, isAll } = this.#shown;
    const others = isAll ? "" : " Chats of the API are listed, too, with the switch above.";
    const none = search ? `No chat has “${search}”.${others}` : `No chats yet. What you ask is listed here.${others}`;
    this.tell(this.#hasMore ? "Loading more" : this.#seen().length ? "" : none);
  }

  #row(chat) {
    const known = this.#rows.get(chat.id);
    if (!known) return new ChatRow(chat, { open: (which) => this.page.open(which), menu: (row) => this.menu.open(row), rename: (which, title) => this.#change(which, { title, title_from: "person" }) });
    known.show(chat);
    return known;
  }

  #draw() {
    const focused = document.activeElement;
    const chats = [...this.#rows.values()].filter(({ chat }) => !this.#deleting.has(chat.id));
    const groups = Map.groupBy ? Map.groupBy(chats, ({ chat }) => groupOf(chat)) : grouped(chats);
    const made = [...groups].map(([name, rows]) => {
      const id = `chats-${name.toLowerCase().replaceAll(" ", "-")}`;
      return h("section", { "aria-labelledby": id }, h("h3", { id }, name), h("ul", {}, ...rows.map(({ element }) => element)));
    });
    this.list.replaceChildren(...made);
    if (focused !== document.activeElement && focused?.isConnected && this.list.contains(focused)) focused.focus();
    this.mark();
  }

  /** Show which chats lanes show. */
  mark() {
    const rows = this.#seen();
    if (!rows.some(({ chat }) => chat.id === this.#reached)) this.#reached = rows[0]?.chat.id ?? "";
    const shown = this.page.shown();
    for (const row of rows) {
      const { id } = row.chat;
      row.mark({ isReached: id === this.#reached, isOpen: this.page.isOpen(id), isShown: id === shown });
    }
  }

  #seen() {
    return [...this.list.querySelectorAll("[data-chat]")].map((element) => this.#rows.get(element.dataset.chat));
  }

  #reach(id) {
    if (!id || id === this.#reached) return;
    this.#reached = id;
    this.mark();
  }

  /** Say something behind the list; where that is seen and there are more chats, they are asked for. */
  tell(text, again = null) {
    this.end.takeRecords(); // of the list before
    this.end.unobserve(this.foot);
    this.end.observe(this.foot); // tells at once whether it is seen
    this.foot.replaceChildren(text, again ? " " : "", again ?? "");
    this.foot.hidden = !text && !this.#hasMore;
  }

  #failed(error) {
    if (error.status === 401) return this.clear();
    return this.tell(`The list could not be loaded: ${error.message}`, h("button", { type: "button", class: "link", on: { click: () => this.load() } }, "Try again"));
  }

  #fromSearch(event) {
    if (event.key === "ArrowDown" || event.key === "Enter") {
      const [first] = this.#seen();
      if (!first) return;
      event.preventDefault();
      if (event.key === "Enter") this.page.open(first.chat);
      else first.link.focus();
    }
  }

  // What keys and the menu do

  /** Put the keyboard into the list: on the chat that is shown, else on the one where it was. */
  focus() {
    const rows = this.#seen();
    const row = rows.find(({ chat }) => chat.id === this.page.shown()) ?? rows.find(({ chat }) => chat.id === this.#reached);
    (row?.link ?? this.search).focus();
  }

  step(by) {
    const rows = this.#seen();
    const place = rows.findIndex(({ chat }) => chat.id === this.#reached) + by;
    if (place < 0) this.search.focus();
    else rows[Math.min(place, rows.length - 1)]?.link.focus();
  }

  /** Do something with the chat that has the keyboard: rename, pin, remove, menu. */
  withReached(what) {
    const row = this.#rows.get(this.#reached);
    if (!row) return;
    if (what === "menu") this.menu.open(row);
    else if (what === "rename") row.rename();
    else if (what === "pin") this.#change(row.chat, { pinned: !row.chat.pinned });
    else this.#remove(row);
  }

  #actions(row) {
    const { chat } = row;
    return [
      ["Rename", "F2", () => row.rename()],
      ["Let the model name it", "", () => this.#name(row)],
      [chat.pinned ? "Unpin" : "Pin", "p", () => this.#change(chat, { pinned: !chat.pinned })],
      this.facts.sharing ? ["Copy the link", "", () => this.share(chat.id)] : null,
      ["Delete", "Del", () => this.#remove(row), "danger"],
    ].filter(Boolean);
  }

  share(id, button) {
    return copy(`${location.origin}/?chat=${encodeURIComponent(id)}`, button ?? h("button"));
  }

  async #change(chat, body) {
    try {
      const changed = await this.door.ask(`${PATH}/${encodeURIComponent(chat.id)}`, { method: "POST", json: body });
      this.#rows.get(chat.id)?.show(changed);
      this.page.listed();
      this.changed();
      if ("pinned" in body || this.newest.isAsking) await this.load(); // it stands elsewhere now, or the list that is on its way is older
      say("pinned" in body ? (changed.pinned ? "Pinned" : "Not pinned any more") : `The chat is called ${changed.title}`);
    } catch (error) {
      const row = this.#rows.get(chat.id);
      row?.show(row.chat);
      this.tell(`“${chat.title}” could not be changed: ${error.message}`);
    }
  }

  async #name(row) {
    row.busy("The model names it");
    try {
      await this.#change(row.chat, { title: await nameFor(await this.get(row.chat.id), this.door), title_from: "model" });
    } catch (error) {
      this.tell(`The model did not name it: ${error.message}`);
    }
    row.show(row.chat);
  }

  /** Take a chat out of the list; ten seconds later it is deleted. */
  #remove(row) {
    const { id, title } = row.chat;
    const rows = this.#seen();
    const next = rows[rows.indexOf(row) + 1] ?? rows[rows.indexOf(row) - 1];
    const hadFocus = byId("chats").contains(document.activeElement);
    this.#deleting.add(id);
    const putBack = this.page.deleted(id);
    this.#draw();
    this.#tellEnd();
    if (hadFocus) (next?.link ?? this.search).focus();
    const undo = () => {
      this.#deleting.delete(id);
      this.#draw();
      this.#tellEnd();
      putBack();
      say(`${title} is back.`);
    };
    toast(`“${title}” is deleted`, { undo, done: () => this.#delete(row.chat) });
  }

  /** Delete it, also while the page is being left: the one that comes next does not list it. */
  async #delete({ id, title }) {
    ofTab.put(LEAVING, JSON.stringify([...this.#deleting].slice(-MOST_LEAVING)));
    try {
      await this.door.ask(`${PATH}/${encodeURIComponent(id)}`, { method: "DELETE", keepalive: true });
    } catch (error) {
      if (error.status !== 404) {
        this.#deleting.delete(id);
        this.#draw();
        this.tell(`“${title}” could not be deleted: ${error.message}`);
        return;
      }
    }
    ofTab.drop(LEAVING);
    this.#rows.delete(id);
    this.page.gone(id);
    this.changed();
  }
}

/** Return the chats that stand behind the last one of a page: by its place in the list, or by its second where it is new. */
function behindLast(known, last) {
  const place = known.findIndex(({ id }) => id === last.id);
  return known.filter((chat, index) => !chat.pinned && (place < 0 ? chat.updated_at <= last.updated_at : index > place));
}

function grouped(rows) {
  const groups = new Map();
  for (const row of rows) groups.set(groupOf(row.chat), [...(groups.get(groupOf(row.chat)) ?? []), row]);
  return groups;
}
