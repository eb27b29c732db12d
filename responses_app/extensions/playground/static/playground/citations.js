// What an answer cites: numbered marks at the places, and the list of sources below it.

import { h } from "./dom.js";
import { markOf, plain } from "./marks.js";
import { link } from "./text.js";

const FIGURE = /^cfile_\w+(\.\w+)$/u; // what the server calls a figure that code has shown, and not named

/** Return what a file that code has written is called on the page. */
export const fileName = (name) => name.replace(FIGURE, "figure$1");

/** Return the text of a message with its marks, and its sources by their numbers. */
export function cited(parts) {
  const sources = new Map();
  const texts = parts.map((part) => {
    const text = part.text ?? part.refusal ?? "";
    const cites = part.annotations ?? [];
    if (!cites.length) return plain(text);
    const characters = Array.from(plain(text)); // the server counts characters, not halves of them
    const places = cites.map((each) => [behindMarkup(characters, each.end_index ?? each.index ?? characters.length), numbered(sources, each)]);
    for (const [at, number] of places.sort((a, b) => b[0] - a[0] || b[1] - a[1])) {
      characters.splice(Math.max(0, Math.min(at, characters.length)), 0, markOf(number));
    }
    return characters.join("");
  });
  return { text: texts.join("\n\n"), sources: [...sources.values()] };
}

/** A mark within `**` would leave half of it on either side: it goes behind it. */
function behindMarkup(characters, place) {
  let at = place;
  while (/[*_~`]/u.test(characters[at] ?? "") && characters[at] === characters[at - 1]) at += 1;
  return at;
}

/** Return the number of what is cited; the same source keeps its number. */
function numbered(sources, cite) {
  const key = cite.url ?? cite.file_id ?? cite.filename ?? JSON.stringify(cite);
  if (!sources.has(key)) sources.set(key, { ...cite, number: sources.size + 1, name: cite.title || fileName(cite.filename ?? key) });
  return sources.get(key).number;
}

/** Return the list of sources, and let the marks in `body` lead to them. */
export function sourcesList(body) {
  const list = h("ol", { class: "sources", hidden: true, "aria-label": "Sources" });
  body.addEventListener("click", ({ target }) => {
    const { source } = target.closest?.(".cite button")?.dataset ?? {};
    const entry = source && list.children[source - 1];
    if (!entry) return;
    for (const each of list.children) each.toggleAttribute("data-shown", each === entry);
    entry.scrollIntoView({ block: "nearest" });
    entry.focus({ preventScroll: true });
  });
  return list;
}

/** Show sources in their list. */
export function showSources(list, sources) {
  list.replaceChildren(...sources.map((each) => h("li", { tabindex: "-1" }, h("span", {}, shown(each), " ", h("small", {}, whence(each))))));
  list.hidden = !sources.length;
}

function shown(source) {
  if (source.url) return link(source.url, source.name);
  return source.container_id ? download(source) : h("span", {}, source.name);
}

function whence({ url, container_id: container }) {
  if (!url) return container ? "a file that code has written" : "a file that was searched";
  try {
    return new URL(url).host;
  } catch {
    return "";
  }
}

/** Return a button that gives a file that code has written; `main` hears of it, as it knows who asks. */
function download({ container_id: container, file_id: file, name }) {
  const path = `/v1/containers/${encodeURIComponent(container)}/files/${encodeURIComponent(file)}/content`;
  const ask = ({ currentTarget }) =>
    currentTarget.dispatchEvent(new CustomEvent("download", { bubbles: true, detail: { path, name } }));
  return h("button", { type: "button", class: "link", title: `Download ${name}`, on: { click: ask } }, name);
}
