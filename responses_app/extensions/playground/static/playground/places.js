// Where an attached file may go: into the message, to the code interpreter, into a vector store. And what keeps it out.

import { door, facts } from "./door.js";
import { bytes } from "./dom.js";
import { idsIn } from "./request.js";

const LISTED = 100; // vector stores that one can choose from, the newest
const HEAD = 1024; // bytes that are looked at
const ZIP = [0x50, 0x4b, 0x03, 0x04];
const FIRST_WAIT = 200; // ms between two looks at a file that is being read for search
const LONGEST_WAIT = 2000;

/** Return whether the server can read text in a file, as far as its first bytes tell. Throws for a folder. */
export async function isReadable(file) {
  const head = new Uint8Array(await file.slice(0, HEAD).arrayBuffer());
  if (ZIP.every((each, place) => head[place] === each)) return /\.docx$/iu.test(file.name);
  if (String.fromCharCode(...head).includes("%PDF-")) return true;
  const isUtf16 = (head[0] === 0xff && head[1] === 0xfe) || (head[0] === 0xfe && head[1] === 0xff);
  return isUtf16 || !head.includes(0); // no text has a zero byte
}

/** Return what the server takes, in words. */
export function limitsInWords() {
  const { files } = facts;
  const places = [
    `in a message, text, PDF and DOCX up to ${bytes(files.message.bytes)}, ${files.message.count} in a request`,
    files.code && `for the code interpreter, any file up to ${bytes(files.code.bytes)}, ${files.code.count} in a container`,
    files.store && `in a vector store, text, PDF, DOCX and HTML, ${files.store.count.toLocaleString("en")} in a store`,
  ];
  const images = `Images (PNG, JPEG, WebP, GIF) up to ${bytes(files.images.bytes)}, ${files.images.count} in a request.`;
  return `${images} Files up to ${bytes(files.bytes)}: ${places.filter(Boolean).join("; ")}.`;
}

/**
 * Return why a file cannot go to a place, "" where it can. `count` is how many are there already.
 * A file is {kind, size, readable}.
 */
export function whyNot({ kind, size, readable }, place, count) {
  const { files } = facts;
  if (size > files.bytes) return `a file may have ${bytes(files.bytes)} (FILE_MAX_BYTES)`;
  if (place === "message") {
    const isImage = kind === "image";
    const [most, largest] = isImage ? [files.images, "an image"] : [files.message, "a file in a message"];
    if (!isImage && !readable) return "it is not text, PDF or DOCX";
    const [largestBy, mostBy] = isImage ? [" (INPUT_IMAGE_MAX_BYTES)", " (INPUT_IMAGES_MAX)"] : ["", ""];
    if (size > most.bytes) return `${largest} may have ${bytes(most.bytes)}${largestBy}`;
    return count >= most.count ? `a request may have ${most.count} ${kind}s${mostBy}` : "";
  }
  if (place === "code") {
    if (size > files.code.bytes) return `a container may have ${bytes(files.code.bytes)} (SANDBOX_DISK_BYTES)`;
    return count >= files.code.count ? `a container may have ${files.code.count} files` : "";
  }
  return readable && kind === "file" ? "" : "it is not text, PDF, DOCX or HTML";
}

const LABELS = { message: "Into the message", code: "For the code interpreter", store: "Into a new vector store" };

/** The places of one form; `setup()` returns the setup whose tools see what is put there, null has all in the message. */
export class Places {
  constructor(setup) {
    this.setup = setup;
    this.stores = []; // {id, name} of those that one can choose from
    this.copies = new Map(); // by file: the path of its copy in a container that the setup names
    this.made = null; // the store that was made for this form's files
  }

  /** Learn which vector stores there are. Throws as `Door.ask` does. */
  load() {
    this.loading ??= this.#load().catch((error) => {
      this.loading = null;
      throw error;
    });
    return this.loading;
  }

  async #load() {
    if (!facts.files.store || !this.setup) return;
    const { data } = await door.ask(`/v1/vector_stores?limit=${LISTED}`);
    this.stores = data.filter(({ status }) => status !== "expired").map(({ id, name }) => ({ id, name: name || id }));
  }

  /** The places that this server has: [value, label]. */
  get all() {
    const { files } = facts;
    if (!this.setup) return [["message", LABELS.message]];
    const kinds = ["message", files.code && "code", files.store && "store"].filter(Boolean);
    return [...kinds.map((kind) => [kind, LABELS[kind]]), ...this.stores.map(({ id, name }) => [id, `Into ${name}`])];
  }

  /** Put a file there that is uploaded; return the place where it is then. Throws as `Door.ask` does. */
  async put({ file_id }, place, isWanted) {
    if (place === "message") return place;
    if (place === "code") {
      await this.#give(file_id);
      return place;
    }
    const store = place === "store" ? await this.#new() : place;
    const most = facts.files.store.stores;
    if (new Set([...this.#searched, store]).size > most) throw new Error(`A search looks into ${most} vector stores: take one out in the setup.`);
    await door.ask(`/v1/vector_stores/${store}/files`, { method: "POST", json: { file_id } });
    await this.#read(store, file_id, isWanted);
    this.#switchOn("file_search", { vector_stores: [...new Set([...this.#searched, store])].join(", ") });
    if (this.made?.id === store) this.made.wasSearched = true;
    return store;
  }

  /** Take a file out of a place again. Throws as `Door.ask` does. */
  async takeOut({ file_id }, place) {
    const copy = this.copies.get(file_id);
    if (place === "code" && copy) {
      await door.ask(copy, { method: "DELETE" });
      this.copies.delete(file_id);
    } else if (place === "code") {
      this.#tell({ container_files: idsIn(this.setup().container_files).filter((id) => id !== file_id).join(", ") });
    } else if (place && place !== "message") {
      await door.ask(`/v1/vector_stores/${place}/files/${file_id}`, { method: "DELETE" });
    }
  }

  /** Have a file in the container that the setup names, or in the new one that code runs in first. */
  async #give(file_id) {
    const { container, container_files: files } = this.setup();
    if (container) {
      const path = `/v1/containers/${encodeURIComponent(container)}/files`;
      this.copies.set(file_id, `${path}/${(await door.ask(path, { method: "POST", json: { file_id } })).id}`);
    }
    this.#switchOn("code_interpreter", container ? {} : { container_files: [...new Set([...idsIn(files), file_id])].join(", ") });
  }

  get #searched() {
    return idsIn(this.setup().vector_stores);
  }

  /** Make a store, or return the one that was made for these files, unless it was taken out of the setup. */
  async #new() {
    const isLeft = this.made?.wasSearched && !this.#searched.includes(this.made.id);
    if (!this.made || isLeft) {
      const name = `Playground ${new Date().toLocaleString("sv").slice(0, 16)}`;
      const made = (this.made = { asked: door.ask("/v1/vector_stores", { method: "POST", json: { name } }) });
      try {
        made.id = (await made.asked).id;
      } catch (error) {
        this.made = null;
        throw error;
      }
      this.stores.unshift({ id: made.id, name });
    }
    return (await this.made.asked).id;
  }

  /** Wait until a file of a store is read; `isWanted()` says whether somebody still waits. Throws where it cannot be. */
  async #read(store, file_id, isWanted) {
    for (let wait = FIRST_WAIT; isWanted(); wait = Math.min(wait * 1.5, LONGEST_WAIT)) {
      const { status, last_error } = await door.ask(`/v1/vector_stores/${store}/files/${file_id}`);
      if (status === "completed") return;
      if (status !== "in_progress") throw new Error(`It cannot be searched: ${last_error?.message ?? status}`);
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
  }

  #switchOn(tool, changes) {
    this.#tell({ ...changes, switched: [...new Set([...this.setup().switched, tool])] });
  }

  #tell(changes) {
    Object.assign(this.setup(), changes);
    document.dispatchEvent(new CustomEvent("setup"));
  }
}
