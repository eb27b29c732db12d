// One lane: a chat of its own on the connection. It takes what its user says and routes what comes back.

import { attachmentsOf } from "./attachments.js";
import { Composer } from "./composer.js";
import { h, say, soon } from "./dom.js";
import { Outbox } from "./outbox.js";
import { copyOf, textOf } from "./request.js";
import { Shown } from "./shown.js";
import { cards } from "./suggestions.js";
import { toast } from "./toast.js";
import { isTerminal } from "./turn.js";

const NEAR = 80; // pixels from the end within which the transcript follows what comes
const LATE = ["response_already_completed", "response_not_active", "response_not_found"];

/**
 * `page`: send(frame), mayTalk(), fork(lane, turn), close(lane), choose(lane), suggest(lane, suggestion), facts; ask(path)
 * and answer(path) of the API; changed(lane, what), where it wants to hear of what is kept: "begun", "ended", "path",
 * "cleared", "loaded", "draft", "scroll".
 */
export class Lane extends Shown {
  constructor(name, title, setup, page) {
    super();
    Object.assign(this, { name, title, setup, page });
    this.outbox = new Outbox(this);
    this.isConnected = true;
    this.stream = name; // of its requests on the connection
    this.sent = []; // turns whose responses have not begun
    this.running = null;
    this.steers = []; // what was accepted, and waits for its successor
    this.parked = []; // what is read together with the answer to a call
    this.left = new Map(); // responses that were cleared away, and still end: their turns
    this.unwanted = []; // requests that were, before their responses began: {turn, tree}
    this.begin();
    this.composer = new Composer(this);
    this.status = h("span", { class: "status" }, "Ready");
    this.transcript = h("div", { class: "transcript", tabindex: "0", role: "log", "aria-live": "off", "aria-label": `${title}, conversation` });
    this.element = h("section", { class: "lane", "aria-label": title, data: { lane: name } }, this.#head(), this.transcript, this.composer.element);
    this.element.addEventListener("focusin", () => page.choose(this));
    this.transcript.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    this.transcript.addEventListener("grown", () => soon(this.scroll));
    new ResizeObserver(() => soon(this.scroll)).observe(this.transcript); // what one writes takes room, too
    this.follows = true;
    this.scrolledTo = 0;
    this.scroll = () => this.follows && this.turns.length && this.#toEnd();
    this.actions = {
      fork: (turn) => page.fork(this, turn),
      retry: (turn) => this.retry(turn),
      answered: (turn, items) => this.#answered(turn, items),
      edit: (turn, place, item) => this.edit(turn, place, item),
      regenerate: (turn) => this.regenerate(turn),
      goOn: (turn) => this.goOn(turn),
      walk: (turn, by) => this.walk(turn, by),
      takeBack: (turn) => this.takeBack(turn),
      sendNow: (turn) => this.outbox.sendNow(turn),
      timeline: page.facts.timeline ?? "",
    };
    this.empty();
  }

  #head() {
    const button = (text, title, click) => h("button", { type: "button", class: "link", title, on: { click } }, text);
    return h(
      "header",
      { class: "lane-head" },
      h("h2", {}, this.title),
      this.status,
      h("span", { class: "push" }),
      button("Warm up", "Read instructions and tools now, so that the first token comes sooner (w)", () => this.warmUp()),
      button("Clear", "Begin a new conversation in this lane", () => this.clear()),
      h("button", { type: "button", class: "link close", title: "Close this lane", "aria-label": `Close ${this.title}`, on: { click: () => this.page.close(this) } }, "Close"),
    );
  }

  empty() {
    const hint = h("p", {}, "Text, reasoning and calls stream in as the server sends them. Try one of these, or write below.");
    this.transcript.replaceChildren(h("div", { class: "empty" }, h("h3", {}, "What should the model do?"), hint, h("div", { class: "cards" }, ...cards(this.page.facts, (each) => this.page.suggest(this, each)))));
  }

  #toEnd() {
    this.transcript.scrollTop = this.transcript.scrollHeight;
    this.scrolledTo = this.transcript.scrollTop; // known at once: who scrolls up from here may do so before the page hears of this
  }

  /** Only who scrolls up stops following: what comes meanwhile moves the end away, too. */
  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.transcript;
    if (scrollHeight - scrollTop - clientHeight < NEAR) this.follows = true;
    else if (scrollTop < this.scrolledTo) this.follows = false;
    this.scrolledTo = scrollTop;
    this.changed("scroll");
  }

  get isBusy() {
    return Boolean(this.running || this.sent.length || this.steers.length);
  }

  /** Whether what runs makes way for another version. */
  get hurries() {
    return this.outbox.waiting.some(({ hurries }) => hurries);
  }

  /** Say an item: a new turn, or a word to the response that runs. */
  say(item) {
    const isSteerable = this.turns.includes(this.running) && this.running.kind !== "warm" && !this.running.inConversation;
    if (this.readOnly) this.composer.giveBack(item, "This chat can only be read. Fork it to go on from here.");
    else if (isSteerable && !this.hurries) this.steer(item);
    else if (this.from(this.tip).owes) this.composer.giveBack(item, "The model waits for what its function gives back: answer the call above first, then send this.");
    else if (!this.page.mayTalk()) this.composer.giveBack(item, "Sign in first, then send this.");
    else this.send([item]);
  }

  /** Begin a turn with these items, behind a node. */
  send(input, { kind = "turn", after = this.tip, hurries = false } = {}) {
    this.undoing?.close();
    const turn = this.made(input, after, { kind });
    turn.hurries = hurries;
    const before = this.tree.get(after);
    turn.behind = before?.turn && (!before.turn.isOver || this.outbox.cut.includes(before.turn)) ? before : null;
    this.outbox.add(turn);
    this.show(turn.node.id);
    this.follows = true;
    soon(this.scroll);
    this.composer.refresh();
    return turn;
  }

  /** A turn was sent: what was parked is read together with it. */
  sending(turn) {
    if (this.parked.length) turn.joined(this.parked.splice(0));
    this.sent.push(turn);
    this.tell("Sent");
  }

  /** Give back what calls wait for: in the turn behind, before all that waits to be sent. */
  #answered(turn, items) {
    const next = this.turns[this.turns.indexOf(turn) + 1];
    if (this.turns.includes(turn) && !next?.isUnsent) return this.send(items);
    const made = this.made(items, turn.node.id);
    if (next) this.tree.move(next.node.id, made.node.id);
    this.outbox.add(made, { first: true });
    return this.show(this.tree.leaf(made.node.id));
  }

  /** Send another message in the place of one; one that was not sent yet is changed. */
  edit(turn, place, item) {
    const input = turn.input.with(place, item);
    if (turn.isUnsent) turn.rewrite(input);
    else this.#again(turn, input);
  }

  /** Ask once more for the answer of a turn. */
  regenerate(turn) {
    this.#again(turn, turn.input);
  }

  #again(turn, input) {
    if (!this.page.mayTalk()) return;
    this.interrupt();
    const made = this.send(input, { after: this.tree.parentOf(turn.node.id), hurries: true });
    say(`Version ${this.tree.siblings(made.node.id).length}`);
    this.changed("path");
  }

  /** Let the model go on from where its answer was cut. */
  goOn(turn) {
    if (this.page.mayTalk()) this.send([], { after: turn.node.id });
  }

  /** Do not send what waits: it is in the form again. */
  takeBack(turn) {
    this.outbox.drop(turn);
    for (const item of turn.input) this.composer.giveBack(item, "");
    say("Taken back");
    this.composer.focus();
  }

  warmUp() {
    if (!this.running && !this.sent.length) this.send([], { kind: "warm" });
  }

  steer(item) {
    this.composer.steering.push(item);
    this.page.send({ type: "response.steer", previous_response_id: this.running.id, input: [item] });
  }

  /** Stop what runs; return whether something does. */
  interrupt() {
    return Boolean(this.running?.id) && this.page.send({ type: "response.interrupt", response_id: this.running.id });
  }

  /** Send a turn again: in its place where the server does not know it, else as another version. */
  retry(turn) {
    if (this.outbox.cut.includes(turn)) return say("The page looks first whether it was stored, as soon as it is connected.");
    if (turn.id) return this.regenerate(turn);
    const { kind, input, node } = turn;
    const made = this.made(input, this.tree.parentOf(node.id), { kind });
    for (const each of this.tree.all) if (each.parent === node.id) this.tree.move(each.node.id, made.node.id);
    for (const each of this.outbox.waiting) if (each.behind === node) each.behind = made.node;
    this.tree.remove(node.id);
    this.outbox.add(made, { first: true });
    return this.show(this.tree.leaf(made.node.id));
  }

  /** Begin a new chat. It can be undone for a while, unless that is done `quietly`. */
  clear({ quietly = false, focus = true } = {}) {
    const { tree, tip, turns, chat, head, members, readOnly, outbox } = this;
    const { scrollTop } = this.transcript;
    const setup = copyOf(this.setup);
    this.undoing?.close();
    this.leave();
    this.empty();
    this.rest();
    if (focus) this.composer.focus();
    this.changed("cleared");
    if (quietly || !turns.length) return;
    const undo = () => {
      Object.assign(this.setup, setup);
      this.#restore({ tree, tip, chat, head, members, readOnly, outbox }, scrollTop);
    };
    this.undoing = toast(`${this.title} was cleared`, { undo });
  }

  #restore(was, scrollTop) {
    this.leave();
    Object.assign(this, was);
    this.follows = false;
    this.show(this.tip);
    this.composer.element.hidden = this.readOnly;
    this.transcript.scrollTop = scrollTop;
    this.rest();
    this.outbox.look();
    this.transcript.focus({ preventScroll: true });
    this.changed("loaded");
  }

  /** Let go of everything; what runs ends by itself. */
  leave() {
    this.interrupt();
    if (this.running) this.left.set(this.running.id, this.running);
    this.unwanted.push(...this.sent.map((turn) => ({ turn, tree: this.tree })));
    this.begin();
    this.outbox = new Outbox(this);
    this.sent = [];
    this.parked = [];
    this.running = null;
    this.steers = [];
    this.transcript.replaceChildren();
    this.composer.element.hidden = false;
  }

  /** Take a frame for this lane. */
  take(frame) {
    if (frame.type.startsWith("response.steer.")) this.#steered(frame);
    else if (frame.type === "error") this.#refused(frame.error);
    else if (frame.type === "response.created") this.#begun(frame);
    else if (isTerminal(frame)) this.#ended(frame);
    else if (this.running ?? this.left.size) {
      (this.running ?? [...this.left.values()].at(-1)).take(frame);
      if (!this.running) return;
      if (frame.type === "response.output_item.added") this.tell(DOING[frame.item.type] ?? "Running");
    }
    if (this.follows) soon(this.scroll);
  }

  #begun(frame) {
    const { id } = frame.response;
    const interrupt = () => this.page.send({ type: "response.interrupt", response_id: id });
    if (this.unwanted.length) {
      const { turn, tree } = this.unwanted.shift();
      tree.rename(turn.node.id, id);
      turn.take(frame);
      this.left.set(id, turn);
      interrupt();
      return;
    }
    const turn = this.steers.length ? this.#successor(frame.response) : (this.sent.shift() ?? this.#successor(frame.response));
    const isTip = this.tip === turn.node.id;
    this.tree.rename(turn.node.id, id);
    this.running = turn;
    turn.take(frame);
    if (isTip) this.show(id);
    this.tell("Reading");
    this.composer.refresh();
    this.changed("begun");
    if (this.hurries) interrupt();
  }

  /** A turn that the server began by itself, with what was said by steering. It is no version: it comes behind another. */
  #successor({ previous_response_id: previous }) {
    const after = this.tree.get(previous) ? previous : this.tip;
    const turn = this.made(this.steers.splice(0).map(({ item }) => item), after);
    if (this.tip === after) {
      this.show(turn.node.id);
      this.follows = true;
      soon(this.scroll);
    }
    return turn;
  }

  #ended(frame) {
    const { response } = frame;
    const left = this.left.get(response.id);
    if (left) {
      this.left.delete(response.id);
      left.end(response);
      this.refresh();
      this.outbox.next();
      return;
    }
    const turn = this.running ?? this.sent.shift();
    this.running = null;
    if (!turn) return;
    if (["completed", "incomplete"].includes(response.status)) {
      this.latest = response.id;
      if (turn.inConversation) {
        this.head = response.id;
        this.members.add(response.id);
      }
    }
    this.tell(turn.isWaited ? "Waits for you" : "Ready");
    turn.end(response);
    this.refresh();
    this.composer.refresh();
    if (turn.isWaited) say(`${this.title}: ${turn.waits}.`);
    else if (!this.running && !this.sent.length) say(`${this.title}: ${ending(response.status)}. ${turn.text.slice(0, 400)}`);
    this.changed("ended");
    this.outbox.next();
  }

  #refused(error) {
    if (this.unwanted.length) {
      this.unwanted.shift().turn.fail(error);
      return;
    }
    const turn = this.sent.shift();
    if (!turn) return;
    turn.fail(error);
    this.refresh();
    this.tell("Refused");
    say(`${this.title}: ${error.message}`);
    this.outbox.next();
    this.composer.refresh();
  }

  #steered(frame) {
    const { steer } = frame;
    if (frame.type === "response.steer.accepted") {
      this.steers.push({ id: steer.id, item: this.composer.steering.shift() });
      this.mark();
    } else if (frame.type === "response.steer.pending") {
      const [waits] = this.steers.splice(this.steers.findIndex(({ id }) => id === steer.id), 1);
      this.parked.push(waits.item);
      this.mark("It is read together with your answer to the call.");
    } else {
      const item = this.composer.steering.shift() ?? steer.input[0];
      if (LATE.includes(frame.error.code)) this.send([item]); // behind the response that has ended meanwhile
      else this.composer.giveBack(item, frame.error.message);
    }
  }

  /** Show what waits to be read by the model. */
  mark(why = "It is read as soon as the model has ended what it is saying.") {
    this.note?.remove();
    const items = [...this.steers.map(({ item }) => item), ...this.parked];
    if (!items.length) return;
    const shown = items.flatMap((item) => [attachmentsOf(item), h("p", {}, textOf(item))]);
    this.note = h("aside", { class: "steering" }, ...shown, h("small", {}, why));
    this.transcript.append(this.note);
  }

  /** The connection is gone, and with it whatever ran on it. What was sent is never sent again by itself. */
  lost() {
    const error = { code: "connection_lost", message: "The connection closed before the response had ended." };
    const cut = [this.running, ...this.sent].filter(Boolean);
    const unread = [...this.steers.map(({ item }) => item), ...this.parked, ...this.composer.steering];
    const cleared = [...this.left.values(), ...this.unwanted.map(({ turn }) => turn)];
    Object.assign(this, { running: null, sent: [], steers: [], parked: [], latest: "", unwanted: [] });
    this.left.clear();
    this.composer.steering = [];
    for (const turn of [...cut, ...cleared]) turn.fail(error, "lost");
    this.outbox.cut.push(...cut.filter(({ id, stored }) => (id ? stored : this.setup.store)));
    for (const item of unread) this.composer.giveBack(item, "The connection closed before the model had read this.");
    this.note?.remove();
    this.refresh();
    this.outbox.next();
    this.isConnected = false;
    this.rest();
  }

  /** The page is connected. */
  ready() {
    this.isConnected = true;
    this.rest();
    this.outbox.look();
  }

  /** Say what the lane waits for. */
  rest() {
    const last = this.turns.findLast((turn) => !turn.isUnsent);
    const idle = last?.isWaited ? "Waits for you" : last && !last.isOver ? "Waiting for the rest" : "Ready";
    if (!this.isBusy) this.tell(this.isConnected ? idle : "Not connected");
    this.composer.refresh();
  }

  tell(text) {
    this.status.textContent = text;
    this.element.dataset.busy = String(Boolean(this.running || this.sent.length));
  }
}

const DOING = {
  reasoning: "Thinking",
  message: "Answering",
  function_call: "Calling",
  custom_tool_call: "Calling",
  code_interpreter_call: "Running code",
  web_search_call: "Searching the web",
  file_search_call: "Searching files",
  image_generation_call: "Drawing",
  mcp_call: "Calling a server",
};

const ending = (status) => ({ completed: "Answered", incomplete: "Stopped", failed: "Failed" })[status] ?? status;
