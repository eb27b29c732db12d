// Light or dark, and which part is seen where there is room for one.

import { byId, say } from "./dom.js";

const THEMES = ["system", "light", "dark"];

/** Go on to the next theme. */
export function nextTheme() {
  const root = document.documentElement;
  const now = root.dataset.theme ?? "system";
  const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
  if (next === "system") delete root.dataset.theme;
  else root.dataset.theme = next;
  try {
    localStorage.setItem("respsite.theme", next);
  } catch {
    // Storage is off: it holds as long as the page.
  }
  nameTheme();
  say(`Theme: ${next === "system" ? "as the system" : next}`);
}

/** Say on the button which theme there is. */
export function nameTheme() {
  const now = document.documentElement.dataset.theme;
  document.querySelector('[data-do="theme"]').setAttribute("aria-label", `Theme: ${now ?? "as the system"}`);
}

/** Show a part where there is room for one. */
export function view(name) {
  document.body.dataset.view = name;
  for (const button of document.querySelectorAll("[data-view-of]")) {
    if (button.dataset.viewOf === name) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
  }
}

/** Show the events beside the lanes, or no more. */
export function toggleEvents() {
  if (isNarrow()) return view(document.body.dataset.view === "events" ? "talk" : "events");
  const shown = document.body.toggleAttribute("data-events");
  document.querySelector('[data-do="events"]').setAttribute("aria-pressed", String(shown));
  return undefined;
}

export const isNarrow = () => matchMedia("(max-width: 1099px)").matches;

/** Show the setup, and put the cursor there. */
export function showSetup() {
  if (isNarrow()) view("setup");
  byId("model").focus();
}
