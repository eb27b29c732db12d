// Images beside what one writes: chosen, pasted or dropped, looked at, and taken away again. And those that were sent.

import { bytes, h, icon, say } from "./dom.js";

const TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif"]; // SVG is left out: it may hold scripts
const KNOWN = /^data:image\/(png|jpeg|webp|gif);base64,/u;
const MOST = 10; // images of a message
const SPARE = 256 * 1024; // characters of a frame that are left for its text and its tools
const CLIP = "M13 7.5 8 12.5a3 3 0 0 1-4.3-4.3l5.2-5.2a2 2 0 0 1 2.9 2.9L6.7 11a1 1 0 0 1-1.4-1.4l4.4-4.4";

/** Whether a URL is an image that the page shows: data, of a known type. */
export const isImage = (url) => KNOWN.test(url ?? "");

/** Return images that were sent: small, and large after a click; null where there are none. */
export function thumbnails(urls) {
  const shown = urls.filter(isImage);
  const named = (place) => (shown.length > 1 ? `Image ${place + 1} of ${shown.length}` : "Image");
  const made = shown.map((url, place) => h("details", { class: "thumbnail" }, h("summary", {}, h("img", { src: url, alt: named(place) }))));
  return made.length ? h("div", { class: "thumbnails" }, ...made) : null;
}

/** The images of a message that is being written. `changed()` hears of each change, `refuse(why)` of what is not taken. */
export class Attached {
  constructor(mostInFrame, { changed, refuse }) {
    Object.assign(this, { changed, refuse, images: [], isReading: false });
    this.most = mostInFrame - SPARE; // characters of their data URLs
    this.list = h("ul", { class: "attached", "aria-label": "Attached images", hidden: true });
    this.button = h("button", { type: "button", class: "quiet only-icon", "aria-label": "Attach images", title: "Attach images; paste or drop them" }, icon(CLIP));
    this.chooser = h("input", { type: "file", accept: TYPES.join(","), multiple: true, hidden: true, tabindex: "-1" });
    this.button.addEventListener("click", () => this.chooser.click());
    this.chooser.addEventListener("change", () => {
      this.add([...this.chooser.files]);
      this.chooser.value = ""; // the same file may be chosen again
    });
    this.done = Promise.resolve();
  }

  get urls() {
    return this.images.map(({ url }) => url);
  }

  /** Take files, one behind the other. */
  add(files) {
    if (files.length) this.done = this.done.then(() => this.#addAll(files));
  }

  /** Take files that are pasted; a text that a program also gives as a picture of itself is a text. */
  paste(event) {
    const { files, types } = event.clipboardData;
    if (!files.length || (types.includes("text/plain") && types.includes("text/html"))) return;
    event.preventDefault();
    this.add([...files]);
  }

  /** Show images again that could not be sent. */
  put(urls) {
    this.images.push(...urls.map((url, place) => this.#shown(`image ${place + 1}`, url)));
    this.#list();
  }

  clear() {
    this.images = [];
    this.#list();
  }

  async #addAll(files) {
    this.isReading = true;
    this.changed();
    const before = this.images.length;
    const wrong = [];
    for (const file of files) {
      const why = this.#refusal(file) ?? (await this.#read(file));
      if (why) wrong.push(why);
    }
    this.isReading = false;
    this.#list();
    this.changed();
    this.refuse(wrong.slice(0, 3).join(" ")); // of a whole folder, three tell enough
    const count = this.images.length - before;
    if (count) say(`${count === 1 ? "An image is" : `${count} images are`} attached.`);
  }

  #refusal({ name, type, size }) {
    if (!TYPES.includes(type)) return `${name} is not a PNG, JPEG, WebP or GIF.`;
    if (this.images.length >= MOST) return `${name} is one too many: a message may have ${MOST} images.`;
    const taken = this.urls.reduce((sum, url) => sum + url.length, 0);
    const most = bytes((this.most * 3) / 4);
    return taken + (size * 4) / 3 > this.most ? `${name} is too large: the images of a message may have ${most} together.` : null;
  }

  async #read(file) {
    try {
      const image = this.#shown(file.name, await dataUrl(file));
      await image.picture.decode();
      this.images.push(image);
      return null;
    } catch {
      return `${file.name} cannot be read as an image.`;
    }
  }

  #shown(name, url) {
    const picture = h("img", { src: url, alt: name, title: name });
    const image = { name, url, picture };
    const remove = h("button", { type: "button", class: "remove", "aria-label": `Remove ${name}`, title: `Remove ${name}` }, "×");
    remove.addEventListener("click", () => this.#remove(image));
    image.element = h("li", {}, picture, remove);
    return image;
  }

  #remove(image) {
    const place = this.images.indexOf(image);
    this.images.splice(place, 1);
    this.#list();
    this.changed();
    say(`${image.name} is removed.`);
    const next = this.images[Math.min(place, this.images.length - 1)];
    (next?.element.querySelector("button") ?? this.button).focus();
  }

  #list() {
    this.list.replaceChildren(...this.images.map(({ element }) => element));
    this.list.hidden = !this.images.length;
  }
}

const dataUrl = (file) =>
  new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });

/** Take files that are dropped anywhere on the page; `laneOf(element)` is the lane that they are for. */
export function takeDrops(laneOf) {
  const mark = (lane) => {
    for (const each of document.querySelectorAll("[data-drop]")) if (each !== lane?.element) each.removeAttribute("data-drop");
    lane?.element.setAttribute("data-drop", "");
  };
  const hears = (type, act) =>
    document.addEventListener(type, (event) => {
      if (!event.dataTransfer?.types.includes("Files")) return; // a text goes where it is dropped
      event.preventDefault(); // else the browser would leave the page for the file
      act(event, laneOf(event.target));
    });
  hears("dragover", (event, lane) => mark(lane));
  hears("dragleave", (event) => event.relatedTarget || mark(null));
  hears("drop", (event, lane) => {
    mark(null);
    lane.composer.images.add([...event.dataTransfer.files]);
  });
}
