// Two kinds of questions to the server: whether a part of a request is wrong, and lists, of which the newest answer counts.

/**
 * Return what is wrong with `part` of a request as the server says it, "" for nothing: its count of tokens refuses what a
 * create refuses, and nothing runs. Throws where it cannot say.
 */
export async function wrongOf(door, part, signal) {
  try {
    await door.ask("/v1/responses/input_tokens", { method: "POST", json: { input: "x", ...part }, signal });
    return "";
  } catch (error) {
    if (error.status !== 400) throw error;
    return error.message;
  }
}

/** Asks `door` again and again: what was asked before is aborted, so an old answer never comes behind a newer one. */
export class Newest {
  #asking = null;

  constructor(door) {
    this.door = door;
  }

  /** Whether an answer is on its way. */
  get isAsking() {
    return this.#asking !== null;
  }

  /** Return the JSON of a path of the API. Throws as `Door.ask` does, and an `AbortError` once something else is asked. */
  async ask(path) {
    this.stop();
    const asking = (this.#asking = new AbortController());
    try {
      return await this.door.ask(path, { signal: asking.signal });
    } finally {
      if (this.#asking === asking) this.#asking = null;
    }
  }

  /** Abort the question whose answer is on its way. */
  stop() {
    this.#asking?.abort();
  }
}
