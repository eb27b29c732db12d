// A message of the user's that is written anew in its place: its text changes, what is attached to it stays.

import { h } from "./dom.js";
import { attachmentsOf } from "./attachments.js";
import { textOf } from "./request.js";

const ROWS = 14; // as many lines as are shown at once

/** Return an item of the input with another text. */
export function withText(item, text) {
  if (typeof item === "string" || typeof item.content === "string") {
    return { type: "message", role: "user", ...(typeof item === "string" ? {} : item), content: text };
  }
  const others = (item.content ?? []).filter(({ type }) => type !== "input_text");
  const { id, ...rest } = item; // it is another message
  return { ...rest, content: text || !others.length ? [{ type: "input_text", text }, ...others] : others };
}

/** Open a message in the place of its bubble. `save(item)` takes it as it is then; `verb` says what that does. */
export function edit(bubble, item, verb, save) {
  const attached = attachmentsOf(item);
  const field = h("textarea", { "aria-label": "Your message", rows: "1" });
  field.value = ownText(item);
  const fit = () => (field.rows = Math.min(ROWS, Math.max(2, field.value.split("\n").length)));
  const go = h("button", { class: "primary" }, verb);
  const cancel = h("button", { type: "button", class: "quiet" }, "Cancel");
  const form = h("form", { class: "editor", "aria-label": "Edit your message" }, attached, field, h("div", { class: "buttons" }, cancel, go));
  const close = () => {
    form.replaceWith(bubble);
    const turn = bubble.closest(".turn");
    turn?.querySelector(".held:not([hidden]) button, .pencil")?.focus();
  };
  const submit = () => {
    const text = field.value.trim();
    if (!text && !attached) return;
    close();
    save(withText(item, text));
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  form.addEventListener("keydown", (event) => {
    const sends = event.key === "Enter" && (event.ctrlKey || event.metaKey || (!event.shiftKey && !event.isComposing && !matchMedia("(pointer: coarse)").matches));
    if (event.key === "Escape") close();
    else if (sends && event.target === field) submit();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  field.addEventListener("input", fit);
  cancel.addEventListener("click", close);
  fit();
  bubble.replaceWith(form);
  field.focus();
  field.setSelectionRange(field.value.length, field.value.length);
}

const ownText = (item) =>
  typeof item === "string" || !Array.isArray(item.content)
    ? textOf(item)
    : item.content.filter(({ type }) => type === "input_text").map(({ text }) => text).join("\n");
