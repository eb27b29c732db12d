// A file on its way to the server: whole, or in parts where it is large. One that was cut goes on behind its last part.

import { door, facts } from "./door.js";

const MAX_NAME = 255; // characters, as the server has it
const GONE = ["upload_closed", "not_found"]; // an upload that was begun an hour ago

/** One file; `progress(share)` hears from 0 to 1 how much of it has gone. */
export class Upload {
  constructor(file, purpose, progress) {
    Object.assign(this, { file, purpose, progress });
    this.begun = null; // the id of an upload in parts
    this.parts = []; // ids of those that have arrived
  }

  /** Upload it, or what is left of it; return the file's id. Throws as `Door.ask` does, with `cancelled` after `cancel`. */
  async run() {
    this.stopping = new AbortController();
    return this.file.size > facts.files.part ? this.#inParts() : this.#whole();
  }

  /** Give it up. */
  async cancel() {
    this.stopping?.abort();
    if (this.begun) await door.ask(`/v1/uploads/${this.begun}/cancel`, { method: "POST", json: {} });
  }

  async #whole() {
    const form = new FormData();
    form.append("purpose", this.purpose);
    form.append("file", this.file, this.file.name);
    return (await this.#send("/v1/files", form, 0)).id;
  }

  async #inParts() {
    const { part } = facts.files; // bytes
    const { name: filename, size: bytes, type } = this.file;
    const json = { bytes, filename: filename.slice(-MAX_NAME), mime_type: type || "application/octet-stream", purpose: this.purpose };
    this.begun ??= (await door.ask("/v1/uploads", { method: "POST", json })).id;
    try {
      for (let start = this.parts.length * part; start < bytes; start += part) {
        const form = new FormData();
        form.append("data", this.file.slice(start, start + part));
        this.parts.push((await this.#send(`/v1/uploads/${this.begun}/parts`, form, start)).id);
      }
      const made = await door.ask(`/v1/uploads/${this.begun}/complete`, { method: "POST", json: { part_ids: this.parts } });
      this.begun = null;
      return made.file.id;
    } catch (error) {
      if (GONE.includes(error.code)) Object.assign(this, { begun: null, parts: [] });
      throw error;
    }
  }

  #send(path, form, before) {
    if (this.stopping.signal.aborted) throw Object.assign(new Error("It was cancelled."), { cancelled: true });
    const progress = (sent) => this.progress(Math.min(1, (before + sent) / this.file.size));
    return door.send(path, form, { progress, signal: this.stopping.signal });
  }
}

/** Say what went wrong with a file, and what to do. */
export function adviceFor({ status, code, message }) {
  if (status === 401) return "You are not signed in any more. Sign in (at the top right), then press Retry.";
  if (code === "missing_scope") return `This key may not do that with files. ${message} Sign in with another key, then press Retry.`;
  if (status === 0) return "The server cannot be reached. Press Retry when it is back.";
  return message;
}
