// Files beside what one writes: chosen, pasted or dropped, and taken away again. And those that were sent.

import { Attachment, FILE_ICON, storedImage, thumbOf } from "./attachment.js";
import { door, facts } from "./door.js";
import { h, icon, say, soon } from "./dom.js";
import { isReadable, limitsInWords, Places, whyNot } from "./places.js";
import { idsIn, partsOf } from "./request.js";
import { adviceFor } from "./upload.js";
import { enlargeable } from "./viewer.js";

const TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif"]; // SVG is a text: it may hold scripts
const KNOWN = /^data:image\/(png|jpeg|webp|gif);base64,/u;
const INLINE = 1_000_000; // bytes of an image that stands in the message itself; a larger one is uploaded
const ALL_INLINE = 4_000_000; // of all of them together
const SPARE = 256 * 1024; // characters of a frame that are left for its text and its tools
const KEPT = 200_000; // characters of data URLs that a draft keeps
const CLIP = "M13 7.5 8 12.5a3 3 0 0 1-4.3-4.3l5.2-5.2a2 2 0 0 1 2.9 2.9L6.7 11a1 1 0 0 1-1.4-1.4l4.4-4.4";

/** Whether a URL is an image that the page shows: data, of a known type. */
export const isImage = (url) => KNOWN.test(url ?? "");

const besides = new WeakMap(); // by item: attachments that were sent beside it, to a container or a vector store

/** Return what was attached to an item of the input: images, which can be enlarged, and files; null where there is none. */
export function attachmentsOf(item) {
  const parts = partsOf(item);
  const images = parts.filter(({ type }) => type === "input_image");
  const named = (part) => (images.length > 1 ? `Image ${images.indexOf(part) + 1}` : "Image");
  const made = [
    ...images.map((part) => imageOf(part, named(part))),
    ...parts.filter(({ type }) => type === "input_file").map((part) => fileChip(part)),
    ...(besides.get(item) ?? []).map(({ name, file_id, to }) => fileChip({ filename: name, file_id }, to === "code" ? "for the code interpreter" : "in a vector store")),
  ];
  return made.length ? h("div", { class: "thumbnails" }, ...made) : null;
}

function imageOf({ image_url: url, file_id: id }, name) {
  if (isImage(url)) return enlargeable(h("img", { src: url, alt: name }));
  if (!id) return h("span", { class: "file-chip" }, icon(FILE_ICON), `Image: ${(url ?? "without an address").slice(0, 200)}`);
  const image = h("img", { alt: name });
  const button = enlargeable(image, () => storedImage(id));
  const show = () => storedImage(id).then((address) => (image.src = address), (error) => button.replaceWith(h("span", { class: "file-chip" }, `${name}: ${error.message}`)));
  new IntersectionObserver((seen, observer) => {
    if (!seen.some(({ isIntersecting }) => isIntersecting)) return;
    observer.disconnect();
    show();
  }).observe(button);
  return button;
}

/** Return a file that was sent; a click downloads it. */
function fileChip({ filename, file_id: id, file_url: url }, told = "") {
  const name = filename || id || url || "File";
  const inside = [icon(FILE_ICON), h("span", {}, name), told && h("small", {}, told)];
  if (!id) return h("span", { class: "file-chip" }, ...inside);
  const button = h("button", { type: "button", class: "file-chip", title: `Download ${name}` }, ...inside);
  const fail = (error) => button.replaceChildren(...inside, h("small", { role: "alert" }, error.message));
  button.addEventListener("click", () => door.download(`/v1/files/${encodeURIComponent(id)}/content`, name).catch(fail));
  return button;
}

/**
 * The files of a message that is being written. `setup()` returns the setup of its lane, null has all files in the message;
 * `changed()` hears of each change, `refuse(why)` of what is not taken.
 */
export class Attached {
  constructor({ setup, changed, refuse }) {
    Object.assign(this, { changed, refuse, all: [], isReading: false, places: new Places(setup), setup });
    this.list = h("ul", { class: "attached", "aria-label": "Attached files", hidden: true });
    this.button = h("button", { type: "button", class: "quiet only-icon", "aria-label": "Attach files" }, icon(CLIP));
    this.button.title = `Attach files; paste or drop them. ${limitsInWords()}`;
    this.chooser = h("input", { type: "file", multiple: true, hidden: true, tabindex: "-1" });
    this.button.addEventListener("click", () => this.chooser.click());
    this.chooser.addEventListener("change", () => {
      this.add([...this.chooser.files]);
      this.chooser.value = ""; // the same file may be chosen again
    });
    this.form = {
      places: this.places,
      room: (but, how) => this.#room(but, how),
      count: (place) => this.#count(place),
      changed: () => {
        soon(this.offer);
        this.changed();
      },
      remove: (attachment) => this.#remove(attachment),
    };
    this.offer = () => this.all.forEach((each) => each.offer());
    this.done = Promise.resolve();
    this.draft = {}; // that files are added to: another object for each draft that is restored
  }

  /** Whether anything is still being read or uploaded. */
  get isBusy() {
    return this.isReading || this.all.some(({ isBusy }) => isBusy);
  }

  /** Those that are not where they are to go. */
  get failed() {
    return this.all.filter(({ state }) => state === "failed");
  }

  /** The parts of the message that is written. */
  get parts() {
    return this.all.flatMap(({ part }) => part ?? []);
  }

  /** Whether a file goes elsewhere than into the message. */
  get hasBesides() {
    return this.all.some(({ to }) => to !== "message");
  }

  /** Take files, one behind the other. */
  add(files) {
    const { draft } = this;
    if (files.length) this.done = this.done.then(() => this.#addAll(files, draft));
  }

  /** Take files that are pasted; a text that a program also gives as a picture of itself is a text. */
  paste(event) {
    const { files, types } = event.clipboardData;
    if (!files.length || (types.includes("text/plain") && types.includes("text/html"))) return;
    event.preventDefault();
    this.add([...files]);
  }

  /** Show what is attached to an item, and can be sent again. */
  put(item) {
    for (const part of partsOf(item)) {
      const { type, file_id = "", image_url: url = "", filename } = part;
      if (type === "input_image" && (file_id || isImage(url))) this.#show({ name: "Image", kind: "image", file_id, url });
      else if (type === "input_file" && file_id) this.#show({ name: filename ?? file_id, kind: "file", file_id });
      else if (["input_image", "input_file"].includes(type)) this.#show({ name: filename ?? url.slice(0, 80), kind: "file", given: part });
    }
    for (const each of besides.get(item) ?? []) this.#show(each);
    this.#list();
  }

  /** Forget them, as they are sent with this item. */
  sentWith(item) {
    const others = this.all.filter(({ to }) => to !== "message");
    if (others.length) besides.set(item, others.map(({ name, kind, size, file_id, to }) => ({ name, kind, size, file_id, to })));
    for (const each of this.all) each.letGo();
    this.all = [];
    this.#list();
  }

  /** What a draft keeps of them: ids of files, and small images; of others their names alone. */
  get kept() {
    let left = KEPT;
    return this.all.map(({ name, kind, size, file_id, url, thumb, to, state }) => {
      if (file_id && state === "ready") return { name, kind, size, to, file_id, thumb };
      const fits = url && state === "ready" && url.length <= left;
      if (fits) left -= url.length;
      return { name, kind, size, to, ...(fits ? { url } : {}) };
    });
  }

  /** Show what a draft has kept, in place of what is there. */
  restore(kept) {
    const lost = [];
    for (const each of this.all) if (each.isBusy) each.cancel().catch((error) => this.refuse(error.message));
    this.all = [];
    this.draft = {};
    for (const each of kept) {
      const made = each.file_id || isImage(each.url) ? this.#show({ ...each, thumb: isImage(each.thumb) ? each.thumb : "" }) : null;
      if (each.file_id) made.check();
      else if (!made) lost.push(each.name);
    }
    this.#list();
    if (lost.length) this.refuse(`${lost.join(", ")} must be attached again: drafts keep only files that were uploaded, and small images.`);
  }

  #show(given) {
    this.all.push(new Attachment(given, this.form));
    return this.all.at(-1);
  }

  async #addAll(files, draft) {
    if (draft !== this.draft) return;
    this.isReading = true;
    this.changed();
    const wrong = [];
    if (files.some(({ type }) => !TYPES.includes(type))) {
      await this.places.load().catch((error) => error.code === "missing_scope" || wrong.push(adviceFor(error)));
    }
    for (const file of files) {
      const why = await this.#addOne(file, draft);
      if (why) wrong.push(why);
    }
    this.isReading = false;
    this.#list();
    this.changed();
    if (draft === this.draft) this.refuse(wrong.slice(0, 3).join(" ")); // of a whole folder, three tell enough
  }

  async #addOne(file, draft) {
    const { name, type, size } = file;
    const kind = TYPES.includes(type) ? "image" : "file";
    try {
      const given = { name, kind, size, file, readable: kind === "file" && (await isReadable(file)) };
      if (!size) return `${name} is empty, or a folder.`;
      const reasons = this.places.all.map(([place]) => [place, whyNot(given, place, this.#count(place))]);
      const fit = reasons.find(([, why]) => !why);
      if (!fit) return `${name} cannot be attached: ${[...new Set(reasons.map(([, why]) => why))].join("; ")}.`;
      const thumb = kind === "image" ? await thumbOf(file) : "";
      if (draft !== this.draft) return null; // another chat is open by now
      const made = this.#show({ ...given, thumb, to: fit[0] });
      this.#list();
      made.bring();
      return null;
    } catch {
      return kind === "image" ? `${name} cannot be read as an image.` : `${name} cannot be read. Folders are not taken.`;
    }
  }

  /** Return how many bytes an image may have to stand in the message, beside the others; `isLarge`: as many as a frame takes. */
  #room(but, { isLarge = false } = {}) {
    const taken = this.all.reduce((sum, each) => sum + (each === but ? 0 : each.url.length), 0);
    const frame = facts.message_bytes - SPARE;
    return isLarge ? ((frame - taken) * 3) / 4 : Math.min(INLINE, ((Math.min(ALL_INLINE, frame) - taken) * 3) / 4);
  }

  #count(place) {
    const here = this.all.filter(({ to }) => to === place);
    if (place !== "code") return here.length;
    const before = idsIn(this.setup().container_files).filter((id) => !here.some(({ file_id }) => file_id === id));
    return here.length + before.length;
  }

  async #remove(attachment) {
    const place = this.all.indexOf(attachment);
    this.all.splice(place, 1);
    this.#list();
    say(`${attachment.name} is removed.`);
    const next = this.all[Math.min(place, this.all.length - 1)];
    (next?.out ?? this.button).focus();
    try {
      await attachment.cancel();
    } catch (error) {
      this.refuse(`${attachment.name} is removed here, but not on the server: ${error.message}`);
    }
  }

  #list() {
    const shown = this.all.map(({ element }) => element);
    if (shown.length !== this.list.children.length || shown.some((each, place) => each !== this.list.children[place])) this.list.replaceChildren(...shown);
    this.list.hidden = !this.all.length;
    this.offer();
    this.changed();
  }
}

/** Take files that are dropped anywhere on the page; `formOf(element)` is the form that they are for. */
export function takeDrops(formOf) {
  const mark = (form) => {
    for (const each of document.querySelectorAll("[data-drop]")) if (each !== form?.element) each.removeAttribute("data-drop");
    form?.element.setAttribute("data-drop", "");
  };
  const hears = (type, act) =>
    document.addEventListener(type, (event) => {
      if (!event.dataTransfer?.types.includes("Files") || document.querySelector("dialog[open]")) return; // a text goes where it is dropped
      event.preventDefault(); // else the browser would leave the page for the file
      act(event, formOf(event.target));
    });
  hears("dragover", (event, form) => mark(form));
  hears("dragleave", (event) => event.relatedTarget || mark(null));
  hears("drop", (event, form) => {
    mark(null);
    form.attached.add([...event.dataTransfer.files]);
  });
}
