// Shows Markdown as it grows. Blocks that have ended stay as they are; only the last one is made again, once in a frame.
// Of a long list, quote or table only the last item, block or row is; a block of code only gets its new lines.

import { CodeBlock, colourWithin } from "./code.js";
import { soon } from "./dom.js";
import { plain, withoutMarks } from "./marks.js";
import { childrenOf, containerOf, isLoaded, languageOf, load, nodesOf, read } from "./reading.js";

const BUDGET = 6; // milliseconds in a frame; what is left is shown in the next ones
const PIECE = 8_000; // characters that are read at once, more where a block is longer
const LONGEST_PARAGRAPH = 4_000; // characters; a longer one is cut at a word: laying it out takes time in each frame
const SLOW = 4; // milliseconds for the last block, above which it waits
const PAUSE = 10; // times what that took

// What can be added to a paragraph as it is, and what may mean something else with the next characters.
const WORDS = /^[^\n*_`~[\]()<>|\\$&!｜]*$/u;
const UNDECIDED = /(?:[^\p{L}\p{N}.,;:?]|(?:https?|mailto):\S*)$/u;
const BEGUN = 16; // characters of a line, behind which it is no item of a list
const CONTAINERS = { bullet_list_open: "UL", ordered_list_open: "OL", blockquote_open: "BLOCKQUOTE", table_open: "DIV" };

/** A text that grows in an element. */
export class Growing {
  #next = null; // what is to be shown, as it was given
  #text = "";
  #done = false;
  #blocks = []; // of what stands: { at, nodes }
  #open = { at: 0, from: 0, head: "", into: null, nodes: [] }; // the block that may grow
  #loose = []; // elements of it that are made again
  #code = null; // the block of code that is open
  #references = {}; // definitions of links in what stands
  #found = {}; // and in all that was read
  #least = Infinity; // of these, when the first block was let stand
  #isSecond = false; // it is read once more, as links were defined behind their use
  #read = 0; // characters that are shown
  #size = PIECE;
  #isPlain = false; // words can be added to the last paragraph
  #waitsUntil = 0;
  /** Paint in a later frame than was asked for, and tell of it: a lane that follows the text has scrolled by then. */
  #late = () => {
    this.#paint();
    this.element.dispatchEvent(new Event("grown", { bubbles: true }));
  };

  constructor(element) {
    this.element = element;
    this.paint = () => this.#paint();
  }

  /** Take all of the text. It is only looked at when it is shown: events come faster than pictures. */
  set(text, how) {
    this.#next = { text, ...how };
    this.element.setAttribute("aria-busy", "true");
    soon(this.paint);
  }

  #take() {
    if (!this.#next) return;
    const { done, marked } = this.#next;
    const text = (marked ? this.#next.text : plain(this.#next.text)).replace(/\r\n?/gu, "\n");
    this.#next = null;
    if (text === this.#text && done === this.#done) return;
    if (this.#done || !text.startsWith(this.#text)) this.#goBack(common(this.#text, text));
    this.#isSecond = false;
    this.#text = text;
    this.#done = done;
  }

  #paint() {
    this.#take();
    if (!isLoaded()) {
      this.element.textContent = this.#text; // until the libraries are there
      this.element.dataset.plain = "";
      load().then(this.#late, (error) => {
        this.element.removeAttribute("aria-busy");
        console.error(`Answers are shown as plain text: ${error.message}`);
      });
      return;
    }
    if ("plain" in this.element.dataset) {
      delete this.element.dataset.plain;
      this.element.replaceChildren();
    }
    const began = performance.now();
    if (began < this.#waitsUntil && !this.#done) return void soon(this.#late);
    while (this.#step()) if (performance.now() - began > BUDGET) return void soon(this.#late);
    this.element.style.minHeight = "";
    this.element.removeAttribute("aria-busy");
    return undefined;
  }

  /** Do a little; return whether there is more to do. */
  #step() {
    if (this.#code) return this.#growCode();
    if (this.#read === this.#text.length && !this.#done) return false;
    if (this.#addWords()) return false;
    const began = performance.now();
    const { from, head } = this.#open;
    const limit = Math.min(this.#text.length, from + this.#size);
    this.#read = limit;
    this.#make(head + this.#text.slice(from, limit), limit);
    if (this.#code || this.#read < this.#text.length) {
      this.#size = this.#open.from > from ? PIECE : this.#size * 2;
      return true;
    }
    if (this.#done) return this.#end();
    const took = performance.now() - began;
    this.#waitsUntil = took > SLOW ? performance.now() + took * PAUSE : 0;
    return false;
  }

  /** Add words to the last paragraph, where they can mean nothing else. */
  #addWords() {
    const fresh = this.#text.slice(this.#read);
    const paragraph = this.#loose.at(-1);
    if (this.#done || !this.#isPlain || !WORDS.test(fresh) || this.#text.length - this.#open.from > LONGEST_PARAGRAPH) return false;
    paragraph.append(fresh);
    this.#read = this.#text.length;
    this.#isPlain = !UNDECIDED.test(fresh.slice(-200));
    return true;
  }

  /** Read the open block and what is behind it; let stand what has ended. */
  #make(piece, limit) {
    const isAll = this.#done && limit === this.#text.length;
    const starts = lineStarts(piece);
    const complete = isAll ? Infinity : starts.length - 1; // lines: the last one may yet become anything
    const references = { ...this.#references };
    const groups = read(piece, references);
    this.#found = references;
    for (const each of this.#loose) each.remove();
    if (!this.#open.into) this.#open.nodes = [];
    this.#loose = [];
    this.#isPlain = false;
    if (!groups.length) return;
    const last = groups.findLastIndex(({ line }) => line < complete);
    const offset = (line) => this.#open.from + (starts[line] ?? piece.length) - this.#open.head.length;
    const ends = Math.max(0, last);
    const offsets = groups.map(({ line }) => offset(line)); // before the first of them changes what they count from
    for (let place = 0; place < ends; place += 1) this.#settle(groups[place], offsets[place + 1]);
    if (ends) this.#learn(piece.slice(0, starts[groups[ends].line]));
    const base = offsets[ends] - starts[groups[ends].line];
    this.#openBlock(groups.slice(ends), { piece, starts, complete, limit, offset: (line) => base + (starts[line] ?? piece.length) });
  }

  /** Show the block that may grow, and what begins behind it in a line that has not ended. */
  #openBlock(groups, { piece, starts, complete, offset, limit }) {
    const [group, ...behind] = groups;
    const isLast = behind.length === 0;
    if (group.type === "fence" && isLast && group.line < complete && group.tokens[0].level === 0) {
      this.#openCode(group.tokens[0], offset(group.line), offset(group.line + 1));
      return;
    }
    const length = limit - offset(group.line);
    if (group.type === "paragraph_open" && isLast && length > LONGEST_PARAGRAPH && this.#cut(offset(group.line), limit)) return;
    const nodes = this.#place(group);
    const children = CONTAINERS[group.type] ? childrenOf(group) : [];
    const lastChild = children.findLastIndex(({ line }) => line < complete);
    if (lastChild > 0 && children.length === nodes.length) {
      this.#open.into ??= containerOf(this.#open.nodes[0]);
      if (group.type === "table_open") this.#open.head ||= piece.slice(starts[group.line], starts[group.line + 2]);
      this.#open.from = offset(children[lastChild].line);
      colourWithin(nodes.splice(0, lastChild));
    } else if (!this.#open.into) {
      nodes.splice(0, nodes.length, ...this.#open.nodes);
    }
    this.#loose = nodes;
    for (const each of behind) {
      const made = nodesOf([each]);
      this.element.append(...made);
      this.#loose.push(...made);
    }
    const line = this.#text.slice(this.#text.lastIndexOf("\n", limit - 1) + 1, limit);
    this.#isPlain = groups.at(-1).type === "paragraph_open" && line.length > BEGUN && !UNDECIDED.test(line.slice(-200)) && limit === this.#text.length;
  }

  /** Make a block, within what stands of it; return its elements, or those that came into what stands. */
  #place(group) {
    const made = nodesOf([group]);
    const { into } = this.#open;
    if (into && made[0]?.tagName === CONTAINERS[group.type] && made[0].tagName === this.#open.nodes[0].tagName) {
      const children = [...containerOf(made[0]).children];
      into.append(...children);
      return children;
    }
    if (into) this.#stand(this.#open.from); // it cannot be, by the rules of Markdown
    this.element.append(...made);
    this.#open.nodes.push(...made);
    return CONTAINERS[group.type] && made[0] ? [...containerOf(made[0]).children] : made;
  }

  /** Let a block stand that has ended; the next one begins at `next`. */
  #settle(group, next) {
    colourWithin(this.#place(group));
    this.#least = Math.min(this.#least, Object.keys(this.#found).length);
    this.#stand(next);
  }

  #stand(next) {
    this.#blocks.push({ at: this.#open.at, nodes: this.#open.nodes });
    this.#open = { at: next, from: next, head: "", into: null, nodes: [] };
  }

  /** Let the beginning of a long paragraph stand. */
  #cut(from, limit) {
    const next = /\s(?=(?:\*\*?|__?|`|\[)?\p{L})/gu; // what follows can only be words
    next.lastIndex = from + LONGEST_PARAGRAPH;
    const found = next.exec(this.#text.slice(0, limit));
    if (!found) return false;
    const [group] = read(this.#text.slice(from, found.index), { ...this.#references });
    this.#settle(group, found.index + 1);
    this.#read = this.#open.from;
    return true;
  }

  /** Definitions of links in what stands hold from there on. */
  #learn(text) {
    if (Object.keys(this.#found).length > Object.keys(this.#references).length) read(text, this.#references);
  }

  #openCode(token, at, from) {
    const block = new CodeBlock(languageOf(token.info));
    this.element.append(block.element);
    this.#open = { at, from, head: "", into: null, nodes: [block.element] };
    const indent = this.#text.slice(at, from).search(/[^ ]/u);
    const close = new RegExp(`^ {0,3}${token.markup[0]}{${token.markup.length},}[ \\t]*$`, "u");
    this.#code = { block, indent: indent > 0 && new RegExp(`^ {1,${indent}}`, "gmu"), close, mark: token.markup };
  }

  /** Add the lines that have come to the open block of code. */
  #growCode() {
    const { block, close, indent, mark } = this.#code;
    const { from } = this.#open;
    const piece = this.#text.slice(from, this.#text.indexOf("\n", from + 4 * PIECE) + 1 || undefined);
    const isAll = from + piece.length === this.#text.length;
    const lines = piece.split("\n");
    let rest = lines.pop();
    if (this.#done && isAll && rest) lines.push(rest);
    const end = piece.includes(mark) ? lines.findIndex((line) => close.test(line)) : -1;
    const fresh = end < 0 ? lines : lines.slice(0, end);
    const code = withoutMarks(fresh.map((line) => `${line}\n`).join(""));
    block.append(indent ? code.replace(indent, "") : code);
    const taken = fresh.reduce((sum, line) => sum + line.length + 1, end < 0 ? 0 : lines[end].length + 1);
    this.#open.from = this.#read = Math.min(from + taken, this.#text.length);
    if (end >= 0 || (this.#done && isAll)) {
      block.rest = "";
      block.colour(true);
      this.#code = null;
      this.#stand(this.#open.from);
      return true;
    }
    if (/^ {0,3}[`~]*\s*$/u.test(rest)) rest = ""; // it may be the end
    block.rest = rest;
    if (isAll) this.#read = this.#text.length;
    block.colour();
    return !isAll;
  }

  /** Everything is shown. Where links were defined behind their use, everything is read once more. */
  #end() {
    colourWithin(this.#loose);
    if (this.#isSecond || Object.keys(this.#found).length <= this.#least || !this.#blocks.length) return false;
    const found = this.#found;
    this.#goBack(0);
    this.#references = found;
    this.#isSecond = true;
    return true;
  }

  /** Take back what stands behind so many characters: they are others now. */
  #goBack(length) {
    const height = this.element.offsetHeight;
    this.element.style.minHeight = `${height}px`; // what is below stays in its place meanwhile
    // What begins a block decides where the one above it ends: so the last one that is the same goes, too.
    const kept = this.#blocks.findLastIndex((_, place) => place < this.#blocks.length - 1 && (this.#blocks[place + 2]?.at ?? this.#open.at) <= length);
    const gone = this.#blocks.splice(kept + 1);
    for (const each of [...gone.flatMap(({ nodes }) => nodes), ...this.#open.nodes, ...this.#loose]) each.remove();
    const at = gone[0]?.at ?? this.#open.at;
    this.#open = { at, from: at, head: "", into: null, nodes: [] };
    this.#loose = [];
    this.#code = null;
    this.#read = at;
    this.#isPlain = false;
    this.#size = PIECE;
    this.#waitsUntil = 0;
    if (at > 0) return;
    this.#references = {};
    this.#least = Infinity;
  }
}

/** Return how many characters two texts begin with in common. */
function common(one, other) {
  let length = 0;
  while (length < one.length && one[length] === other[length]) length += 1;
  return length;
}

function lineStarts(text) {
  const found = [0];
  for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) found.push(at + 1);
  return found;
}
