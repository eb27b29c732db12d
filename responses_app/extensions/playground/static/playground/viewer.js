// Images, large: a dialog over the page, in which arrow keys walk through the images of the same conversation.

import { h, icon } from "./dom.js";

const AROUND = ".transcript, .attached"; // what is walked through together
const LARGER = 4; // times its own size, at most: small figures are enlarged, and dots are not
const BACK = "M10 3 5 8l5 5";
const ON = "M6 3l5 5-5 5";
const sources = new WeakMap(); // of buttons: what returns the address of the whole image, where `src` is a small one

/** Return an image as a button that shows it large; `source()` returns the address of the whole image, or a promise of it. */
export function enlargeable(image, source = () => image.src) {
  const button = h("button", { type: "button", class: "enlarge", title: "Show it large" }, image);
  sources.set(button, source);
  button.addEventListener("click", () => viewer().open(button));
  return button;
}

let made = null;
const viewer = () => (made ??= new Viewer());

class Viewer {
  constructor() {
    const button = (props, ...inside) => h("button", { type: "button", class: "quiet", ...props }, ...inside);
    this.image = h("img", { alt: "" });
    this.told = h("p", { role: "status" });
    this.save = h("a", { class: "quiet", download: "" }, "Download");
    this.steps = [
      button({ class: "quiet only-icon", "aria-label": "Image before", title: "Image before (←)", on: { click: () => this.step(-1) } }, icon(BACK)),
      button({ class: "quiet only-icon", "aria-label": "Next image", title: "Next image (→)", on: { click: () => this.step(1) } }, icon(ON)),
    ];
    const close = button({ on: { click: () => this.dialog.close() } }, "Close");
    const head = h("header", {}, this.told, ...this.steps, this.save, close);
    const stage = h("div", { class: "stage-of-image" }, this.image);
    this.dialog = h("dialog", { class: "viewer", "aria-label": "Image" }, head, stage);
    this.dialog.addEventListener("keydown", (event) => this.#key(event));
    this.dialog.addEventListener("click", ({ target }) => [this.dialog, stage].includes(target) && this.dialog.close());
    this.dialog.addEventListener("close", () => this.image.removeAttribute("src"));
    document.body.append(this.dialog);
  }

  open(button) {
    this.all = [...(button.closest(AROUND)?.querySelectorAll(".enlarge") ?? [button])];
    this.place = this.all.indexOf(button);
    for (const each of this.steps) each.hidden = this.all.length < 2;
    this.dialog.showModal();
    this.#show();
  }

  step(by) {
    this.place = (this.place + by + this.all.length) % this.all.length;
    this.#show();
  }

  #key(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || this.all.length < 2) return;
    event.preventDefault();
    this.step(by);
  }

  async #show() {
    const button = this.all[this.place];
    const name = button.querySelector("img").alt;
    this.told.textContent = this.all.length > 1 ? `${name} (${this.place + 1} of ${this.all.length})` : name;
    try {
      const url = await sources.get(button)();
      if (this.all[this.place] !== button) return; // walked on meanwhile
      this.image.alt = name;
      this.image.src = this.save.href = url;
      this.save.download = fileName(name, url);
      await this.image.decode();
      this.image.style.maxWidth = `${this.image.naturalWidth * LARGER}px`;
    } catch (error) {
      if (this.all[this.place] === button && this.dialog.open) this.told.textContent = `${name} cannot be shown: ${error.message}`;
    }
  }
}

/** Return the name of an image's file: with the ending of its type where the name has none. */
function fileName(name, url) {
  const type = /^data:image\/(\w+)/u.exec(url)?.[1] ?? "png";
  return /\.\w{3,4}$/u.test(name) ? name : `${name.replaceAll(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60)}.${type}`;
}
