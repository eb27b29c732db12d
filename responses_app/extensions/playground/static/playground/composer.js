// Where one writes: a message with what is attached to it; and the form of a lane, which also steers and interrupts.

import { Attached } from "./attachments.js";
import { h, say } from "./dom.js";
import { limitsInWords } from "./places.js";
import { said, textOf } from "./request.js";

const TALLEST = 220; // pixels
const LONG = 10_000; // characters, which are more than fit
const forms = new WeakMap(); // by element

/** Return the form that an element is in; undefined where it is in none. */
export const formAround = (element) => forms.get(element.closest?.(".composer"));

/** A message that is written, or written anew. */
export class MessageForm {
  /**
   * `label` names the field; `setup()` returns the setup of the lane, `send(item)` takes the message, `changed()` hears of
   * each change of the draft; `buttons` stand before the one that sends.
   */
  constructor({ label, setup, send, changed = () => {}, buttons = [] }) {
    Object.assign(this, { send, changed });
    this.waits = false; // it is sent as soon as its files are uploaded
    this.field = h("textarea", { rows: "1", placeholder: "Say something", "aria-label": label });
    this.go = h("button", { class: "primary" }, "Send");
    this.wrong = h("p", { class: "wrong", role: "alert" });
    const refuse = (why) => (this.wrong.textContent = why);
    this.attached = new Attached({ setup, changed: () => this.#attached(), refuse });
    const line = h("div", { class: "line" }, this.attached.button, this.attached.chooser, this.field, ...buttons, this.go);
    const drop = h("p", { class: "drop-hint" }, `Drop files here. ${limitsInWords()}`);
    this.element = h("form", { class: "composer" }, this.wrong, h("div", { class: "write" }, this.attached.list, drop, line));
    forms.set(this.element, this);
    this.element.addEventListener("submit", (event) => {
      event.preventDefault();
      if (!this.go.disabled) this.submit();
    });
    this.field.addEventListener("input", () => {
      this.waits = false; // somebody goes on writing
      this.#fit();
      this.refresh();
      this.changed();
    });
    this.field.addEventListener("paste", (event) => this.attached.paste(event));
  }

  focus() {
    this.field.focus();
  }

  /** What the button does where nothing is uploaded: its text and title, and whether it can be pressed. */
  get does() {
    return { text: "Send", title: "Send (Enter)", blocked: false };
  }

  /** What is written, as an item of the input; null for nothing. */
  get draft() {
    const text = this.field.value.trim();
    const { parts } = this.attached;
    return text || parts.length ? said(text, parts) : null;
  }

  /** What is written, as JSON that `restore` takes: {text, attachments}. Images beyond a bound are named only. */
  get kept() {
    return { text: this.field.value, attachments: this.attached.kept };
  }

  restore({ text = "", attachments = [] }) {
    this.field.value = text;
    this.attached.restore(attachments);
    this.#fit();
    this.refresh();
  }

  /** Put an item's text and files in front of what is written. */
  put(item) {
    this.field.value = [textOf(item), this.field.value].filter(Boolean).join("\n");
    this.attached.put(item);
    this.#fit();
    this.changed();
  }

  /** Return what is written, and empty the form; null for nothing, and while something is in the way. */
  take() {
    const { failed, isBusy } = this.attached;
    if (failed.length) this.wrong.textContent = failed[0].sentence;
    else if (isBusy) this.wrong.textContent = "Files are still being uploaded: send again when they are.";
    const item = failed.length || isBusy ? null : this.draft;
    if (!item) return null;
    this.wrong.textContent = "";
    this.field.value = "";
    this.attached.sentWith(item);
    this.#fit();
    this.changed();
    return item;
  }

  /** Send what is written, as soon as its files are uploaded. */
  submit() {
    if (this.attached.isBusy) {
      this.waits = true;
      this.refresh();
      return;
    }
    const item = this.take();
    if (item) this.send(item);
  }

  /** Say what the button does now. */
  refresh() {
    const { text, title, blocked } = this.does;
    const { isBusy } = this.attached;
    this.go.textContent = !isBusy ? text : this.waits ? "Waits for uploads" : `${text} when uploaded`;
    this.go.title = this.waits ? "Write on, to stop it from being sent" : title;
    this.go.disabled = blocked || this.waits;
    this.element.toggleAttribute("data-uploading", isBusy);
  }

  #attached() {
    const goes = this.waits && !this.attached.isBusy;
    if (goes) this.waits = false;
    this.refresh();
    this.changed();
    if (goes && !this.go.disabled) this.submit();
  }

  #fit() {
    if (this.field.value.length > LONG) {
      this.field.style.height = `${TALLEST}px`; // measuring it would lay all of it out once more
      return;
    }
    this.field.style.height = "auto";
    this.field.style.height = `${Math.min(this.field.scrollHeight + 2, TALLEST)}px`;
  }
}

/** The form at the end of a lane: it sends, and while a response runs it steers or interrupts. */
export class Composer extends MessageForm {
  constructor(lane) {
    const stop = h("button", { type: "button", class: "quiet", hidden: true, title: "Interrupt (Esc)" }, "Interrupt");
    super({
      label: `Message for ${lane.title}`,
      setup: () => lane.setup,
      send: (item) => lane.say(item),
      changed: () => lane.page.changed?.(lane, "draft"),
      buttons: [stop],
    });
    this.lane = lane;
    this.stop = stop;
    this.steering = []; // what was sent to steer, and has no answer yet
    stop.addEventListener("click", () => lane.interrupt());
  }

  get does() {
    if (this.lane.running) return { text: "Steer", title: "Say it while the model works (Enter)", blocked: false };
    return { ...super.does, blocked: this.lane.sent.length > 0 };
  }

  /** Return what is written; not while a response runs that does not see a file of it. */
  take() {
    if (this.lane.running && this.attached.hasBesides) {
      this.wrong.textContent = "The response that runs cannot use these files: send them when it has ended, or put them into the message.";
      return null;
    }
    return super.take();
  }

  /** Put back what could not be sent. */
  giveBack(item, why) {
    this.put(item);
    this.wrong.textContent = why;
    say(why);
  }

  refresh() {
    if (!this.lane) return; // it is still being made
    const runs = Boolean(this.lane.running);
    this.stop.hidden = !runs;
    this.field.placeholder = runs ? "Say more" : "Say something";
    super.refresh();
  }
}
