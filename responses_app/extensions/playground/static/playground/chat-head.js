// The head of a lane: what its chat is called, its link, and what has to be said about it.

import { h } from "./dom.js";

const heads = new WeakMap();

/** Return the head of a lane. */
export function laneHead(lane) {
  if (!heads.has(lane)) heads.set(lane, new LaneHead(lane));
  return heads.get(lane);
}

class LaneHead {
  constructor(lane) {
    this.lane = lane;
    const head = lane.element.querySelector(".lane-head");
    this.name = h("span", { class: "lane-chat" });
    this.unkept = h("span", { class: "chip unkept", title: "“Store responses” is off: what is said now cannot be found again after a reload" }, "Not kept");
    this.share = h("button", { type: "button", class: "link", title: "Copy a link that others in this project can read" }, "Share");
    this.line = h("p", { class: "lane-line", role: "status", hidden: true });
    head.querySelector("h2").after(this.name);
    head.querySelector(".push").before(this.unkept);
    head.querySelector(".push").after(this.share);
    head.after(this.line);
    this.share.addEventListener("click", () => this.chats().share(lane.chat.id, this.share));
  }

  get title() {
    const { chat } = this.lane;
    return chat ? (this.chats?.().titleOf(chat.id) ?? chat.title ?? "") : "";
  }

  /** Show what the lane's chat is called. */
  show(facts, chats) {
    this.chats = chats;
    const { chat, setup } = this.lane;
    this.name.textContent = this.title;
    this.name.title = this.title;
    this.lane.element.toggleAttribute("data-titled", Boolean(this.title));
    this.unkept.hidden = setup.store !== false;
    this.share.hidden = !facts.sharing || !chat || chat.read_only;
    if (chat?.read_only) this.say("Shared with you: you can read this chat. Fork a turn to go on from there.", { chat });
    else if (this.saidOf !== (chat ?? null)) this.say("");
  }

  /** Say something about the chat, until it is another one. */
  say(text, { isWrong = false, chat = this.lane.chat ?? null } = {}) {
    this.saidOf = chat;
    this.line.hidden = !text;
    this.line.toggleAttribute("data-wrong", isWrong);
    if (this.line.textContent !== text) this.line.textContent = text;
  }
}
