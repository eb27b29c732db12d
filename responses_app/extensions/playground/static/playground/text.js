// What answers are made of, for all who show some: Markdown that grows, links, blocks of code.

import { CodeBlock } from "./code.js";
import { h } from "./dom.js";
import { Growing } from "./growing.js";
import { leadOut, safeHref } from "./reading.js";

const shown = new WeakMap();

/**
 * Show a text of Markdown in an element. While it grows this is called with all of it again; `done` tells that it has
 * ended, `marked` that it has marks of citations. The element is `aria-busy` until everything is shown.
 */
export function renderText(element, text, { done = true, marked = false } = {}) {
  if (!shown.has(element)) shown.set(element, new Growing(element));
  shown.get(element).set(text, { done, marked });
}

/** Return a link that leads out of the page, its label alone where it may not be followed. */
export function link(href, ...label) {
  const safe = safeHref(href);
  return safe ? leadOut(h("a", { href: safe }, ...label)) : h("span", {}, ...label);
}

/** Return a block of code that has ended. */
export function codeBlock(text, language = "") {
  const block = new CodeBlock(language);
  block.append(`${text}\n`);
  block.colour(true);
  return block.element;
}
