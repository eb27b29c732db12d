// Elements, without markup in strings: text of models and clients only ever becomes text nodes.

/** Return an element. `props`: attributes; `on` holds listeners, `class` the class, booleans switch attributes. */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (name === "on") {
      for (const [type, listener] of Object.entries(value)) element.addEventListener(type, listener);
    } else if (name === "data") {
      Object.assign(element.dataset, value);
    } else if (value === true) {
      element.setAttribute(name, "");
    } else if (value !== false && value != null) {
      element.setAttribute(name, String(value));
    }
  }
  for (const child of children.flat()) if (child != null && child !== false) element.append(child); // there may be 100,000
  return element;
}

/** Return the element with this id. */
export const byId = (id) => document.getElementById(id);

const SVG = "http://www.w3.org/2000/svg";

/** Return an icon of one path in a square of 16. */
export function icon(path) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  const drawn = document.createElementNS(SVG, "path");
  drawn.setAttribute("d", path);
  svg.append(drawn);
  return svg;
}

const waiting = new Set();
let frame = 0;

/** Call `paint` once before the next picture, however often it is asked for until then. */
export function soon(paint) {
  waiting.delete(paint); // what is asked for again comes last: a lane scrolls behind what was drawn meanwhile
  waiting.add(paint);
  if (frame) return;
  frame = requestAnimationFrame(() => {
    frame = 0;
    const now = [...waiting];
    waiting.clear();
    for (const each of now) each();
  });
}

/** Say something to whoever listens to the page: whole events, never tokens. */
export function say(text) {
  byId("said").textContent = text;
}

const names = new WeakMap(); // of buttons that say what came of them

/** Copy a text; say what came of it on the button, too. */
export async function copy(text, button) {
  if (!names.has(button)) names.set(button, button.textContent);
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
    say("Copied");
  } catch {
    button.textContent = "Not allowed here";
    say("The browser does not let this page copy. Select the text and copy it.");
  }
  setTimeout(() => (button.textContent = names.get(button)), 1600);
}

/** Have the browser keep a blob as a file of this name. */
export function saveAs(name, blob) {
  const url = URL.createObjectURL(blob);
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000); // the browser has begun to read it by then
}

/** Return milliseconds as people read them. */
export function duration(ms) {
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  return ms < 60_000 ? `${(ms / 1000).toFixed(2)} s` : `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
}

/** Return a number of bytes as people read it: in the units of the settings, whose bounds are powers of two. */
export function bytes(count) {
  const unit = count < 1024 ? "B" : count < 1024 ** 2 ? "KiB" : count < 1024 ** 3 ? "MiB" : "GiB";
  const number = count / 1024 ** ["B", "KiB", "MiB", "GiB"].indexOf(unit);
  return `${Number.isInteger(number) ? number : number.toFixed(1)} ${unit}`;
}

/** Return JSON laid out, or the text as it is where it is none. */
export function laidOut(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

const UNSEEN = /[\u00AD\u061C\u180E\u200B-\u200F\u202A-\u202E\u2060-\u2069\uFEFF]/gu; // they turn what is read around, or show nothing

/**
 * Return JSON laid out as it is: as it came where laying it out would change it (long numbers, names that come twice),
 * and with what cannot be seen escaped. Somebody decides by it whether a call may be made.
 */
export function laidOutExactly(text) {
  const laid = laidOut(text);
  const bare = (each) => each.replaceAll(/\s/gu, "");
  const shown = bare(laid) === bare(text) ? laid : text;
  return shown.replaceAll(UNSEEN, (each) => `\\u${each.codePointAt(0).toString(16).padStart(4, "0")}`);
}
