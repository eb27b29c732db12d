// The turns of a lane: a tree of versions, and the path of it that is shown.

import { h, say, soon } from "./dom.js";
import { follow } from "./following.js";
import { ASKS, isTerminal, Turn } from "./turn.js";
import { Tree } from "./versions.js";

const LOOK_AGAIN = 2_000; // milliseconds after the events of a response that still runs were cut
const MOST_REPEATED = 8_000_000; // characters of turns that the server does not know and that go into a request again

/** What a lane shows. The lane itself has `page`, `actions`, `transcript`, `composer`, `outbox`, empty(), mark(), leave(), rest(). */
export class Shown {
  count = 0; // of turns that were made here
  latest = ""; // the response that the connection remembers of this lane, stored or not

  /** Forget everything that was shown. */
  begin() {
    this.tree = new Tree();
    this.tip = null; // the node that the path ends in, which the next turn goes on from
    this.turns = []; // those on the path
    this.chat = null; // {id, title, …} of what the server keeps of it
    this.head = null; // the newest response of the conversation, where it is one
    this.members = new Set(); // the responses of the conversation
    this.readOnly = false;
  }

  /** The response that the next turn continues; null for none. */
  get tail() {
    return this.from(this.tip).previous;
  }

  /** Say that something has changed that is kept. */
  changed(what) {
    this.page.changed?.(this, what);
  }

  /** Return the turn of a node; `answers` are what later turns gave back. */
  turnOf(node, answers) {
    if (!node.turn) this.give(node, Turn.of(node.kept, this.actions, answers));
    return node.turn;
  }

  /** Let a node have another turn. */
  give(node, turn) {
    node.turn = turn;
    turn.node = node;
    if (!turn.isOver && turn.id) this.#follow(turn);
  }

  /** What turns gave back, by call or request. */
  #answers(nodes) {
    const items = nodes.flatMap(({ turn, kept }) => (turn ?? kept).input ?? []);
    return new Map(items.map((item) => [item.call_id ?? item.approval_request_id, item]).filter(([id, { output, approve }]) => id && (output ?? approve) !== undefined));
  }

  /** Show the turns up to this one. */
  show(tip) {
    this.tip = tip;
    this.tree.choose(tip);
    const nodes = this.tree.path(tip);
    const before = this.turns;
    const answers = this.#answers(nodes);
    this.turns = nodes.map((node) => this.turnOf(node, answers));
    for (const turn of this.turns) turn.answeredBy(answers);
    const same = this.turns.findIndex((turn, place) => turn !== before[place]);
    for (const turn of before.slice(same < 0 ? this.turns.length : same)) turn.element.remove();
    for (const element of [...this.transcript.children]) if (!element.matches(".turn, .notice")) element.remove();
    if (!this.turns.length) this.empty();
    else this.transcript.append(...this.turns.slice(same < 0 ? this.turns.length : same).map(({ element }) => element));
    this.#name();
    this.mark();
    this.refresh();
  }

  /** A chat is called by its first response, or by its conversation. */
  #name() {
    const root = this.root;
    if (root && !this.chat) this.chat = { id: root, title: "" };
  }

  /** The first response that the server keeps of this chat; null for none. */
  get root() {
    const first = this.tree.all.find(({ node, parent }) => parent === null && (node.kept ?? (node.turn.id && node.turn.stored)));
    return first ? first.node.id : null;
  }

  /** Say of each turn of which versions it is one, and what can be done with it. */
  refresh() {
    for (const { node } of this.turns) {
      const versions = this.tree.siblings(node.id);
      const possible = { edit: this.#refusal(node), readOnly: this.readOnly };
      node.turn.refresh({ place: versions.indexOf(node) + 1, count: versions.length, possible });
    }
  }

  /** Why nothing else can be said in the place of a turn; "" where it can. */
  #refusal(node) {
    const { said, owes } = this.from(this.tree.parentOf(node.id), node.turn.input);
    if (owes && !node.turn.isUnsent) return "Not possible: the turn before it waits for the output of its call";
    return said.length && JSON.stringify(said).length > MOST_REPEATED ? "Not possible: the turns before it are not stored, and too long to be sent again" : "";
  }

  /**
   * What a turn with this input behind a node goes on from: the response before it, and what has to be said again because
   * the server does not know it: what was cut with its connection, and what was not stored. `owes`: a call waits.
   */
  from(id, input = []) {
    const said = [];
    let behind = input; // what comes later, which may answer calls
    for (; this.tree.get(id); id = this.tree.parentOf(id)) {
      const turn = this.turnOf(this.tree.get(id));
      const owes = turn.owes && !behind.some((item) => turn.owed.has(item.call_id));
      if (turn.isAlive && (turn.stored || turn.id === this.latest)) return { previous: id, said, owes };
      if (!turn.hasOutput && !turn.isAlive) continue;
      const answered = new Set(behind.map((item) => item.call_id ?? item.approval_request_id));
      const output = turn.isAlive ? turn.output.filter((item) => item && (!ASKS.includes(item.type) || answered.has(item.call_id ?? item.id))) : turn.carried;
      said.unshift(...turn.input, ...output);
      behind = [...turn.input, ...behind];
    }
    return { previous: id, said, owes: false };
  }

  /** The turn that a node is shown behind, as `asShown` reads it: where the server has it, and the request goes on from another. */
  unlinked(node, { previous, said }) {
    const before = this.tree.parentOf(node.id);
    const { id, stored } = this.tree.get(before)?.turn ?? {};
    return id && stored && before !== previous ? `${before} ${said.length}` : null;
  }

  /** Make a turn behind a node. */
  made(input, after, { kind = "turn" } = {}) {
    const turn = new Turn(input, this.actions, { kind });
    this.count += 1;
    turn.node = this.tree.add({ id: `new-${this.count}`, turn, warm: kind === "warm" }, after);
    return turn;
  }

  /** Do something with the last turn of a kind, where it can be done. */
  last(isOne, act) {
    const turn = this.turns.findLast(isOne);
    if (turn && !turn.possible.edit && !this.readOnly) act(turn);
  }

  /** Show another version of a turn, and what came behind it. */
  walk(turn, by) {
    const versions = this.tree.siblings(turn.node.id);
    const place = versions.indexOf(turn.node) + by;
    if (!versions[place]) return;
    const top = turn.walker.element.getBoundingClientRect().top;
    this.follows = false;
    this.show(this.tree.leaf(versions[place].id));
    const { turn: shown } = versions[place];
    this.transcript.scrollTop += shown.walker.element.getBoundingClientRect().top - top;
    shown.walker.focus(by);
    say(`Version ${place + 1} of ${versions.length}. ${shown.text.slice(0, 400)}`);
    this.rest();
    this.changed("path");
  }

  /** Show a chat as the server keeps it: the turns on the path to `tip`. */
  load(chat, { tip = chat.response_id, readOnly = chat.read_only ?? false } = {}) {
    const { turns, more, ...rest } = chat;
    this.undoing?.close();
    this.leave();
    this.transcript.replaceChildren();
    this.chat = rest;
    this.readOnly = readOnly;
    for (const kept of turns) this.#keep(kept);
    if (more) this.transcript.append(h("p", { class: "notice hint" }, "Earlier turns of this chat are not shown."));
    this.follows = true;
    this.show(this.tree.get(tip) ? tip : this.tree.leaf(turns.at(-1)?.id ?? null));
    this.composer.element.hidden = readOnly;
    soon(this.scroll);
    this.rest();
    this.changed("loaded");
  }

  #keep(kept) {
    const isWarm = kept.status === "completed" && !kept.output?.length;
    const isMember = kept.conversation?.id === this.chat.id;
    this.tree.add({ id: kept.id, kept, warm: isWarm }, isMember ? this.head : kept.previous_response_id);
    if (!isMember || !["completed", "incomplete"].includes(kept.status)) return;
    this.members.add(kept.id);
    this.head = kept.id;
  }

  /** Take over the turns of another lane, and show those up to this one. */
  takeOver(lane, turn) {
    for (const { node, parent } of lane.tree.all) {
      const kept = node.turn ?? node.kept;
      if (kept.id && (node.kept || node.turn.isOver)) this.tree.add({ id: node.id, kept, warm: node.warm }, parent);
    }
    Object.assign(this, { chat: lane.chat, head: lane.head, members: lane.members, latest: lane.latest === turn.id ? turn.id : "" });
    this.transcript.replaceChildren();
    this.show(turn.node.id);
    if (this.turns.at(-1).required.size) this.tell("Waits for you");
  }

  /**
   * Go on with a response that another connection began, and that still runs. Its events come from the first one on: what
   * was read before stays until they have caught up with it.
   */
  async #follow(turn) {
    const { outbox, tree } = this;
    const { node } = turn;
    const live = new Turn(turn.input, this.actions, { kind: turn.kind });
    Object.assign(live, { id: turn.id, status: turn.status, node, isFollowed: true });
    live.waiting.textContent = turn.waiting.textContent;
    if (!turn.read) node.turn = live;
    const take = (event) => {
      if (isTerminal(event) && node.turn === turn && turn.hasMoreThan(event.response.output)) return turn.end(event.response);
      if (isTerminal(event)) live.end(event.response);
      else live.take(event);
      if (node.turn === turn && (live.isOver || live.read >= turn.read)) node.turn = live;
      if (this.tree === tree && this.turns.includes(turn) && node.turn === live) this.show(this.tip);
      return undefined;
    };
    try {
      await follow(this.page, turn.id, take);
      if (!node.turn.isOver) throw new Error("The stream ended before the response did.");
    } catch (error) {
      node.turn.fail({ code: "connection_lost", message: error.message }, "lost");
      outbox.cut.push(node.turn);
      if (this.isConnected) setTimeout(() => outbox.look(), LOOK_AGAIN);
    }
    this.refresh();
    this.rest();
    outbox.next();
  }
}
