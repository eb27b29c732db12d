// What is written and not sent yet, kept for each chat.
//
// A draft belongs to its chat, and to the page and lane in which it is written: two tabs with the same chat keep a draft
// each. A chat that is opened anew begins with the newest of its drafts; sending or emptying that one removes it.

import { byId } from "./dom.js";
import { nameOfPage } from "./kept.js";
import { ofSite } from "./storage.js";

const NEW = "new"; // where a chat would be named that has not begun
const NOTHING = { text: "", attachments: [] };

/** `kept()` returns what is kept for the one who asks. */
export class Drafts {
  #page = nameOfPage();
  #copied = new WeakMap(); // lanes → the draft of another page that they began with

  constructor(kept) {
    this.kept = kept;
    if (!ofSite.lasts) this.#failed();
  }

  /** Return under which name a lane's draft is kept, as long as it shows this chat. */
  nameOf(lane) {
    return `${this.#ofChat(lane)}${this.#page}.${lane.name}`;
  }

  #ofChat(lane) {
    return `draft|${lane.chat?.id ?? NEW}|`;
  }

  keep(lane, name = this.nameOf(lane)) {
    const draft = lane.composer.kept;
    if (isEmpty(draft)) {
      this.kept().drop(name);
      const copied = this.#copied.get(lane);
      if (copied && JSON.stringify(this.kept().get(copied.name)) === copied.text) this.kept().drop(copied.name);
      this.#copied.delete(lane);
      return;
    }
    if (this.kept().put(name, draft)) return;
    const small = draft.attachments.filter(({ file_id }) => file_id).map(({ url, ...rest }) => rest);
    const left = draft.attachments.length - small.length;
    if (!left || !this.kept().put(name, { text: draft.text, attachments: small, left })) this.#failed();
  }

  /**
   * Give a lane its draft; return what has to be said about it. `any`: the newest that another page has left, where it has
   * none of its own; `isKept`: what is written stays, where there is none.
   */
  restore(lane, { any = false, isKept = false } = {}) {
    const own = this.nameOf(lane);
    const name = any && !this.kept().get(own) ? this.kept().names(this.#ofChat(lane))[0] : own;
    const draft = name && this.kept().get(name);
    if (draft || !isKept) lane.composer.restore(draft ?? NOTHING);
    this.#copied.delete(lane);
    if (draft && name !== own) this.#copied.set(lane, { name, text: JSON.stringify(draft) });
    return draft?.left ? `${draft.left} of the draft's attachments were too large to be kept.` : "";
  }

  #failed() {
    byId("chats-kept").textContent = ofSite.lasts
      ? "This draft is not kept: this browser has no room for it."
      : "Drafts are not kept: this browser stores nothing for this page.";
  }
}

/** Whether nothing is written. */
export const isEmpty = ({ text, attachments }) => !text && !attachments.length;
