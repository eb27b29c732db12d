// A small Markdown for answers. Everything becomes elements and text nodes; nothing is ever read as HTML.

import { copy, h } from "./dom.js";

const INLINE = new RegExp(
  [
    /(?<code>(?<ticks>`+)(?<coded>[^]+?)\k<ticks>(?!`))/,
    /(?<strong>\*\*(?=\S)(?<bold>[^]+?\S?)\*\*)/,
    /(?<em>(?<![\w*])[*](?=[^\s*])(?<slanted>[^*\n]*[^\s*])[*](?![\w*])|(?<!\w)_(?=[^\s_])(?<under>[^_\n]*[^\s_])_(?!\w))/,
    /(?<strike>~~(?=\S)(?<struck>[^~]+?)~~)/,
    // An image is a link to it: no page of a stranger hears who reads an answer.
    /(?<link>(?<image>!?)\[(?<label>[^\]\n]{0,500})\]\((?<href>[^()\s]{1,2000}(?:\([^()\s]*\)[^()\s]*)?)\))/,
    /(?<bare>https?:\/\/[^\s<>"'`\])}\uE000]{3,2000})/,
    /(?<mark>\uE000(?<cited>\d+)\uE001)/, // a citation: put in by `withMarks`, and never by a model
  ]
    .map((each) => each.source)
    .join("|"),
  "gu",
);

/** Return the address of a link that may be followed, null for any other. */
export function safeHref(text) {
  try {
    const url = new URL(text);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

/** Return a link that leads out of the page, its label alone where it may not be followed. */
export function link(href, ...label) {
  const safe = safeHref(href);
  return safe ? h("a", { href: safe, target: "_blank", rel: "noopener noreferrer" }, ...label) : h("span", {}, ...label);
}

/** Put marks for citations into a text. `places`: [position in characters, number]. */
export function withMarks(text, places) {
  const characters = Array.from(text.replace(/[\uE000\uE001]/gu, "\uFFFD"));
  for (const [at, number] of [...places].sort((a, b) => b[0] - a[0] || b[1] - a[1])) {
    characters.splice(Math.max(0, Math.min(at, characters.length)), 0, `\uE000${number}\uE001`);
  }
  return characters.join("");
}

function inline(text, depth = 0) {
  const found = [];
  let end = 0;
  for (const match of depth > 6 ? [] : text.matchAll(INLINE)) {
    if (match.index > end) found.push(text.slice(end, match.index));
    end = match.index + match[0].length;
    found.push(styled(match.groups, depth + 1));
  }
  if (end < text.length) found.push(text.slice(end));
  return found;
}

function styled(groups, depth) {
  if (groups.code) return h("code", {}, groups.coded.replace(/^ (.*) $/su, "$1"));
  if (groups.strong) return h("strong", {}, inline(groups.bold, depth));
  if (groups.em) return h("em", {}, inline(groups.slanted ?? groups.under, depth));
  if (groups.strike) return h("s", {}, inline(groups.struck, depth));
  if (groups.image) return link(groups.href, `Image: ${groups.label || groups.href}`);
  if (groups.link) return link(groups.href, inline(groups.label || groups.href, depth));
  if (groups.mark) return h("sup", { class: "cite" }, groups.cited);
  const address = groups.bare.replace(/[.,;:!?]+$/u, "");
  return h("span", {}, link(address, address), groups.bare.slice(address.length));
}

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/u;
// Each of these takes time in proportion to a line: a text of a model may have long ones.
const HEADING = /^ {0,3}(#{1,6})\s+(.*)$/su;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/u;
const ITEM = /^(\s*)(?:([-*+])|(\d{1,9})[.)])\s+(.*)$/su;
const QUOTE = /^ {0,3}>\s?(.*)$/u;
const TABLE_RULE = /^\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?$/u; // of a line without spaces around it
const LONGEST_RULE = 2000; // characters

/** Return the blocks of a text as [element, line where it begins]. */
function blocks(text, depth = 0) {
  const lines = text.split("\n");
  const found = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const [element, next] = block(lines, at, depth);
    found.push([element, at]);
    at = next;
  }
  return found;
}

function block(lines, at, depth) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) return fenced(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) return [h("h3", { "data-level": heading[1].length }, inline(titled(heading[2]))), at + 1]; // below its lane's
  if (RULE.test(line)) return [h("hr"), at + 1];
  if (line.includes("|") && rulesTable(lines[at + 1] ?? "")) return table(lines, at);
  if (QUOTE.test(line) && depth < 4) return quoted(lines, at, depth);
  if (ITEM.test(line) && depth < 6) return list(lines, at, depth);
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !begins(lines[end])) end += 1;
  return [h("p", {}, broken(lines.slice(at, end).join("\n"))), end];
}

const begins = (line) => FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);

const rulesTable = (line) => line.length < LONGEST_RULE && TABLE_RULE.test(line.trim());

/** Return the text of a heading, without the number signs that may close it. */
function titled(text) {
  const whole = text.trimEnd();
  let end = whole.length;
  while (whole[end - 1] === "#") end -= 1;
  return whole.slice(0, end).trimEnd();
}

/** Lines of a paragraph: models mean their line breaks. */
function broken(text) {
  return text.split("\n").flatMap((line, number) => (number ? [h("br"), inline(line)].flat() : inline(line)));
}

function fenced(lines, at, [, marks, language]) {
  let end = at + 1;
  while (end < lines.length && !(lines[end].trim().startsWith(marks) && !lines[end].trim().replaceAll(marks[0], ""))) end += 1;
  return [codeBlock(lines.slice(at + 1, end).join("\n"), language), Math.min(end + 1, lines.length)];
}

/** Return a block of code, with its language and a button. */
export function codeBlock(text, language = "") {
  const button = h("button", { type: "button", class: "link", on: { click: () => copy(text, button) } }, "Copy");
  const head = h("figcaption", {}, h("span", {}, language || "text"), button);
  return h("figure", { class: "block" }, head, h("pre", { tabindex: "0" }, h("code", {}, text)));
}

function quoted(lines, at, depth) {
  let end = at;
  const inner = [];
  while (end < lines.length && QUOTE.test(lines[end])) inner.push(QUOTE.exec(lines[end++])[1]);
  return [h("blockquote", {}, blocks(inner.join("\n"), depth + 1).map(([element]) => element)), end];
}

function list(lines, at, depth) {
  const [, indent, bullet, number] = ITEM.exec(lines[at]);
  const items = [];
  let end = at;
  while (end < lines.length) {
    const item = ITEM.exec(lines[end]);
    if (item && item[1].length <= indent.length + 1 && Boolean(item[2]) === Boolean(bullet)) {
      if (item[1].length < indent.length) break;
      items.push([item[4]]);
    } else if (!lines[end].trim()) {
      const next = lines[end + 1] ?? "";
      if (!ITEM.test(next) && !/^\s{2,}\S/u.test(next)) break;
      items.at(-1).push("");
    } else if (/^\s{2,}\S/u.test(lines[end])) {
      items.at(-1).push(lines[end].slice(Math.min(indent.length + (bullet ? 2 : 3), lines[end].search(/\S/u))));
    } else if (item || begins(lines[end]) || !lines[end - 1].trim()) {
      break;
    } else {
      items.at(-1).push(lines[end]);
    }
    end += 1;
  }
  const made = items.map((inner) => listItem(inner.join("\n"), depth));
  return [bullet ? h("ul", {}, made) : h("ol", { start: number === "1" ? null : number }, made), end];
}

const TASK = /^\[([ xX])\]\s+/u;

/** Return an item of a list; one that begins with `[ ]` or `[x]` is a task. */
function listItem(text, depth) {
  const task = TASK.exec(text);
  const inner = tight(blocks(task ? text.slice(task[0].length) : text, depth + 1));
  if (!task) return h("li", {}, inner);
  const done = task[1] !== " ";
  const box = h("input", { type: "checkbox", disabled: true, checked: done, "aria-label": done ? "Done" : "Not done" });
  return h("li", { class: "task" }, box, " ", inner);
}

/** An item of one paragraph needs none. */
function tight(found) {
  return found.flatMap(([element], place) => (place === 0 && element.tagName === "P" ? [...element.childNodes] : [element]));
}

const cells = (line) => line.trim().replace(/^\||\|$/gu, "").split("|").map((cell) => cell.trim());

/** Return where the text of a column stands, by the colons of the rule below its head. */
function alignment(rule) {
  if (!rule.endsWith(":")) return null;
  return rule.startsWith(":") ? "center" : "right";
}

function table(lines, at) {
  const aligned = cells(lines[at + 1]).map(alignment);
  const row = (line, tag) => h("tr", {}, cells(line).map((cell, place) => h(tag, { "data-align": aligned[place] }, inline(cell))));
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|") && lines[end].trim()) end += 1;
  const rows = lines.slice(at + 2, end).map((line) => row(line, "td"));
  const made = h("table", {}, h("thead", {}, row(lines[at], "th")), h("tbody", {}, rows));
  return [h("div", { class: "wide", tabindex: "0", role: "group", "aria-label": "Table" }, made), end];
}

const PLAIN = /^[^\n*_`~[\]()<>|\uE000]*$/u; // nothing in it can change what stands before it
const UNDECIDED = /(?:[^\p{L}\p{N}\s.,;:!?]|https?:\S*)$/u; // what comes behind it may

/**
 * A text that grows. What is before its last block is never read again, and plain words are added to a paragraph as
 * they are, so a long answer costs no more per token.
 */
export class Markdown {
  #text = "";
  #painted = 0; // characters that are shown
  #isPlain = false; // whether words can be added to what is shown last
  #settled = 0; // characters whose blocks stand
  #standing = 0; // elements of those

  constructor(element) {
    this.element = element;
  }

  get text() {
    return this.#text;
  }

  append(text) {
    this.#text += text.replace(/[\uE000\uE001]/gu, "\uFFFD");
  }

  /** Replace the whole text; it may have marks. */
  set(text) {
    this.#text = text;
    this.#settled = this.#standing = 0;
    this.paint(true);
  }

  /** Show what has come; `whole` reads the last block again in any case. */
  paint(whole = false) {
    const fresh = this.#text.slice(this.#painted);
    this.#painted = this.#text.length;
    if (!whole && this.#isPlain && PLAIN.test(fresh)) {
      this.element.lastChild.append(fresh);
      this.#isPlain = !UNDECIDED.test(fresh.slice(-200));
      return;
    }
    const rest = this.#text.slice(this.#settled);
    const found = blocks(rest);
    while (this.element.childNodes.length > this.#standing) this.element.lastChild.remove();
    for (const [element] of found) this.element.append(element);
    this.#isPlain = this.element.lastChild?.tagName === "P" && !UNDECIDED.test(rest.slice(-200));
    if (found.length > 1) {
      const lines = rest.split("\n").slice(0, found.at(-1)[1]);
      this.#settled += lines.reduce((sum, line) => sum + line.length + 1, 0);
      this.#standing += found.length - 1;
    }
  }
}
