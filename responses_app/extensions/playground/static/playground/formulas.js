// Formulas: TeX in answers becomes MathML, which browsers lay out themselves. Temml is loaded with the first one.

import { h, soon } from "./dom.js";
import { marksIn, withoutMarks } from "./marks.js";

const FOLDER = new URL("../vendor/temml-0.13.5/", import.meta.url);
const LONGEST = 5000; // characters of a formula
const LONGEST_INLINE = 1000;
const DEEPEST = 60; // elements within each other: layout takes a stack for each
const MOST_KEPT = 500; // formulas that are not made again
// Macros of the text's own can take seconds to expand.
const DEFINES = /\\(?:[gex]?def|let|futurelet|newcommand|renewcommand|providecommand|newenvironment|char)(?![a-zA-Z])/u;
const OPTIONS = { throwOnError: true, trust: false, maxSize: [20, 200], maxExpand: 300 };
const ALLOWED = {
  USE_PROFILES: { mathMl: true },
  ADD_ATTR: ["class", "form", "data-style"],
  ADD_URI_SAFE_ATTR: ["data-style"], // `color:red` is no address
  FORBID_ATTR: ["href", "id", "name", "style"],
  FORBID_TAGS: ["a", "annotation", "annotation-xml", "maction", "semantics", "style"],
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};
const STYLE = /^(?:color|background-color|text-align|font-weight|math-depth|math-style|math-shift|padding(?:-\w+)?|margin-(?:left|right)|border(?:-\w+)?)$/u;

/** Let markdown-it find formulas: $…$, $$…$$, \(…\) and \[…\]. */
export function formulaRules(reader) {
  reader.inline.ruler.before("escape", "formula", inline);
  reader.block.ruler.before("fence", "formula", block, { alt: ["paragraph", "blockquote", "list"] });
  const { escapeHtml } = reader.utils;
  const rule = (tag) => (tokens, at) => {
    const { content, markup } = tokens[at];
    return `<${tag} class="formula" data-formula="${markup}">${escapeHtml(withoutMarks(content))}</${tag}>${marksIn(content)}`;
  };
  Object.assign(reader.renderer.rules, { formula: rule("span"), formula_block: rule("div") });
}

const CLOSERS = { "\\(": "\\)", "\\[": "\\]", $$: "$$", $: "$" };

function opener(text, at) {
  const two = text.slice(at, at + 2);
  return CLOSERS[two] ? two : text[at] === "$" ? "$" : null;
}

function inline(state, silent) {
  const open = opener(state.src, state.pos);
  if (!open) return false;
  const begin = state.pos + open.length;
  const end = state.src.slice(begin, Math.min(begin + LONGEST_INLINE, state.posMax)).indexOf(CLOSERS[open]) + begin;
  if (end <= begin || state.src[end - 1] === "\\") return false;
  // Money is no formula: "$5 and $6".
  if (open === "$" && (/\s/u.test(state.src[begin]) || /\s/u.test(state.src[end - 1]) || /\d/u.test(state.src[end + 1] ?? ""))) return false;
  if (!silent) {
    const token = state.push("formula", "", 0);
    token.content = state.src.slice(begin, end);
    token.markup = open === "$" || open === "\\(" ? "inline" : "display";
  }
  state.pos = end + CLOSERS[open].length;
  return true;
}

/** A formula on lines of its own, up to an empty line. One that has not ended yet is shown as it is written. */
function block(state, startLine, endLine, silent) {
  if (state.sCount[startLine] - state.blkIndent >= 4) return false;
  const lineOf = (line) => state.src.slice(state.bMarks[line] + state.tShift[line], state.eMarks[line]).trimEnd();
  const first = lineOf(startLine);
  const open = opener(first, 0);
  if (open !== "$$" && open !== "\\[") return false;
  let line = startLine;
  let last = first.slice(open.length);
  let text = last;
  while (!last.includes(CLOSERS[open])) {
    line += 1;
    if (line < endLine && state.isEmpty(line)) return false;
    if (line >= endLine || text.length > LONGEST) break;
    last = lineOf(line);
    text += `\n${last}`;
  }
  const end = text.indexOf(CLOSERS[open]);
  if (end >= 0 && text.slice(end + 2).trim()) return false; // words behind it: a formula within a paragraph
  if (silent) return true;
  const token = state.push("formula_block", "", 0);
  token.block = true;
  token.content = end < 0 ? `${open}${text}` : text.slice(0, end);
  token.markup = end < 0 ? "open" : "display";
  token.map = [startLine, Math.min(line + 1, endLine)];
  state.line = Math.min(line + 1, endLine);
  return true;
}

let loading = null;

function load() {
  loading ??= new Promise((resolve, reject) => {
    const failed = () => {
      loading = null;
      reject(new Error("The formulas' library cannot be loaded."));
    };
    // It is a script of the old kind: as a module it would keep its name to itself.
    document.head.append(
      h("link", { rel: "stylesheet", href: new URL("Temml-Local.css", FOLDER) }),
      h("script", { src: new URL("temml.min.js", FOLDER), on: { load: () => resolve(globalThis.temml), error: failed } }),
    );
  });
  return loading;
}

const kept = new Map(); // what was made of a formula, null where it is no formula
const waiting = new Set();

/** Show the formula whose text an element has: its text stays where it cannot be read as one. */
export function showFormula(element) {
  const how = element.dataset.formula;
  if (how === "open") return;
  if (!globalThis.temml) {
    waiting.add(element);
    load().then(showWaiting, (error) => console.error(error.message));
    return;
  }
  const text = element.textContent;
  const key = `${how} ${text}`;
  if (!kept.has(key)) {
    kept.set(key, drawn(text, how === "display"));
    if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
  }
  const made = kept.get(key);
  if (made) element.replaceChildren(made.cloneNode(true));
  else element.dataset.formula = "source";
  if (how === "display") element.tabIndex = 0; // it may be wider than the page
}

function showWaiting() {
  const until = performance.now() + 6;
  for (const each of waiting) {
    waiting.delete(each);
    showFormula(each);
    if (performance.now() > until) return void soon(showWaiting);
  }
  return undefined;
}

function drawn(text, displayMode) {
  if (text.length > LONGEST || DEFINES.test(text)) return null;
  let markup;
  try {
    markup = globalThis.temml.renderToString(text, { ...OPTIONS, displayMode });
  } catch {
    return null; // no TeX: the text is shown
  }
  // The page allows no styles in attributes; those that a formula needs are set one by one.
  const fragment = globalThis.DOMPurify.sanitize(markup.replaceAll(' style="', ' data-style="'), ALLOWED);
  const math = fragment.querySelector("math");
  if (!math || depthOf(math) > DEEPEST) return null;
  for (const each of fragment.querySelectorAll("[data-style]")) {
    for (const declared of each.dataset.style.split(";")) {
      const [property, value] = declared.split(":");
      if (value && STYLE.test(property.trim())) each.style.setProperty(property.trim(), value.trim());
    }
    each.removeAttribute("data-style");
  }
  return math;
}

function depthOf(root) {
  let deepest = 0;
  let level = [root];
  while (level.length) {
    deepest += 1;
    level = level.flatMap((each) => [...each.children]);
  }
  return deepest;
}
