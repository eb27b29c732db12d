// What was just done, and can be undone for a while: a line at the end of the window.

import { h, say } from "./dom.js";

const MOST = 3; // lines at once; the oldest goes, as if its time were over
const shown = [];
let list = null;

/**
 * Tell what was done. `undo()` is called by the button; `done()` when it can no longer be undone, also when the page is
 * left. The time stands still while the pointer or the focus is on the line. Returns {close}, which ends it as time does.
 */
export function toast(text, { undo, done = () => {}, seconds = 10 } = {}) {
  list ??= document.body.appendChild(h("section", { class: "toasts", "aria-label": "What was just done" }));
  const element = h("div", { class: "toast" }, h("span", {}, text));
  let timer = 0;
  const stop = () => clearTimeout(timer);
  const run = () => {
    stop();
    timer = setTimeout(close, seconds * 1000);
  };
  const leave = () => {
    stop();
    const place = shown.indexOf(made);
    if (place < 0) return false;
    shown.splice(place, 1);
    element.remove();
    return true;
  };
  function close() {
    if (leave()) done();
  }
  const made = {
    close,
    undo: undo
      ? () => {
          if (!leave()) return;
          undo();
          say("Undone");
        }
      : null,
  };
  if (undo) element.append(h("button", { type: "button", class: "link", title: "Undo (z)", on: { click: made.undo } }, "Undo"));
  element.append(h("button", { type: "button", class: "link", "aria-label": "Close this message", title: "Close", on: { click: close } }, "×"));
  for (const type of ["pointerenter", "focusin"]) element.addEventListener(type, stop);
  for (const type of ["pointerleave", "focusout"]) element.addEventListener(type, run);
  shown.push(made);
  if (shown.length > MOST) shown[0].close();
  list.append(element);
  say(undo ? `${text}. It can be undone for ${seconds} seconds: press z, or the button Undo.` : text);
  run();
  return made;
}

/** Undo what was done last, where that is possible. */
export function undoLast() {
  shown.findLast(({ undo }) => undo)?.undo();
}

addEventListener("pagehide", () => {
  for (const each of [...shown]) each.close();
});
