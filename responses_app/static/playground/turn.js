// One turn: what was said, the response to it as it comes, and what it took.

import { copy, duration, h } from "./dom.js";
import { helpFor } from "./errors.js";
import { thumbnails } from "./images.js";
import { itemView } from "./items.js";
import { imagesOf, textOf } from "./request.js";

const TERMINAL = ["response.completed", "response.incomplete", "response.failed"];

/** Whether an event is the last one of its response. */
export const isTerminal = ({ type }) => TERMINAL.includes(type);

/** A response and its input. `actions`: fork(turn), retry(turn), answered(turn, items), `timeline` a path or "". */
export class Turn {
  constructor(input, actions, { kind = "turn" } = {}) {
    this.input = input;
    this.actions = actions;
    this.kind = kind;
    this.id = "";
    this.status = "sent";
    this.output = [];
    this.required = new Map(); // what this page's user has to answer: by call or request, null until then
    this.waiters = new Map(); // what is told to people of each of those
    this.owed = new Set(); // those without which the server takes nothing else
    this.views = [];
    this.sentAt = performance.now();
    this.firstAt = this.endedAt = 0;
    this.items = h("div", { class: "items" });
    this.foot = h("footer", { class: "foot" });
    this.waiting = h("p", { class: "waiting" }, kind === "warm" ? "Warming up" : "Sent");
    const asked = input.filter((item) => item.role === "user" || typeof item === "string").map(bubble);
    this.element = h("section", { class: `turn ${kind}` }, ...asked, this.items, this.waiting, this.foot);
  }

  get isOver() {
    return !["sent", "queued", "in_progress"].includes(this.status);
  }

  /** Put what was said by steering in front of the input. */
  joined(items) {
    this.element.prepend(...items.map(bubble));
  }

  /** Take an event of the response. */
  take(frame) {
    switch (frame.type) {
      case "response.created":
        this.id = frame.response.id;
        this.element.dataset.response = this.id;
        this.status = frame.response.status;
        this.waiting.textContent = this.kind === "warm" ? "Warming up" : "Reading";
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
    if (!this.firstAt && typeof frame.delta === "string") this.firstAt = performance.now();
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
    if (this.required.get(id)) return null;
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
    this.reason = response.incomplete_details?.reason;
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
    const again = h("button", { type: "button", class: "quiet", on: { click: () => this.actions.retry(this) } }, "Try again");
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
    const first = this.firstAt ? this.firstAt - this.sentAt : 0;
    if (this.kind === "warm") told.push(["took", `Warmed up in ${duration(this.endedAt - this.sentAt)}`, ""]);
    if (first) told.push(["first", duration(first), "to first token"]);
    const seconds = (this.endedAt - this.firstAt) / 1000;
    if (this.usage && this.firstAt && this.usage.output_tokens > 1 && seconds > 0) {
      told.push(["speed", ((this.usage.output_tokens - 1) / seconds).toFixed(seconds < 10 ? 1 : 0), "tokens/s"]);
    }
    if (this.usage) {
      const cached = this.usage.input_tokens_details?.cached_tokens ?? 0;
      const share = this.usage.input_tokens ? Math.round((100 * cached) / this.usage.input_tokens) : 0;
      told.push(["in", this.usage.input_tokens.toLocaleString("en"), `in, ${share} % cached`]);
      if (this.kind !== "warm") told.push(["out", this.usage.output_tokens.toLocaleString("en"), "out"]);
    }
    const ending = this.status === "completed" ? null : h("span", { class: "ending" }, this.reason ? ENDINGS[this.reason] ?? this.reason : this.status);
    const numbers = told.map(([name, value, unit]) => h("span", { data: { measure: name } }, h("b", {}, value), unit && ` ${unit}`));
    this.foot.replaceChildren(h("p", { class: "numbers" }, ending, ...numbers), this.#buttons());
  }

  #buttons() {
    const button = (text, title, click) => h("button", { type: "button", class: "link", title, on: { click } }, text);
    const made = [];
    if (["completed", "incomplete"].includes(this.status)) made.push(button("Fork", "Go on from here in a new lane (f)", () => this.actions.fork(this)));
    if (this.text) {
      const copying = button("Copy", "Copy the answer", () => copy(this.text, copying));
      made.push(copying);
    }
    if (this.id && this.actions.timeline) {
      made.push(h("a", { class: "link", href: this.actions.timeline + this.id, target: "_blank", rel: "noopener" }, "Timeline"));
    }
    return h("p", { class: "actions" }, ...made);
  }

  /** Return a copy for another lane; `answers` are what the turn behind it gave, none for the last one. */
  copy(actions, answers) {
    const made = new Turn(this.input, actions, { kind: this.kind });
    Object.assign(made, {
      id: this.id,
      usage: this.usage,
      reason: this.reason,
      sentAt: this.sentAt,
      firstAt: this.firstAt,
      endedAt: this.endedAt,
    });
    made.element.dataset.response = this.id;
    if (answers) {
      for (const [id, answer] of this.required) made.required.set(id, answer);
      made.wentOn = true;
    }
    this.output.forEach((item, index) => {
      if (!item) return;
      made.output[index] = item;
      const view = made.#view(index, item);
      view.update(item, false);
      const answer = made.required.get(item.call_id ?? item.id);
      if (answer) view.settle?.(answer);
    });
    made.status = this.status;
    made.#over();
    made.#measure();
    return made;
  }
}

const MOST_SHOWN = 20_000; // characters of what was said

const ENDINGS = {
  steered: "Steered",
  interrupted: "Interrupted",
  max_output_tokens: "Cut at the most output tokens",
  content_filter: "Filtered",
};

/** Return what the user said: its beginning, where laying all of it out would take seconds. */
function bubble(item) {
  const text = textOf(item);
  const shown = text.slice(0, MOST_SHOWN);
  const isLong = shown.length > 600 || shown.split("\n").length > 12; // it scrolls, and keys have to reach it
  const more = text.length - shown.length;
  const rest = more ? h("p", {}, `… and ${more.toLocaleString("en")} more characters, which were sent, too`) : null;
  return h("article", { class: isLong ? "asked long" : "asked", "aria-label": "You", tabindex: isLong ? "0" : null }, thumbnails(imagesOf(item)), shown, rest);
}
