// Where one writes: it sends, and while a response runs it steers or interrupts.

import { h, say } from "./dom.js";

const TALLEST = 220; // pixels
const LONG = 10_000; // characters, which are more than fit

/** The form at the end of a lane. */
export class Composer {
  constructor(lane) {
    this.lane = lane;
    this.steering = []; // texts that were sent to steer, and have no answer yet
    this.field = h("textarea", { rows: "1", placeholder: "Say something", "aria-label": `Message for ${lane.title}` });
    this.go = h("button", { class: "primary" }, "Send");
    this.stop = h("button", { type: "button", class: "quiet", hidden: true, title: "Interrupt (Esc)" }, "Interrupt");
    this.wrong = h("p", { class: "wrong", role: "alert" });
    const row = h("div", { class: "write" }, this.field, this.stop, this.go);
    this.element = h("form", { class: "composer" }, this.wrong, row);
    this.element.addEventListener("submit", (event) => this.#submit(event));
    this.field.addEventListener("input", () => this.#fit());
    this.stop.addEventListener("click", () => lane.interrupt());
  }

  focus() {
    this.field.focus();
  }

  /** Send what is written; return whether there was something. */
  submit() {
    const text = this.field.value.trim();
    if (!text) return false;
    this.wrong.textContent = "";
    if (this.lane.running) this.steering.push(text);
    this.field.value = "";
    this.#fit();
    this.lane.say(text);
    return true;
  }

  /** Put back what could not be used to steer. */
  giveBack(text, why) {
    this.field.value = [text, this.field.value].filter(Boolean).join("\n");
    this.wrong.textContent = why;
    say(why);
    this.#fit();
  }

  write(text) {
    this.field.value = text;
    this.#fit();
    this.focus();
  }

  /** Say what the button does now. */
  refresh() {
    const runs = Boolean(this.lane.running);
    this.stop.hidden = !runs;
    this.go.textContent = runs ? "Steer" : "Send";
    this.go.title = runs ? "Say it while the model works (Enter)" : "Send (Enter)";
    this.go.disabled = !runs && this.lane.sent.length > 0;
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
