// One lane: a conversation of its own on the connection. It sends what its user says and routes what comes back.

import { Composer } from "./composer.js";
import { h, say, soon } from "./dom.js";
import { thumbnails } from "./images.js";
import { imagesOf, requestOf, textOf } from "./request.js";
import { suggestions } from "./suggestions.js";
import { isTerminal, Turn } from "./turn.js";

const NEAR = 80; // pixels from the end within which the transcript follows what comes
const LATE = ["response_already_completed", "response_not_active", "response_not_found"];

/** `page`: send(frame), mayTalk(), fork(lane, turn), close(lane), choose(lane), suggest(lane, suggestion), facts. */
export class Lane {
  constructor(name, title, setup, page) {
    Object.assign(this, { name, title, setup, page });
    this.turns = [];
    this.sent = []; // turns whose responses have not begun
    this.running = null;
    this.tail = null; // the response that the next turn continues
    this.steers = []; // what was accepted, and waits for its successor
    this.parked = []; // what is read together with the answer to a call
    this.left = new Set(); // responses that were cleared away, and still end
    this.unwanted = 0; // requests that were, before their responses began
    this.composer = new Composer(this);
    this.status = h("span", { class: "status" }, "Ready");
    this.transcript = h("div", { class: "transcript", tabindex: "0", role: "log", "aria-live": "off", "aria-label": `${title}, conversation` });
    this.element = h("section", { class: "lane", "aria-label": title, data: { lane: name } }, this.#head(), this.transcript, this.composer.element);
    this.element.addEventListener("focusin", () => page.choose(this));
    this.transcript.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    new ResizeObserver(() => soon(this.scroll)).observe(this.transcript); // what one writes takes room, too
    this.follows = true;
    this.scrolledTo = 0;
    this.scroll = () => this.follows && (this.transcript.scrollTop = this.transcript.scrollHeight);
    this.actions = {
      fork: (turn) => page.fork(this, turn),
      retry: (turn) => this.retry(turn),
      answered: (turn, items) => this.send(items),
      timeline: page.facts.timeline ?? "",
    };
    this.#empty();
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

  #empty() {
    const cards = suggestions(this.page.facts).map((each) =>
      h("button", { type: "button", class: "card", on: { click: () => this.page.suggest(this, each) } }, h("strong", {}, each.title), h("span", {}, each.text)),
    );
    const hint = h("p", {}, "Text, reasoning and calls stream in as the server sends them. Try one of these, or write below.");
    this.transcript.replaceChildren(h("div", { class: "empty" }, h("h3", {}, "What shall the model do?"), hint, h("div", { class: "cards" }, ...cards)));
  }

  /** Only who scrolls up stops following: what comes meanwhile moves the end away, too. */
  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.transcript;
    if (scrollHeight - scrollTop - clientHeight < NEAR) this.follows = true;
    else if (scrollTop < this.scrolledTo) this.follows = false;
    this.scrolledTo = scrollTop;
  }

  #add(turn) {
    if (!this.turns.length) this.transcript.replaceChildren();
    this.turns.push(turn);
    this.transcript.append(turn.element);
    this.follows = true;
    soon(this.scroll);
  }

  /** Say an item: a new turn, or a word to the response that runs. */
  say(item) {
    const owes = this.turns.some((turn) => turn.id === this.tail && turn.owes);
    if (this.running) this.steer(item);
    else if (owes) this.composer.giveBack(item, "The model waits for what its function gives back: answer the call above first, then send this.");
    else if (!this.page.mayTalk()) this.composer.giveBack(item, "Sign in first, then send this.");
    else this.send([item]);
  }

  /** Begin a turn with these items. */
  send(input, { kind = "turn" } = {}) {
    const turn = new Turn(input, this.actions, { kind });
    this.#add(turn);
    if (this.parked.length) turn.joined(this.parked.splice(0));
    const frame = {
      type: "response.create",
      stream_id: this.name,
      ...requestOf(this.setup),
      input,
      ...(this.tail ? { previous_response_id: this.tail } : {}),
      ...(kind === "warm" ? { generate: false } : {}),
    };
    if (this.page.send(frame)) {
      this.sent.push(turn);
      this.#tell("Sent");
    } else {
      turn.fail({ code: "not_connected", message: "The page is not connected to the server." });
    }
    this.composer.refresh();
  }

  warmUp() {
    if (!this.running && !this.sent.length) this.send([], { kind: "warm" });
  }

  steer(item) {
    this.composer.steering.push(item);
    this.page.send({ type: "response.steer", previous_response_id: this.running.id, input: [item] });
  }

  interrupt() {
    if (this.running?.id) this.page.send({ type: "response.interrupt", response_id: this.running.id });
  }

  retry(turn) {
    turn.element.remove();
    this.turns = this.turns.filter((each) => each !== turn);
    this.send(turn.input, { kind: turn.kind });
  }

  clear() {
    this.interrupt();
    if (this.running) this.left.add(this.running.id);
    this.unwanted += this.sent.length;
    this.turns = [];
    this.sent = [];
    this.parked = [];
    this.running = this.tail = null;
    this.steers = [];
    this.#empty();
    this.#tell("Ready");
    this.composer.refresh();
    this.composer.focus();
  }

  /** Go on from a response that was made elsewhere. */
  goOnFrom(id) {
    this.tail = id;
    this.transcript.replaceChildren(h("p", { class: "waiting" }, `What you write goes on from ${id}. Its turns are not shown here.`));
  }

  /** Take over the turns up to this one from another lane. */
  takeOver(lane, turn) {
    const kept = lane.turns.slice(0, lane.turns.indexOf(turn) + 1).filter((each) => each.isOver && each.id);
    kept.forEach((each, place) => this.#add(each.copy(this.actions, place < kept.length - 1)));
    this.tail = turn.id;
    if (turn.required.size) this.#tell("Waits for you");
  }

  /** Take a frame for this lane. */
  take(frame) {
    if (frame.type.startsWith("response.steer.")) this.#steered(frame);
    else if (frame.type === "error") this.#refused(frame.error);
    else if (frame.type === "response.created") this.#begun(frame);
    else if (isTerminal(frame)) this.#ended(frame);
    else if (this.running) {
      this.running.take(frame);
      if (frame.type === "response.output_item.added") this.#tell(DOING[frame.item.type] ?? "Running");
    }
    if (this.follows) soon(this.scroll);
  }

  #begun(frame) {
    if (this.unwanted) {
      this.unwanted -= 1;
      this.left.add(frame.response.id);
      this.page.send({ type: "response.interrupt", response_id: frame.response.id });
      return;
    }
    const successor = this.steers.length > 0;
    let turn = successor ? null : this.sent.shift();
    if (!turn) {
      turn = new Turn(this.steers.splice(0).map(({ item }) => item), this.actions);
      this.#add(turn);
    }
    this.running = turn;
    this.#mark();
    turn.take(frame);
    this.#tell("Reading");
    this.composer.refresh();
  }

  #ended(frame) {
    if (this.left.delete(frame.response.id)) return;
    const turn = this.running ?? this.sent.shift();
    this.running = null;
    if (!turn) return;
    if (["completed", "incomplete"].includes(frame.response.status)) this.tail = frame.response.id;
    this.#tell(turn.isWaited ? "Waits for you" : "Ready");
    turn.end(frame.response);
    this.composer.refresh();
    if (turn.isWaited) say(`${this.title}: ${turn.waits}.`);
    else if (!this.running && !this.sent.length) say(`${this.title}: ${ending(frame.response.status)}. ${turn.text.slice(0, 400)}`);
  }

  #refused(error) {
    if (this.unwanted) {
      this.unwanted -= 1;
      return;
    }
    const turn = this.sent.shift();
    if (!turn) return;
    turn.fail(error);
    this.#tell("Refused");
    say(`${this.title}: ${error.message}`);
    this.composer.refresh();
  }

  #steered(frame) {
    const { steer } = frame;
    if (frame.type === "response.steer.accepted") {
      this.steers.push({ id: steer.id, item: this.composer.steering.shift() });
      this.#mark();
    } else if (frame.type === "response.steer.pending") {
      const [waits] = this.steers.splice(this.steers.findIndex(({ id }) => id === steer.id), 1);
      this.parked.push(waits.item);
      this.#mark("It is read together with your answer to the call.");
    } else {
      const item = this.composer.steering.shift() ?? steer.input[0];
      if (LATE.includes(frame.error.code)) this.send([item]);
      else this.composer.giveBack(item, frame.error.message);
    }
  }

  /** Show what waits to be read by the model. */
  #mark(why = "It is read as soon as the model has ended what it is saying.") {
    this.note?.remove();
    const items = [...this.steers.map(({ item }) => item), ...this.parked];
    if (!items.length) return;
    const shown = items.flatMap((item) => [thumbnails(imagesOf(item)), h("p", {}, textOf(item))]);
    this.note = h("aside", { class: "steering" }, ...shown, h("small", {}, why));
    this.transcript.append(this.note);
  }

  /** The connection is gone, and with it whatever ran on it. */
  lost() {
    const error = { code: "connection_lost", message: "The connection closed before the response had ended." };
    for (const turn of [this.running, ...this.sent]) turn?.fail(error, "lost");
    if (!this.setup.store) this.tail = null;
    this.running = null;
    this.sent = [];
    this.steers = [];
    this.parked = [];
    this.composer.steering = [];
    this.left.clear();
    this.unwanted = 0;
    this.note?.remove();
    this.#tell("Not connected");
    this.composer.refresh();
  }

  ready() {
    if (!this.running) this.#tell(this.turns.at(-1)?.isWaited ? "Waits for you" : "Ready");
    this.composer.refresh();
  }

  #tell(text) {
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
