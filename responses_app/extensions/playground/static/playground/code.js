// Blocks of code: they grow line by line, have a button that copies them, and are coloured by a worker.

import { copy, h, soon } from "./dom.js";

const LINES = 100; // in an element of their own, so that a long block is laid out where it is seen
const MOST_COLOURED = 300_000; // characters
const PATIENCE = 3000; // milliseconds; a pattern of the highlighter that takes longer never ends
const PAUSE = 5; // times what colouring took, until a block that grows is coloured again
const BUDGET = 5; // milliseconds in a frame

/** A block of code. */
export class CodeBlock {
  #parts = []; // { element, text, colours }
  #rest = ""; // a line that has not ended
  #last = document.createTextNode("");
  #asked = 0; // characters that were sent to be coloured
  #isAsking = false;
  #whole = false;
  #found = null; // the newest colours

  constructor(language = "") {
    this.language = language;
    this.code = h("code", {});
    const button = h("button", { type: "button", class: "link", on: { click: () => copy(this.text, button) } }, "Copy");
    const head = h("figcaption", {}, h("span", {}, language || "text"), button);
    this.element = h("figure", { class: "block" }, head, h("pre", { tabindex: "0" }, this.code));
    blocks.set(this.element, this);
  }

  /** The code, as it is copied. */
  get text() {
    return this.#lines.replace(/\n$/u, this.#rest ? "\n" : "") + this.#rest;
  }

  get #lines() {
    return this.#parts.map(({ text }) => text).join("");
  }

  /** Add whole lines. */
  append(text) {
    for (let at = 0; at < text.length; ) {
      let part = this.#parts.at(-1);
      if (!part || part.count >= LINES) this.#parts.push((part = this.#newPart()));
      let end = at;
      for (; part.count < LINES && end < text.length; part.count += 1) end = (text.indexOf("\n", end) + 1 || text.length);
      part.text += text.slice(at, end);
      part.element.append(text.slice(at, end));
      at = end;
    }
    this.code.append(this.#last);
  }

  #newPart() {
    const element = h("span", { class: "lines" });
    this.code.append(element);
    if (this.#parts.length) this.code.dataset.long = "";
    return { element, text: "", count: 0, colours: "" };
  }

  /** Show the beginning of the next line. */
  set rest(text) {
    if (text !== this.#rest) this.#last.data = this.#rest = text;
  }

  /** Colour it as far as it has come; `whole` once nothing more comes. */
  colour(whole = false) {
    this.#whole ||= whole;
    const text = this.#lines;
    if (!this.language || this.#isAsking || text.length === this.#asked || text.length > MOST_COLOURED) return;
    this.#isAsking = true;
    this.#asked = text.length;
    const began = performance.now();
    colours(this.language, this.#parts.map((part) => part.text)).then((found) => {
      if (!found) return; // no such language, or it took too long: it stays as it is, and nobody is asked again
      this.#found = found;
      this.#show(found, 0);
      const again = () => ((this.#isAsking = false), this.colour());
      if (this.#whole) again();
      else setTimeout(again, Math.max(200, PAUSE * (performance.now() - began)));
    });
  }

  /** Show colours part by part, in as many frames as it takes. */
  #show(found, first) {
    const until = performance.now() + BUDGET;
    for (let place = first; place < found.length; place += 1) {
      if (performance.now() > until) return void soon(() => this.#found === found && this.#show(found, place));
      const part = this.#parts[place];
      if (part.colours === found[place] || this.#parts.length < place) continue;
      part.colours = found[place];
      part.element.replaceChildren(...pieces(part.text, found[place]));
    }
    return undefined;
  }
}

const blocks = new WeakMap();

/** Colour the blocks of code within elements that will not change any more. */
export function colourWithin(elements) {
  for (const element of elements) {
    for (const each of element.matches("figure") ? [element] : element.querySelectorAll("figure.block")) blocks.get(each)?.colour(true);
  }
}

/** Return a text cut into pieces: `colours` has the length and the class of each, as `3 hljs-keyword,1 ,…`. */
function pieces(text, colours) {
  let at = 0;
  const made = colours.split(",").flatMap((each) => {
    const [length, kind] = each.split(" ");
    const piece = text.slice(at, (at += Number(length)));
    return piece && (/^hljs-[\w-]+$/u.test(kind) ? h("span", { class: kind }, piece) : piece);
  });
  return [...made, text.slice(at)].filter(Boolean);
}

let worker = null;
let answered = null; // takes the answer to the question that was asked last
let queue = Promise.resolve();

/** Return the colours of each part of a code; null where it has none, or where that takes too long. */
function colours(language, parts) {
  queue = queue.then(() => ask(language, parts));
  return queue;
}

function ask(language, parts) {
  return new Promise((resolve) => {
    const stop = () => {
      worker?.terminate();
      worker = null;
      resolve(null);
    };
    let timer = 0;
    if (!worker) {
      worker = new Worker(new URL("./highlighting.js", import.meta.url), { type: "module" });
      worker.onmessage = ({ data }) => answered(data);
    }
    worker.onerror = ({ message }) => {
      clearTimeout(timer);
      console.error(`Code is not coloured: ${message ?? "its worker cannot be loaded"}`);
      stop();
    };
    // The worker says first that it is there: what it takes to load counts for nothing.
    answered = (data) => {
      clearTimeout(timer);
      if (data === "begun") timer = setTimeout(stop, PATIENCE);
      else resolve(data);
    };
    worker.postMessage({ language, parts });
  });
}
