// One turn: what was said, the response to it as it comes, and what it took.

import { attachmentsOf } from "./attachments.js";
import { facts } from "./door.js";
import { copy, duration, h, icon } from "./dom.js";
import { edit } from "./editing.js";
import { helpFor } from "./errors.js";
import { itemView } from "./items.js";
import { textOf } from "./request.js";
import { Walker } from "./versions.js";

const TERMINAL = ["response.completed", "response.incomplete", "response.failed"];

/** Whether an event is the last one of its response. */
export const isTerminal = ({ type }) => TERMINAL.includes(type);

const PENCIL = "M10.5 3 13 5.5 5.5 13H3v-2.5zM9 4.5 11.5 7";
const ALIVE = ["completed", "incomplete"]; // what the server goes on from
/** The statuses of a response that has not ended. */
export const RUNS = ["queued", "in_progress"];
/** Items that somebody has to answer. */
export const ASKS = ["function_call", "custom_tool_call", "mcp_approval_request"];
const NOBODY = new Map();

/**
 * A response and its input. `actions`: fork(turn), retry(turn), answered(turn, items), `timeline` a path or "", and of
 * versions: edit(turn, place, item), regenerate(turn), goOn(turn), walk(turn, by), takeBack(turn), sendNow(turn).
 */
export class Turn {
  constructor(input, actions, { kind = "turn" } = {}) {
    this.input = input;
    this.actions = actions;
    this.kind = kind;
    this.id = "";
    this.stored = true; // until its response says otherwise
    this.status = "sent";
    this.output = [];
    this.required = new Map(); // what this page's user has to answer: by call or request, null until then
    this.waiters = new Map(); // what is told to people of each of those
    this.owed = new Set(); // those without which the server takes nothing else
    this.views = [];
    this.partial = []; // the text of messages that have not ended
    this.read = 0; // characters of all texts that have come
    this.sentAt = performance.now();
    this.firstAt = this.endedAt = 0;
    this.items = h("div", { class: "items" });
    this.foot = h("footer", { class: "foot" });
    this.waiting = h("p", { class: "waiting" }, kind === "warm" ? "Warming up" : "Sent");
    this.held = h("p", { class: "held", hidden: true });
    this.walker = new Walker((by) => this.actions.walk(this, by));
    this.possible = { edit: "", fork: true, readOnly: false };
    this.given = h("div", { class: "given" });
    this.element = h("section", { class: `turn ${kind}` }, this.given, this.items, this.waiting, this.held, this.foot);
    this.#give();
  }

  /** Make an ended turn of a stored one. `answers`: what later turns gave back, by call or request. */
  static of(kept, actions, answers = NOBODY) {
    const isWarm = kept.kind === "warm" || (kept.status === "completed" && !kept.output?.length);
    const made = new Turn(kept.input ?? [], actions, { kind: isWarm ? "warm" : "turn" });
    const { id, usage, sentAt = 0, firstAt = 0, endedAt = 0, thoughts = {}, incomplete_details, stored = true, note = "" } = kept;
    Object.assign(made, { id, usage, sentAt, firstAt, endedAt, incomplete_details, stored, note });
    made.element.dataset.response = id;
    made.status = kept.status;
    made.output = [...(kept.output ?? [])];
    made.answeredBy(answers);
    for (const [index, item] of made.output.entries()) {
      if (!item) continue;
      const view = made.#view(index, item);
      view.update(item, false);
      if (thoughts[index]) view.tell?.(thoughts[index]);
      const answer = ASKS.includes(item.type) && answers.get(item.call_id ?? item.id);
      if (answer) view.settle(answer);
    }
    if (!made.isOver) {
      made.goesOnElsewhere(kept);
      return made;
    }
    made.#over();
    if (kept.error) made.#tell(kept.error);
    made.#measure();
    return made;
  }

  /** How long it thought, in milliseconds, by the place of the item. */
  get thoughts() {
    return Object.fromEntries(this.views.flatMap((view, place) => (view?.took ? [[place, view.took]] : [])));
  }

  /** What the server does not keep of it, and a reload is to show: its numbers, and what was read of an answer that died. */
  get ofPage() {
    const { sentAt, firstAt, endedAt, thoughts } = this;
    const read = this.isAlive || !this.hasOutput ? [] : this.carried;
    const times = this.isFollowed ? {} : { firstAt: firstAt && firstAt - sentAt, endedAt: endedAt - sentAt, thoughts };
    return { ...times, ...(read.length && JSON.stringify(read).length < MOST_READ ? { read } : {}) };
  }

  /** Take what later turns gave back: nobody has to answer that any more. */
  answeredBy(answers) {
    for (const [place, item] of this.output.entries()) {
      const id = ASKS.includes(item?.type) && (item.call_id ?? item.id);
      const answer = id && answers.get(id);
      if (!answer || this.required.get(id) === answer) continue;
      this.required.set(id, answer);
      this.views[place]?.settle?.(answer);
    }
    if (this.required.size && !this.isWaited) this.wentOn = true;
  }

  /** Show what was said, and what was given as an answer that had begun. */
  #give() {
    const said = this.input.map((item, place) => {
      if (item.role === "user" || typeof item === "string") return this.#said(item, place);
      if (item.role !== "assistant") return null;
      const given = { ...item, type: "message", content: typeof item.content === "string" ? [{ text: item.content }] : item.content };
      const view = itemView(given, this);
      view.update(given, false);
      return view.element;
    });
    this.given.replaceChildren(...said.filter(Boolean));
  }

  #said(item, place) {
    const title = "Edit and send again (u)";
    const pencil = h("button", { type: "button", class: "quiet only-icon pencil", "aria-label": "Edit your message", title }, icon(PENCIL));
    pencil.addEventListener("click", () => pencil.getAttribute("aria-disabled") === "true" || this.write(place));
    return h("div", { class: "said" }, pencil, bubble(item));
  }

  /** Open one of its messages for writing; the last one, where no place is told. */
  write(place = this.input.findLastIndex((item) => item.role === "user")) {
    const rows = this.input.map((item, at) => (item.role === "user" || typeof item === "string" || item.role === "assistant" ? at : -1));
    const element = this.given.children[rows.filter((at) => at >= 0).indexOf(place)];
    if (!element?.classList.contains("said") || this.possible.edit || this.possible.readOnly) return;
    edit(element, this.input[place], this.isUnsent ? "Keep" : "Send", (item) => this.actions.edit(this, place, item));
  }

  /** Change what is said, as long as it was not sent. */
  rewrite(input) {
    this.input = input;
    this.#give();
    this.refresh();
  }

  get isUnsent() {
    return this.status === "unsent";
  }

  /** Whether the server goes on from it. */
  get isAlive() {
    return ALIVE.includes(this.status);
  }

  /** Whether its answer has an end that nobody wanted. */
  get isCut() {
    if (this.kind === "warm" || !this.isOver) return false;
    return this.status === "incomplete" ? this.incomplete_details?.reason !== "steered" : this.status !== "completed" && this.hasOutput;
  }

  get hasOutput() {
    return this.carried.length > 0;
  }

  /** Its output, as far as it can stand in the input of another request: calls that nobody answers cannot. */
  get carried() {
    const cut = (text) => ({ type: "message", role: "assistant", status: "incomplete", content: [{ type: "output_text", text, annotations: [] }] });
    const items = Array.from(this.views, (_, place) => this.output[place] ?? (this.partial[place] && cut(this.partial[place])));
    return items.filter((item) => item && item.status !== "in_progress" && !ASKS.includes(item.type));
  }

  /** Whether more of its answer was read here than these items have. */
  hasMoreThan(items) {
    return sizeOf(this.carried) > sizeOf(items);
  }

  /** Its connection broke, and the server says that it still runs: what was read stays, and it says what it waits for. */
  goesOnElsewhere({ id, status }) {
    Object.assign(this, { id, status });
    this.element.dataset.response = id;
    delete this.element.dataset.status;
    this.items.querySelector(":scope > .problem")?.remove();
    this.foot.replaceChildren();
    const read = this.read ? "The connection closed here. " : "";
    this.waiting.textContent = `${read}Waiting for the rest: the server has this answer as running. If its process has died, that shows within about ${facts.lease_seconds} s`;
    this.waiting.hidden = false;
  }

  /** It waits, and says why. */
  hold(why) {
    this.status = "unsent";
    this.waiting.hidden = true;
    const button = (text, title, act) => h("button", { type: "button", class: "link", title, on: { click: act } }, text);
    const isMessage = this.input.some((item) => item.role === "user");
    const buttons = [
      isMessage && button("Edit", "Change it before it is sent", () => this.write()),
      isMessage && button("Take back", "Do not send it", () => this.actions.takeBack(this)),
      why.now && button("Send now", "Send it all the same", () => this.actions.sendNow(this)),
    ];
    this.held.hidden = false;
    this.held.replaceChildren(h("span", {}, why.text), ...buttons.filter(Boolean));
  }

  /** It is sent now; `doing` is what the server does before its response begins. */
  sending(doing = "Sent") {
    this.status = "sent";
    if (this.kind !== "warm") this.waiting.textContent = doing;
    this.sentAt = performance.now();
    this.sentOn = Date.now();
    this.held.hidden = true;
    this.waiting.hidden = false;
  }

  /** Say of which versions it is one, and what can be done with it. `possible.edit` is why it cannot be said anew. */
  refresh({ place = 1, count = 1, possible = this.possible } = {}) {
    this.walker.tell(place, count);
    if (!this.isOver && count > 1 && !this.walker.element.isConnected) this.foot.replaceChildren(this.walker.element);
    const told = JSON.stringify(possible);
    if (told === this.toldPossible) return;
    this.toldPossible = told;
    this.possible = possible;
    for (const pencil of this.given.querySelectorAll(".pencil")) {
      pencil.hidden = possible.readOnly;
      refusable(pencil, possible.edit, "Edit and send again (u)");
    }
    if (this.isOver) this.#measure();
  }

  get isOver() {
    return !["unsent", "sent", ...RUNS].includes(this.status);
  }

  /** Put what was said by steering in front of the input. */
  joined(items) {
    this.input = [...items, ...this.input];
    this.#give();
  }

  /** Take an event of the response. */
  take(frame) {
    switch (frame.type) {
      case "response.created":
        this.id = frame.response.id;
        this.element.dataset.response = this.id;
        this.status = frame.response.status;
        this.stored = frame.response.store !== false;
        if (!this.isFollowed) this.waiting.textContent = this.kind === "warm" ? "Warming up" : "Reading";
        break;
      case "response.queued":
        this.waiting.textContent = "Queued";
        break;
      case "response.output_item.added":
        this.waiting.hidden = true;
        this.#view(frame.output_index, frame.item).update(frame.item, true);
        break;
      case "response.output_item.done":
        this.output[frame.output_index] = frame.item;
        this.#view(frame.output_index, frame.item).update(frame.item, true);
        break;
      default:
        if (frame.output_index !== undefined) this.#grow(frame);
    }
  }

  #grow(frame) {
    if (typeof frame.delta === "string") {
      this.firstAt ||= performance.now();
      this.read += frame.delta.length;
    }
    if (frame.type === "response.output_text.delta") this.partial[frame.output_index] = (this.partial[frame.output_index] ?? "") + frame.delta;
    this.views[frame.output_index]?.delta(frame);
  }

  #view(index, item) {
    if (!this.views[index]) {
      const view = (this.views[index] = itemView(item, this));
      const next = this.views.slice(index + 1).find(Boolean);
      if (next) next.element.before(view.element);
      else this.items.append(view.element);
    }
    return this.views[index];
  }

  /**
   * What an item needs from the page's user: returns what takes the answer, null where none is wanted any more.
   * `told` says to people who waits; what is `owed` comes before anything else that is said.
   */
  requires(id, told, { owed = false } = {}) {
    if (this.required.get(id) || (this.isOver && !this.isAlive)) return null;
    if (owed) this.owed.add(id);
    this.required.set(id, null);
    this.waiters.set(id, told);
    return (answer) => {
      this.required.set(id, answer);
      this.#goOn();
    };
  }

  get isWaited() {
    return [...this.required.values()].includes(null);
  }

  /** Whether the server takes nothing else before a call is answered. */
  get owes() {
    return [...this.owed].some((id) => !this.required.get(id));
  }

  /** Say who waits for the page's user. */
  get waits() {
    const open = [...this.waiters].filter(([id]) => this.required.get(id) === null);
    return [...new Set(open.map(([, told]) => told))].join(", ");
  }

  #goOn() {
    if (!this.isOver || !this.required.size || this.isWaited || this.wentOn) return;
    this.wentOn = true;
    this.actions.answered(this, [...this.required.values()]);
  }

  /** The response has ended, as its last event says. */
  end(response) {
    this.endedAt = performance.now();
    this.status = response.status;
    this.usage = response.usage;
    this.error = response.error;
    this.incomplete_details = response.incomplete_details;
    this.#over();
    if (response.error) this.#tell(response.error);
    this.#measure();
    this.#goOn();
  }

  /** It never came to a response, or its connection was lost. */
  fail(error, status = "failed") {
    this.endedAt = performance.now();
    this.status = status;
    this.#over();
    this.#tell(error);
    this.#measure();
  }

  #over() {
    this.waiting.hidden = true;
    this.element.dataset.status = this.status;
    for (const view of this.views) view?.stop();
  }

  #tell(error) {
    const { title, help } = helpFor(error);
    const verb = error.code === "connection_lost" ? "Send again" : "Try again";
    const again = this.possible.readOnly ? null : h("button", { type: "button", class: "quiet", on: { click: () => this.actions.retry(this) } }, verb);
    const message = h("p", {}, error.message ?? "");
    const code = error.code ? h("code", {}, error.code) : null;
    this.items.append(
      h("div", { class: "problem", role: "group", "aria-label": "Error" }, h("strong", {}, title), " ", code, message, help ? h("p", {}, help) : null, again),
    );
  }

  /** Text of the answer. */
  get text() {
    const messages = this.output.filter((item) => item?.type === "message");
    return messages.flatMap((item) => item.content.map((part) => part.text ?? part.refusal ?? "")).join("\n\n");
  }

  #measure() {
    const told = [];
    const isMeasured = this.firstAt && !this.isFollowed;
    const first = isMeasured ? this.firstAt - this.sentAt : 0;
    if (this.kind === "warm") told.push(["took", this.endedAt ? `Warmed up in ${duration(this.endedAt - this.sentAt)}` : "Warmed up", ""]);
    if (first) told.push(["first", duration(first), "to first token"]);
    const seconds = (this.endedAt - this.firstAt) / 1000;
    if (this.usage && isMeasured && this.usage.output_tokens > 1 && seconds > 0) {
      told.push(["speed", ((this.usage.output_tokens - 1) / seconds).toFixed(seconds < 10 ? 1 : 0), "tokens/s"]);
    }
    if (this.usage) {
      const cached = this.usage.input_tokens_details?.cached_tokens ?? 0;
      const share = this.usage.input_tokens ? Math.round((100 * cached) / this.usage.input_tokens) : 0;
      told.push(["in", this.usage.input_tokens.toLocaleString("en"), `in, ${share} % cached`]);
      if (this.kind !== "warm") told.push(["out", this.usage.output_tokens.toLocaleString("en"), "out"]);
    }
    const reason = this.incomplete_details?.reason;
    const ending = this.status === "completed" ? null : h("span", { class: "ending" }, reason ? ENDINGS[reason] ?? reason : ENDINGS[this.status] ?? this.status);
    const numbers = told.map(([name, value, unit]) => h("span", { data: { measure: name } }, h("b", {}, value), unit && ` ${unit}`));
    const note = this.note ? h("p", { class: "aside-note" }, this.note) : null;
    const focused = this.foot.contains(document.activeElement) && document.activeElement;
    this.foot.replaceChildren(h("p", { class: "numbers" }, this.walker.element, ending, ...numbers), this.#buttons(), ...(note ? [note] : []));
    if (focused?.isConnected) focused.focus({ preventScroll: true });
  }

  #buttons() {
    const button = (text, title, click) => h("button", { type: "button", class: "link", title, on: { click } }, text);
    const made = [];
    const { readOnly, edit: refused } = this.possible;
    if (this.isCut && !readOnly) made.push(button("Continue", "Let the model go on from where it was cut (g)", () => this.actions.goOn(this)));
    if (this.kind !== "warm" && !readOnly) {
      const again = button("Regenerate", "", () => refused || this.actions.regenerate(this));
      refusable(again, refused, "Ask again for this answer, with this lane's setup (r)");
      made.push(again);
    }
    if (this.isAlive && !readOnly) made.push(button("Fork", "Go on from here in a new lane (f)", () => this.actions.fork(this)));
    if (this.text) {
      const copying = button("Copy", "Copy the answer", () => copy(this.text, copying));
      made.push(copying);
    }
    if (this.id && this.actions.timeline) {
      made.push(h("a", { class: "link", href: this.actions.timeline + this.id, target: "_blank", rel: "noopener" }, "Timeline"));
    }
    return h("p", { class: "actions" }, ...made);
  }
}

const sizeOf = (items) => JSON.stringify((items ?? []).flatMap(({ content }) => content ?? [])).length;

const MOST_READ = 100_000; // characters of an answer that died which are kept
const MOST_SHOWN = 20_000; // characters of what was said

const ENDINGS = {
  lost: "Connection lost",
  cancelled: "Cut",
  failed: "Failed",
  steered: "Steered",
  interrupted: "Interrupted",
  max_output_tokens: "Cut at the most output tokens",
  content_filter: "Filtered",
};

/** Let a button say why it does nothing, where there is a reason. */
function refusable(button, why, title) {
  button.title = why || title;
  if (why) button.setAttribute("aria-disabled", "true");
  else button.removeAttribute("aria-disabled");
}

/** Return what the user said: its beginning, where laying all of it out would take seconds. */
function bubble(item) {
  const text = textOf(item);
  const shown = text.slice(0, MOST_SHOWN);
  const isLong = shown.length > 600 || shown.split("\n").length > 12; // it scrolls, and keys have to reach it
  const more = text.length - shown.length;
  const rest = more ? h("p", {}, `… and ${more.toLocaleString("en")} more characters, which were sent, too`) : null;
  return h("article", { class: isLong ? "asked long" : "asked", "aria-label": "You", tabindex: isLong ? "0" : null }, attachmentsOf(item), shown, rest);
}
