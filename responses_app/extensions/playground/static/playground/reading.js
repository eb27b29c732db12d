// Reads Markdown and returns what may be shown of it. markdown-it reads, DOMPurify lets known elements through; both are
// loaded when the first answer is shown.

import { CodeBlock } from "./code.js";
import { h } from "./dom.js";
import { formulaRules, showFormula } from "./formulas.js";
import { markOf, MARKS, marksIn, withoutMarks } from "./marks.js";

const LIBRARIES = ["../vendor/markdown-it-15.0.3/markdown-it.esm.min.mjs", "../vendor/dompurify-3.4.18/purify.min.js"];
const ALLOWED = {
  ALLOWED_TAGS: "p br hr h3 em strong s code pre blockquote ul ol li div table thead tbody tr th td a span sup".split(" "),
  ALLOWED_ATTR: "href title start class data-level data-align data-task data-language data-formula".split(" "),
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

let markdown = null;
let loading = null;

/** Whether `read` and `nodesOf` can be called. */
export const isLoaded = () => markdown !== null;

/** Load the libraries, once; what fails is tried again with the next call. */
export function load() {
  loading ??= Promise.all(LIBRARIES.map((path) => import(path))).then(
    ([{ default: MarkdownIt }]) => (markdown = made(MarkdownIt)),
    (error) => {
      loading = null;
      throw error;
    },
  );
  return loading;
}

/** Return the address of a link that may be followed, null for any other. */
export function safeHref(text) {
  try {
    const url = new URL(text);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

function made(MarkdownIt) {
  const reader = new MarkdownIt({ html: false, linkify: true, breaks: true, maxNesting: 50 }); // models mean their line breaks
  reader.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false }); // main.py is no site
  reader.linkify.add("//", null).add("ftp:", null);
  reader.validateLink = () => true; // the rules below decide: a link that may not be followed is its label
  reader.use(formulaRules);
  reader.core.ruler.push("playground", ({ tokens }) => tokens.forEach(adapt));
  Object.assign(reader.renderer.rules, rulesFor(reader.utils.escapeHtml));
  return reader;
}

/** Change tokens from what documents need to what answers need. */
function adapt(token, place, tokens) {
  if (/^heading_/u.test(token.type)) {
    token.attrSet("data-level", token.tag.slice(1));
    token.tag = "h3"; // below its lane's
  } else if (token.type === "paragraph_open" || token.type === "paragraph_close") {
    token.hidden = false; // an item looks the same with one: so it can be shown before the list has ended
  } else if (token.type === "th_open" || token.type === "td_open") {
    const [, align] = /(center|right)/u.exec(token.attrGet("style") ?? "") ?? [];
    token.attrs = align ? [["data-align", align]] : null; // the page allows no styles in attributes
  } else if (token.type === "inline" && tokens[place - 2]?.type === "list_item_open") {
    const first = token.children[0];
    const [all, mark] = (first?.type === "text" && /^\[([ xX])\]\s+/u.exec(first.content)) || [];
    if (!all) return;
    first.content = first.content.slice(all.length);
    tokens[place - 2].attrs = [["class", "task"], ["data-task", mark === " " ? "open" : "done"]];
  }
}

function rulesFor(escaped) {
  const opened = (href, title) => {
    const safe = safeHref(withoutMarks(href));
    return safe ? `<a href="${escaped(safe)}"${title ? ` title="${escaped(withoutMarks(title))}"` : ""}>` : "<span>";
  };
  return {
    text: (tokens, at) => escaped(tokens[at].content).replace(MARKS, '<sup class="cite">$1</sup>'),
    code_inline: (tokens, at) => `<code>${escaped(withoutMarks(tokens[at].content))}</code>${marksIn(tokens[at].content)}`,
    code_block: (tokens, at) => `<pre>\n${escaped(withoutMarks(tokens[at].content))}</pre>`,
    fence: (tokens, at) => `<pre data-language="${languageOf(tokens[at].info)}">\n${escaped(withoutMarks(tokens[at].content))}</pre>`,
    link_open: (tokens, at) => opened(decoded(tokens[at].attrGet("href")), tokens[at].attrGet("title")),
    link_close(tokens, at) {
      let opener = at;
      while (tokens[opener].type !== "link_open") opener -= 1;
      const href = decoded(tokens[opener].attrGet("href"));
      return (safeHref(withoutMarks(href)) ? "</a>" : "</span>") + marksIn(href);
    },
    // An image is a link to it: no page of a stranger hears who reads an answer.
    image(tokens, at) {
      const href = decoded(tokens[at].attrGet("src"));
      const safe = safeHref(withoutMarks(href));
      const label = `Image: ${withoutMarks(tokens[at].content) || withoutMarks(href)}`;
      return `${safe ? `<a href="${escaped(safe)}">${escaped(label)}</a>` : `<span>${escaped(label)}</span>`}${marksIn(href)}`;
    },
    table_open: () => '<div class="wide"><table>',
    table_close: () => "</table></div>",
  };
}

/** An address as it was written: markdown-it encodes what is not ASCII, marks among it. */
function decoded(href) {
  return href.replace(/%EF%BD%9C%C2%96(\d+)%C2%97%EF%BD%9C/gu, markOf("$1"));
}

/** The language of a block of code: the first word behind its fence. */
export const languageOf = (info) => (/^[\w+#.-]{1,40}/u.exec(withoutMarks(info).trim()) ?? [""])[0];

/** Return the blocks of a text: their tokens, and the line where each begins. `references`: its link definitions. */
export function read(text, references) {
  const groups = [];
  const tokens = markdown.parse(text, { references });
  let depth = 0;
  for (const token of tokens) {
    if (depth === 0) groups.push({ tokens: [], type: token.type, line: token.map[0], end: token.map[1] });
    groups.at(-1).tokens.push(token);
    depth += token.nesting;
  }
  return groups;
}

/** Return what some blocks look like. */
export function nodesOf(groups) {
  const html = markdown.renderer.render(groups.flatMap(({ tokens }) => tokens), markdown.options, {});
  const fragment = globalThis.DOMPurify.sanitize(html, ALLOWED);
  for (const each of fragment.querySelectorAll("pre")) {
    const block = new CodeBlock(each.dataset.language ?? "");
    block.append(each.textContent);
    each.replaceWith(block.element);
  }
  for (const each of fragment.querySelectorAll("a")) leadOut(each);
  for (const each of fragment.querySelectorAll(".task")) each.prepend(checkbox(each.dataset.task === "done"));
  for (const each of fragment.querySelectorAll(".wide")) name(each, "Table");
  for (const each of fragment.querySelectorAll("[data-formula]")) showFormula(each);
  for (const each of fragment.querySelectorAll(".cite")) {
    each.replaceChildren(h("button", { type: "button", data: { source: each.textContent } }, each.textContent));
  }
  return [...fragment.childNodes].filter(({ nodeType }) => nodeType === Node.ELEMENT_NODE);
}

const checkbox = (done) => h("input", { type: "checkbox", disabled: true, checked: done, "aria-label": done ? "Done" : "Not done" });

/** Something that scrolls can be reached by keys, and has a name. */
function name(element, label) {
  element.tabIndex = 0;
  element.role = "group";
  element.ariaLabel = label;
}

/** Let a link lead out of the page, and tell the other site nothing. */
export function leadOut(element) {
  element.target = "_blank";
  element.rel = "noopener noreferrer nofollow";
  return element;
}

/** Return where the items, blocks or rows of a list, quote or table begin. */
export function childrenOf({ type, tokens }) {
  if (type === "table_open") {
    const body = tokens.findIndex((token) => token.type === "tbody_open");
    return tokens.slice(body < 0 ? tokens.length : body).filter((token) => token.type === "tr_open").map(({ map }) => ({ line: map[0] }));
  }
  return tokens.filter(({ level, nesting, map }) => level === 1 && nesting >= 0 && map).map(({ map }) => ({ line: map[0] }));
}

/** Return the element that holds them. */
export function containerOf(element) {
  if (element.tagName !== "DIV") return element;
  return element.querySelector("tbody") ?? element;
}
