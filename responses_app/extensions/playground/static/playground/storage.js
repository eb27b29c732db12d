// The browser's two storages: of the site, and of this tab. Where they are switched off, the page's memory stands in.

class Stored {
  #real = null;
  #memory = new Map();

  constructor(find) {
    try {
      this.#real = find();
    } catch {
      // Switched off: it holds as long as the page.
    }
  }

  get lasts() {
    return this.#real !== null;
  }

  get(key) {
    return (this.#real ? this.#real.getItem(key) : this.#memory.get(key)) ?? null;
  }

  /** Keep a text; return whether there was room. */
  put(key, text) {
    if (!this.#real) return Boolean(this.#memory.set(key, text));
    try {
      this.#real.setItem(key, text);
      return true;
    } catch {
      return false;
    }
  }

  drop(key) {
    if (this.#real) this.#real.removeItem(key);
    else this.#memory.delete(key);
  }

  keys() {
    return this.#real ? Object.keys(this.#real) : [...this.#memory.keys()];
  }
}

export const ofSite = new Stored(() => localStorage);
export const ofTab = new Stored(() => sessionStorage);
