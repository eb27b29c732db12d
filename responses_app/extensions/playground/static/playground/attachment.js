// One file beside what one writes: it is looked at, uploaded, put where it is to go, and taken away again.

import { door } from "./door.js";
import { bytes, h, icon, say } from "./dom.js";
import { whyNot } from "./places.js";
import { adviceFor, Upload } from "./upload.js";
import { enlargeable } from "./viewer.js";

export const FILE_ICON = "M4 2h5l3 3v9H4zM9 2v3h3";
const SMALL = 144; // pixels of a thumbnail's side

/**
 * A file that is attached: {name, kind: "image" or "file", size}, with `file` where it was chosen here, `file_id` where the
 * server has it, `url` for an image as a data URL, `given` for a part of a message that stays as it is. `form` is {places, room(), count(place), changed(), remove(attachment)}.
 */
export class Attachment {
  constructor({ name, kind, size = 0, file = null, file_id = "", url = "", thumb = "", given = null, readable = true, to = "message" }, form) {
    Object.assign(this, { name, kind, size, file, file_id, url, thumb, given, readable, to, form });
    this.placed = file ? null : to; // where it is by now
    this.isGone = false; // the server had it, and has deleted it
    this.isOwn = false; // uploaded here, and not sent: it is deleted when it is taken away
    this.state = "ready"; // or busy, failed
    this.#draw();
  }

  get isBusy() {
    return this.state === "busy";
  }

  /** What to do about it where it has failed. */
  get sentence() {
    return this.isGone ? `${this.name} is gone: remove it, then send.` : `${this.name} could not be attached: press Retry, or remove it. Then send.`;
  }

  /** What stands for it in the message; null where it goes elsewhere. */
  get part() {
    if (this.given || this.to !== "message") return this.given;
    if (this.kind === "image") return { type: "input_image", ...(this.file_id ? { file_id: this.file_id } : { image_url: this.url }) };
    return { type: "input_file", file_id: this.file_id, filename: this.name };
  }

  /** Upload it, where that is needed, and put it where it is to go. */
  async bring() {
    if (this.isBusy) return; // it goes on to where it is to go by then
    this.isWanted = true;
    this.#tell("busy");
    try {
      await this.#bring();
      this.#tell("ready");
      say(`${this.name} is attached.`);
    } catch (error) {
      if (error.cancelled) return;
      this.#tell("failed", adviceFor(error));
      this.element.scrollIntoView({ block: "nearest" });
      say(`${this.name}: ${adviceFor(error)}`);
    }
  }

  async #bring() {
    while (this.placed !== this.to) {
      const to = this.to;
      const fits = to === "message" && this.kind === "image" && !this.file_id && this.file.size <= this.form.room(this);
      if (fits) this.url ||= await dataUrl(this.file);
      else if (!this.file_id) await this.#upload(to);
      if (this.placed) await this.form.places.takeOut(this, this.placed);
      this.placed = null;
      if (this.file_id && !["message", "code"].includes(to)) this.#tell("busy");
      const came = this.file_id ? await this.form.places.put(this, to, () => this.isWanted && this.to === to) : to;
      this.placed = came;
      if (this.to === to) this.to = came;
      this.form.changed();
    }
  }

  async #upload(to) {
    this.upload ??= new Upload(this.file, this.kind === "image" ? "vision" : "user_data", (share) => this.#progress(share));
    this.#progress(0);
    try {
      this.file_id = await this.upload.run();
    } catch (error) {
      const fits = this.kind === "image" && to === "message" && this.file.size <= this.form.room(this, { isLarge: true });
      if (error.code !== "missing_scope" || !fits) throw error;
      this.url = await dataUrl(this.file); // a key that may not store files may send images
    }
    this.isOwn = Boolean(this.file_id);
    this.upload = null;
    if (!this.isWanted) await this.cancel(); // it was taken away in the moment in which it arrived
  }

  /** Take it away. Throws where the server does not let it go. */
  async cancel() {
    this.isWanted = false;
    const { file_id, placed, isOwn, upload } = this;
    this.placed = null;
    this.letGo();
    await upload?.cancel();
    if (!file_id || (this.isGone && placed !== "code")) return;
    await this.form.places.takeOut({ file_id }, placed);
    if (isOwn) await door.ask(`/v1/files/${file_id}`, { method: "DELETE" });
  }

  /** Look whether the server still has it: a draft may be old. */
  async check() {
    try {
      await door.ask(`/v1/files/${this.file_id}`);
    } catch (error) {
      if (error.status !== 404) return; // it says nothing of the file, and comes again when it is sent
      this.isGone = true;
      this.#tell("failed", "The server has it no more: remove it, and attach it again.");
    }
  }

  /** Let go of what the browser keeps of it. */
  letGo() {
    URL.revokeObjectURL(this.address);
    this.address = null;
  }

  #progress(share) {
    this.bar.value = share;
    this.told.textContent = `Uploading, ${Math.floor(share * 100)} %`;
    if (share === 1) this.told.textContent = "Uploaded, is being stored";
  }

  #tell(state, why = "") {
    this.state = state;
    this.element.dataset.state = state;
    this.bar.hidden = state !== "busy";
    if (state === "busy") this.bar.removeAttribute("value");
    this.told.textContent = why || (state === "busy" ? (this.file_id ? "Is being read for search" : "Is being read") : this.size ? bytes(this.size) : "");
    this.again.hidden = state !== "failed" || this.isGone;
    this.out.title = state === "busy" ? `Cancel ${this.name}` : `Remove ${this.name}`;
    this.out.setAttribute("aria-label", this.out.title);
    this.form.changed();
  }

  #draw() {
    const picture = h("img", { alt: this.name, src: this.thumb || this.url || null });
    if (!this.thumb && !this.url && this.kind === "image" && this.file_id) storedImage(this.file_id).then((url) => (picture.src = url), () => picture.remove());
    const isShown = this.kind === "image";
    this.picture = isShown ? enlargeable(picture, () => this.#whole()) : h("span", { class: "file-icon" }, icon(FILE_ICON));
    this.told = h("small", {});
    this.bar = h("progress", { max: "1", hidden: true, "aria-label": `Upload of ${this.name}` });
    this.where = h("select", { "aria-label": `Where ${this.name} goes` });
    this.again = h("button", { type: "button", class: "link", hidden: true, "aria-label": `Retry ${this.name}` }, "Retry");
    this.out = h("button", { type: "button", class: "remove" }, "×");
    this.again.addEventListener("click", () => this.bring());
    this.out.addEventListener("click", () => this.form.remove(this));
    this.where.addEventListener("change", () => {
      this.to = this.where.value;
      this.bring();
    });
    const about = h("div", { class: "about" }, h("span", { class: "name", title: this.name }, this.name), this.told, this.bar, this.where, this.again);
    this.element = h("li", {}, this.picture, about, this.out);
    this.#tell(this.state);
  }

  /** Offer the places that there are now. */
  offer() {
    const options = this.form.places.all.map(([value, label]) => {
      const why = value === this.to ? "" : whyNot(this, value, this.form.count(value));
      return { value, text: why ? `${label} (${why})` : label, disabled: Boolean(why) };
    });
    const offered = JSON.stringify(options);
    if (offered !== this.offered) this.where.replaceChildren(...options.map(({ text, ...props }) => h("option", props, text)));
    this.offered = offered; // a list that is open would close if it were made anew
    this.where.value = this.to;
    this.where.hidden = options.length < 2 || Boolean(this.given);
  }

  async #whole() {
    if (this.url) return this.url;
    return this.file ? (this.address ??= URL.createObjectURL(this.file)) : storedImage(this.file_id);
  }
}

/** Return an image's file small, as a data URL; decoding it does not hold the page up. Throws for what is no image. */
export async function thumbOf(file) {
  const small = await createImageBitmap(file, { resizeWidth: SMALL, resizeQuality: "medium" });
  const canvas = Object.assign(document.createElement("canvas"), { width: SMALL, height: SMALL });
  const side = Math.min(small.width, small.height);
  const [x, y] = [(small.width - side) / 2, (small.height - side) / 2];
  canvas.getContext("2d").drawImage(small, x, y, side, side, 0, 0, SMALL, SMALL);
  small.close();
  return canvas.toDataURL("image/webp");
}

const dataUrl = (file) =>
  new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error("The file cannot be read any more: attach it again."));
    reader.readAsDataURL(file);
  });

const MOST_KEPT = 100; // images of the server's files that are kept in this page
const stored = new Map(); // by id: a promise of the address

/** Return the address of an image that is one of the server's files. Throws as `Door.ask` does. */
export function storedImage(id) {
  if (!stored.has(id)) {
    const asked = door.answer(`/v1/files/${encodeURIComponent(id)}/content`).then(async (answer) => URL.createObjectURL(await answer.blob()));
    stored.set(id, asked);
    asked.catch(() => stored.delete(id));
    if (stored.size > MOST_KEPT) stored.delete(stored.keys().next().value);
  }
  return stored.get(id);
}
