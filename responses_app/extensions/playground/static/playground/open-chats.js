// Which chats are open in which lanes: the address, and what this browser keeps of each.

import { laneHead } from "./chat-head.js";
import { Drafts, isEmpty } from "./drafts.js";
import { forgetOthers, Kept, ownerOf } from "./kept.js";
import { asShown, copyOf, setupOf, withoutAccess, withoutSecrets } from "./request.js";
import { goTo, placeOf } from "./scrolled.js";
import { takeOut } from "./suggestions.js";

const PAUSE = 300; // milliseconds until what changed is kept
const MOST_LANES = 16;
const MOST_TURNS = 200; // of a chat, the newest, of which this browser keeps what the server does not

/** `desk`: lanes, chosen(), choose(lane), addLane(setup), showSetup(lane), release(lane) gives it another stream. */
export class OpenChats {
  #timers = new Map();
  #opening = new WeakMap(); // lanes → what they wait for
  #requests = new WeakMap(); // lanes → the chat that was loaded, with what its newest response was asked for

  constructor(door, chats, desk) {
    Object.assign(this, { door, chats, desk });
    forgetOthers(door.facts.user);
    this.kept = new Kept(ownerOf(door));
    this.drafts = new Drafts(() => this.kept);
    addEventListener("pagehide", () => this.#keepAll());
    addEventListener("popstate", () => this.#fromAddress());
  }

  // Who asks

  /** Somebody has signed in, or chosen another project: what was another's is not shown any more. */
  enter() {
    const owner = ownerOf(this.door);
    if (owner === this.kept.owner) return;
    const wasSomebody = this.kept.owner !== "";
    if (wasSomebody) this.#keepAll();
    this.kept = new Kept(owner);
    this.chats.clear();
    if (!wasSomebody) return this.start(); // what was written before stays
    this.hasBegun = false; // until what this one had open is read
    history.replaceState(null, "", "/");
    for (const lane of this.desk.lanes) {
      this.#opening.delete(lane); // what comes now was asked for by the one before
      empty(lane);
      lane.composer.restore({ text: "", attachments: [] });
      Object.assign(lane.setup, withoutSecrets(lane.setup));
      this.desk.showSetup(lane);
    }
    return this.start();
  }

  /** The key is forgotten, and with it what was kept for it. */
  forget() {
    this.kept.clear();
    this.kept = new Kept("");
    history.replaceState(null, "", "/");
  }

  /** Open what was open: what the address names, what this tab had, or what was last open in this browser. */
  async start() {
    const { chat, response } = this.#address();
    const inTab = this.kept.getInTab("open");
    this.hasBegun = true;
    this.chats.listenFor(this.kept.owner);
    this.chats.load();
    const names = (open, id) => open?.lanes.some((each) => each.chat === id);
    const last = inTab ?? this.kept.get("open");
    if (response) await this.open(response, { tip: response, isNew: false });
    else if (chat && !names(inTab, chat)) await this.open(chat, { isNew: false });
    else if (last) await this.#reopen(last, chat);
    else this.drafts.restore(this.desk.chosen(), { any: true, isKept: true });
  }

  async #reopen(open, shown) {
    const { lanes } = this.desk;
    const wanted = open.lanes.slice(0, MOST_LANES);
    while (lanes.length < wanted.length) this.desk.addLane(copyOf(lanes[0].setup));
    const place = shown ? wanted.findIndex(({ chat }) => chat === shown) : open.chosen;
    this.desk.choose(lanes[Math.min(Math.max(place, 0), lanes.length - 1)]);
    const loads = wanted.map(({ chat, tip }, index) =>
      chat ? this.open(chat, { lane: lanes[index], tip, isNew: false, follows: true }) : this.drafts.restore(lanes[index], { any: true }),
    );
    await Promise.all(loads);
  }

  // Open a chat

  /** Load a chat into a lane; `follows`: behind the tip, whatever continues it is shown, too. */
  async open(id, { lane = this.desk.chosen(), tip, isNew = true, follows = false } = {}) {
    const elsewhere = this.desk.lanes.find((each) => each !== lane && each.chat?.id === id);
    if (isNew && elsewhere) return this.desk.choose(elsewhere);
    if (isNew && lane.chat?.id === id && !tip) return lane.composer.focus();
    this.#opening.set(lane, id);
    laneHead(lane).say("Opening the chat");
    let chat;
    try {
      chat = await this.chats.get(id);
      chat.turns = this.#withNumbers(id, asShown(chat.turns));
    } catch (error) {
      if (this.#opening.get(lane) === id) this.#missing(lane, error);
      return undefined;
    }
    if (this.#opening.get(lane) !== id || !this.desk.lanes.includes(lane)) return undefined; // another one meanwhile
    this.#opening.delete(lane);
    this.#leave(lane);
    this.#requests.set(lane, chat);
    this.isGoing = isNew;
    lane.load(chat, { tip: follows ? newestBehind(chat, tip) : tip, readOnly: chat.read_only });
    this.isGoing = false;
    return undefined;
  }

  #missing(lane, error) {
    if (error.status !== 404 && error.status !== 400) { // it may be there: a reload looks for it again
      laneHead(lane).say(`The chat could not be opened: ${error.message} Reload the page to try again.`, { isWrong: true });
      return;
    }
    this.#opening.delete(lane);
    laneHead(lane).say("There is no such chat here. It may have been deleted, or belong to another key, user or project.", { isWrong: true });
    this.show();
    this.chats.load();
  }

  /** Begin a new chat in a lane; what is written for it is there again. */
  begin(lane = this.desk.chosen()) {
    this.#opening.delete(lane);
    this.#leave(lane);
    this.isGoing = true;
    empty(lane);
    this.isGoing = false;
    this.drafts.restore(lane);
    lane.composer.focus();
  }

  /** What runs in a lane goes on without it, where it is kept; what waits to be sent is a draft again. */
  #leave(lane) {
    for (const turn of [...lane.outbox.waiting]) lane.takeBack(turn);
    this.#keep(lane);
    if (!lane.isBusy || !lane.chat) return;
    this.desk.release(lane);
    Object.assign(lane, { running: null, sent: [], steers: [] });
  }

  /** A chat is being deleted: its lanes are emptied. Returns what opens it there again. */
  deleted(id) {
    const lanes = this.desk.lanes.filter((lane) => lane.chat?.id === id);
    for (const lane of lanes) this.begin(lane);
    return () => lanes.forEach((lane) => lane.chat || lane.turns.length || this.open(id, { lane }));
  }

  /** A lane is closed. */
  left(lane) {
    this.#keep(lane);
    this.#opening.delete(lane);
  }

  /** It is gone for good, and what was kept of it. */
  gone(id) {
    for (const kind of ["draft", "setup", "scroll", "turns"]) for (const name of this.kept.names(`${kind}|${id}`)) this.kept.drop(name);
  }

  // What changes

  /** Hear from a lane what has changed: begun, ended, path, cleared, loaded, draft, scroll, setup. */
  changed(lane, what) {
    if (what === "draft" || what === "scroll") return this.#soon(lane, what);
    if (what === "setup") this.#keepSetup(lane);
    if (what === "loaded") this.#restore(lane);
    if (what === "ended") this.#keepTurns(lane);
    if (what === "cleared" && takeOut(lane.setup)) {
      this.desk.showSetup(lane);
      this.#keepSetup(lane);
    }
    if (what === "begun" || what === "ended") this.#later("list", () => this.chats.load().then(() => this.chats.changed()));
    if (what === "begun") {
      this.#opening.delete(lane);
      this.#keepSetup(lane);
    }
    this.show();
    return undefined;
  }

  /** Bring the address, the lanes' heads and the list to what is open now. */
  show() {
    if (!this.hasBegun) return; // what was open has to be read first
    const { lanes } = this.desk;
    const chosen = this.desk.chosen();
    const shown = (lane) => ({ chat: lane.chat?.id ?? this.#opening.get(lane) ?? null, tip: lane.turns.findLast(({ id }) => id)?.id ?? null });
    const open = { lanes: lanes.map(shown), chosen: lanes.indexOf(chosen) };
    this.kept.putInTab("open", open);
    this.kept.put("open", open);
    for (const lane of lanes) laneHead(lane).show(this.door.facts, () => this.chats);
    const title = chosen.chat && laneHead(chosen).title;
    document.title = title ? `${title} · respsite` : "Playground · respsite";
    this.chats.mark();
    if (this.#opening.get(chosen)) return; // its address stands already
    const address = chosen.chat ? `/?chat=${encodeURIComponent(chosen.chat.id)}` : "/";
    if (address === location.pathname + location.search) return;
    if (this.isGoing) history.pushState(null, "", address);
    else history.replaceState(null, "", address);
  }

  #address() {
    const query = new URLSearchParams(location.search);
    return { chat: query.get("chat"), response: query.get("response") };
  }

  #fromAddress() {
    const { chat } = this.#address();
    const lane = this.desk.lanes.find((each) => (each.chat?.id ?? null) === chat);
    if (lane) this.desk.choose(lane);
    else if (chat) this.open(chat, { isNew: false });
    else this.begin();
  }

  // What is kept

  #soon(lane, what) {
    if (what === "scroll") return this.#later(`scroll ${lane.name}`, () => this.#keepScroll(lane));
    const name = this.drafts.nameOf(lane); // as it is now: what is sent makes a new chat another one
    if (isEmpty(lane.composer.kept)) return this.drafts.keep(lane, name);
    return this.#later(`draft ${lane.name}`, () => this.drafts.keep(lane, name));
  }

  #later(name, act) {
    clearTimeout(this.#timers.get(name));
    const run = () => {
      this.#timers.delete(name);
      act();
    };
    this.#timers.set(name, setTimeout(run, PAUSE));
  }

  #keepAll() {
    for (const lane of this.desk.lanes) {
      for (const turn of [...lane.outbox.waiting]) lane.takeBack(turn);
      this.#keep(lane);
    }
  }

  #keep(lane) {
    for (const what of ["draft", "scroll"]) clearTimeout(this.#timers.get(`${what} ${lane.name}`));
    this.drafts.keep(lane);
    this.#keepScroll(lane);
  }

  #keepScroll(lane) {
    const place = lane.chat && placeOf(lane);
    if (place) this.kept.put(`scroll|${lane.chat.id}`, place);
  }

  #keepSetup(lane) {
    const setup = withoutSecrets(lane.setup);
    this.kept.put("setup", setup);
    if (lane.chat) this.kept.put(`setup|${lane.chat.id}`, setup);
  }

  /** Keep of the turns what the server does not. */
  #keepTurns(lane) {
    if (!lane.chat) return;
    const name = `turns|${lane.chat.id}`;
    const ended = lane.turns.filter(({ id, isOver, endedAt }) => id && isOver && endedAt).map((turn) => [turn.id, turn.ofPage]);
    const all = Object.entries({ ...this.kept.get(name), ...Object.fromEntries(ended) });
    this.kept.put(name, Object.fromEntries(all.slice(-MOST_TURNS)));
  }

  #withNumbers(id, turns) {
    const kept = this.kept.get(`turns|${id}`) ?? {};
    return turns.map((turn) => {
      const { read, ...times } = kept[turn.id] ?? {};
      return { ...turn, ...times, output: turn.output.length ? turn.output : (read ?? []) };
    });
  }

  /** Return the setup that was used last. */
  get lastSetup() {
    return this.kept.get("setup") ?? {};
  }

  /** Give a lane what is kept of its chat. */
  #restore(lane) {
    laneHead(lane).say(this.drafts.restore(lane, { any: true }));
    if (!lane.chat) return; // nothing of it is stored
    const { id, request } = this.#requests.get(lane) ?? {};
    const setup = this.kept.get(`setup|${lane.chat.id}`) ?? (id === lane.chat.id ? setupOf(request) : {});
    Object.assign(lane.setup, this.#withSecrets(setup));
    this.desk.showSetup(lane);
    goTo(lane, this.kept.get(`scroll|${lane.chat.id}`));
  }

  /** Ways into MCP servers live in this page alone: those that are known here are put back. */
  #withSecrets(setup) {
    const place = (server) => withoutAccess(server).server_url;
    const known = this.desk.lanes.flatMap((lane) => lane.setup.servers).filter((each) => each.authorization || each.server_url !== place(each));
    const same = (one, other) => one.server_label === other.server_label && place(one) === place(other);
    const servers = (setup.servers ?? []).map((server) => ({ ...server, ...(known.find((each) => same(each, server)) ?? {}), on: server.on }));
    return setup.servers ? { ...setup, servers } : setup;
  }
}

function empty(lane) {
  lane.undoing?.close();
  lane.leave();
  lane.empty();
  lane.rest();
  lane.changed("cleared");
}

/** Return the newest turn that continues this one. */
function newestBehind(chat, tip) {
  let last = tip && chat.turns.some(({ id }) => id === tip) ? tip : undefined;
  for (let next = last; next; next = chat.turns.findLast(({ previous_response_id }) => previous_response_id === last)?.id) last = next;
  return last;
}
