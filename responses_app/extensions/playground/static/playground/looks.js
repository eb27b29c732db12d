// Light or dark, and which parts are seen where there is no room for all.

import { byId, say } from "./dom.js";
import { ofSite } from "./storage.js";

const THEMES = ["system", "light", "dark"];

/** Go on to the next theme. */
export function nextTheme() {
  const root = document.documentElement;
  const now = root.dataset.theme ?? "system";
  const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
  if (next === "system") delete root.dataset.theme;
  else root.dataset.theme = next;
  ofSite.put("respsite.theme", next);
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
  nameChats(); // there may be no room for it beside them
  return undefined;
}

const CHATS = "respsite.chats"; // whether the list is wanted, where there is room for it

/** Whether the list of chats lies over the page: it has no room of its own. */
const isDrawer = () => matchMedia(document.body.hasAttribute("data-events") ? "(max-width: 1399px)" : "(max-width: 1099px)").matches;

/** Show the list of chats, or no more; return whether it is shown. */
export function toggleChats() {
  const root = document.documentElement;
  if (isDrawer()) {
    if (!closeDrawer()) openDrawer();
    return "drawer" in root.dataset;
  }
  const isHidden = root.dataset.chats !== "hidden";
  if (isHidden) root.dataset.chats = "hidden";
  else delete root.dataset.chats;
  ofSite.put(CHATS, isHidden ? "hidden" : "shown");
  nameChats();
  return !isHidden;
}

/** Show the list of chats, so that the keyboard can go there. */
export function showChats() {
  if (!isSeen(byId("chats"))) toggleChats();
}

const isSeen = (element) => element.getClientRects().length > 0;

/** Say on the button whether the list is shown. */
export function nameChats() {
  document.querySelector('[data-do="chats"]').setAttribute("aria-expanded", String(isSeen(byId("chats"))));
}

const behind = () => document.querySelectorAll(".top, .banner, .stage > :not(.chats), .views, .skip");
let before = null; // what had the focus

function openDrawer() {
  before = document.activeElement;
  document.documentElement.dataset.drawer = "";
  for (const each of behind()) each.inert = true;
  byId("chats-close").focus();
  nameChats();
}

/** Close the list where it lies over the page; return whether it did. */
export function closeDrawer() {
  if (!("drawer" in document.documentElement.dataset)) return false;
  delete document.documentElement.dataset.drawer;
  for (const each of behind()) each.inert = false;
  before?.focus();
  nameChats();
  return true;
}

/** Close the drawer where there is room for the list beside the rest. */
export function watchRoom() {
  byId("scrim").addEventListener("click", closeDrawer);
  addEventListener("resize", () => {
    if (!isDrawer()) closeDrawer();
    nameChats();
  });
  nameChats();
}

export const isNarrow = () => matchMedia("(max-width: 1099px)").matches;

/** Show the setup, and put the cursor there. */
export function showSetup() {
  if (isNarrow()) view("setup");
  byId("model").focus();
}
