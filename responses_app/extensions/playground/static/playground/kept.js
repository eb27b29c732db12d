// What this browser keeps for the one who asks: the draft, the scroll and the setup of each chat, and which are open.
//
// Each is an entry of its own, `respsite.kept|OWNER|NAME`, so that tabs do not write into one another's. An owner is a
// key (its fingerprint, never the key), a user in a project, or everybody where nobody is asked. All is bounded; the
// oldest goes first.

import { ofSite, ofTab } from "./storage.js";

const PREFIX = "respsite.kept|";
const MOST_ENTRIES = 300; // of all owners
const MOST_CHARACTERS = 2_000_000; // of all entries; browsers give a site about 5,000,000
const LONGEST = 500_000; // characters of one entry
const PAGE = "respsite.page";

/** Return who keeps: "" where the server asks, and nobody has answered. */
export function ownerOf(door) {
  if (door.key) return `key ${fingerprint(door.key)}`;
  if (door.facts.door === "session") return `${userOf(door.facts.user)}${encodeURIComponent(door.project)}`;
  return door.isShut ? "" : "open";
}

const userOf = (name) => `user ${encodeURIComponent(name)} `;

/** 32 bits of a text (FNV-1a): enough to tell keys apart, and far too few to find one. */
function fingerprint(text) {
  let hash = 0x811c9dc5;
  for (const byte of new TextEncoder().encode(text)) hash = Math.imul(hash ^ byte, 0x01000193);
  return (hash >>> 0).toString(16).padStart(8, "0");
}

/** What is kept for one owner. */
export class Kept {
  constructor(owner) {
    this.owner = owner;
    this.begins = `${PREFIX}${owner}|`;
  }

  /** Return what was kept by this name, undefined for nothing. */
  get(name) {
    const text = this.owner ? ofSite.get(this.begins + name) : null;
    return text === null ? undefined : read(text.slice(text.indexOf("|") + 1));
  }

  /** Keep a value; return whether it is kept: it may be too long, and the storage full. */
  put(name, value) {
    const text = `${Date.now()}|${JSON.stringify(value)}`;
    if (!this.owner || text.length > LONGEST) return false;
    const key = this.begins + name;
    const isNew = ofSite.get(key) === null;
    const isKept = write(key, text);
    if (isNew) prune();
    return isKept;
  }

  drop(name) {
    if (this.owner) ofSite.drop(this.begins + name);
  }

  /** Return the names that begin like this, the newest first. */
  names(beginning) {
    const found = entries().filter(({ key }) => this.owner && key.startsWith(this.begins + beginning));
    return found.reverse().map(({ key }) => key.slice(this.begins.length));
  }

  /** Keep something as long as the tab lives: a reload finds it, another tab does not. */
  putInTab(name, value) {
    if (this.owner) ofTab.put(this.begins + name, JSON.stringify(value));
  }

  getInTab(name) {
    return read(ofTab.get(this.begins + name) ?? "null") ?? undefined;
  }

  /** Forget all that is kept for this owner. */
  clear() {
    for (const store of [ofSite, ofTab]) forget(store, this.begins);
  }
}

/** Forget what users have left here who are not signed in any more. */
export function forgetOthers(user) {
  for (const store of [ofSite, ofTab]) forget(store, `${PREFIX}user `, user ? PREFIX + userOf(user) : null);
}

function forget(store, beginning, but = null) {
  for (const key of store.keys()) if (key.startsWith(beginning) && !(but && key.startsWith(but))) store.drop(key);
}

/**
 * Return what this page is called among those that keep drafts of the same chat. A reload is the same page; a tab that
 * was duplicated is another one: the name lies in the tab's storage only while no page is there.
 */
export function nameOfPage() {
  const name = ofTab.get(PAGE) ?? Math.random().toString(36).slice(2, 10);
  ofTab.drop(PAGE);
  addEventListener("pagehide", () => ofTab.put(PAGE, name));
  addEventListener("pageshow", () => ofTab.drop(PAGE));
  return name;
}

function read(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined; // something else has written it
  }
}

/** Write; where there is no room, the oldest make some. */
function write(key, text) {
  while (!ofSite.put(key, text)) {
    const oldest = entries().find((each) => each.key !== key);
    if (!oldest) return false;
    ofSite.drop(oldest.key);
  }
  return true;
}

/** Return what all owners keep, the oldest first. */
function entries() {
  const found = ofSite.keys().filter((key) => key.startsWith(PREFIX));
  const told = found.map((key) => {
    const text = ofSite.get(key) ?? "";
    return { key, size: key.length + text.length, at: Number.parseInt(text, 10) || 0 };
  });
  return told.sort((one, other) => one.at - other.at);
}

function prune() {
  const all = entries();
  let characters = all.reduce((sum, { size }) => sum + size, 0);
  let count = all.length;
  for (const { key, size } of all) {
    if (count <= MOST_ENTRIES && characters <= MOST_CHARACTERS) return;
    ofSite.drop(key);
    characters -= size;
    count -= 1;
  }
}
