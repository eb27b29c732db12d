// Where one writes: it sends, and while a response runs it steers or interrupts.

import { h, say } from "./dom.js";
import { Attached } from "./images.js";
import { imagesOf, said, textOf } from "./request.js";

const TALLEST = 220; // pixels
const LONG = 10_000; // characters, which are more than fit

/** The form at the end of a lane. */
export class Composer {
  constructor(lane) {
    this.lane = lane;
    this.steering = []; // what was sent to steer, and has no answer yet
    this.field = h("textarea", { rows: "1", placeholder: "Say something", "aria-label": `Message for ${lane.title}` });
    this.go = h("button", { class: "primary" }, "Send");
    this.stop = h("button", { type: "button", class: "quiet", hidden: true, title: "Interrupt (Esc)" }, "Interrupt");
    this.wrong = h("p", { class: "wrong", role: "alert" });
    const refuse = (why) => (this.wrong.textContent = why);
    this.images = new Attached(lane.page.facts.message_bytes, { changed: () => this.refresh(), refuse });
    const line = h("div", { class: "line" }, this.images.button, this.images.chooser, this.field, this.stop, this.go);
    this.element = h("form", { class: "composer" }, this.wrong, h("div", { class: "write" }, this.images.list, line));
    this.element.addEventListener("submit", (event) => this.#submit(event));
    this.field.addEventListener("input", () => this.#fit());
    this.field.addEventListener("paste", (event) => this.images.paste(event));
    this.stop.addEventListener("click", () => lane.interrupt());
  }

  focus() {
    this.field.focus();
  }

  /** What is written, as an item of the input; null for nothing. */
  get draft() {
    const text = this.field.value.trim();
    return text || this.images.urls.length ? said(text, this.images.urls) : null;
  }

  /** Return what is written, and empty the form; null for nothing, and while an image is being read. */
  take() {
    const item = this.images.isReading ? null : this.draft;
    if (!item) return null;
    this.wrong.textContent = "";
    this.field.value = "";
    this.images.clear();
    this.#fit();
    return item;
  }

  /** Send what is written. */
  submit() {
    const item = this.take();
    if (item) this.lane.say(item);
  }

  /** Put back what could not be sent. */
  giveBack(item, why) {
    this.field.value = [textOf(item), this.field.value].filter(Boolean).join("\n");
    this.images.put(imagesOf(item));
    this.wrong.textContent = why;
    say(why);
    this.#fit();
  }

  /** Say what the button does now. */
  refresh() {
    const runs = Boolean(this.lane.running);
    this.stop.hidden = !runs;
    this.go.textContent = runs ? "Steer" : "Send";
    this.go.title = runs ? "Say it while the model works (Enter)" : "Send (Enter)";
    this.go.disabled = this.images.isReading || (!runs && this.lane.sent.length > 0);
    this.field.placeholder = runs ? "Say more" : "Say something";
  }

  #submit(event) {
    event.preventDefault();
    if (!this.go.disabled) this.submit();
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
