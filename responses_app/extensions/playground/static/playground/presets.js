// A setup as a link: /#setup=… . Whoever made the link may be a stranger, so what it would change is shown, and a person
// says whether it is applied. It carries no access, and cannot switch off that a person is asked before a call.

import { byId, h, laidOutExactly } from "./dom.js";
import { FIELDS } from "./fields.js";
import { wrongWithExtra } from "./json-dialogs.js";
import { emptySetup, withoutSecrets } from "./request.js";

const NAME = "setup";
const LONGEST = 16_000; // characters of a link: some programs cut longer ones
const MOST = 64; // functions, and servers
const LABEL = /^[\w-]{1,64}$/u;

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const isText = (value) => typeof value === "string";
const isList = (value, is) => Array.isArray(value) && value.length <= MOST && value.every(is);
const isServer = ({ server_label: label, server_url: url } = {}) => isText(label) && LABEL.test(label) && (url === undefined || (isText(url) && /^https?:\/\//u.test(url)));

const CHECKS = {
  ...Object.fromEntries(["model", "instructions", "vector_stores", "container", "container_files"].map((name) => [name, isText])),
  ...Object.fromEntries(FIELDS.map(({ name }) => [name, isText])),
  effort: (value) => ["", "none", "low", "medium", "high"].includes(value),
  format: (value) => ["", "json_object", "json_schema"].includes(value),
  schema: (value) => isObject(value) && isText(value.name) && isObject(value.schema),
  store: (value) => typeof value === "boolean",
  functions: (value) => isList(value, (tool) => isObject(tool) && isText(tool.type) && tool.type !== "mcp"),
  switched: (value) => isList(value, isText),
  servers: (value) => isList(value, (server) => isObject(server) && isServer(server)),
  extra: (value) => wrongWithExtra(value) === "",
};
const LABELS = {
  ...Object.fromEntries(FIELDS.map(({ name, label }) => [name, label])),
  ...{ model: "Model", instructions: "Instructions", effort: "Reasoning effort", format: "Answer format", schema: "JSON schema", store: "Store responses" },
  ...{ functions: "Functions", switched: "Server tools", vector_stores: "Vector stores", container: "Container", container_files: "Files in the container" },
  ...{ servers: "MCP servers", extra: "Extra fields" },
};

/** Return the link of a setup: {link}, or {problem}. */
export function linkOf(setup) {
  const empty = emptySetup();
  const { prompt: _, ...open } = withoutSecrets(setup);
  const set = Object.fromEntries(Object.entries(open).filter(([name, value]) => !isSame(value, empty[name])));
  if (set.format !== "json_schema") delete set.schema;
  const link = `${location.origin}${location.pathname}#${NAME}=${encoded(JSON.stringify(set))}`;
  return link.length > LONGEST ? { problem: "This setup is too large for a link. Save it as a prompt." } : { link };
}

/** Return the setup of an address's fragment: null for none. Throws an `Error` for one that cannot be read. */
export function setupIn(hash) {
  if (!hash.startsWith(`#${NAME}=`)) return null;
  if (hash.length > LONGEST) throw new Error("The link is too long.");
  return withoutSecrets(fromSomebodyElse(read(hash.slice(NAME.length + 2))));
}

/** Return what somebody else has written as a setup whose MCP servers all ask. Throws an `Error` where it is none. */
export function fromSomebodyElse(given) {
  if (!isObject(given)) throw new Error("It has no setup.");
  for (const [name, value] of Object.entries(given)) {
    if (!Object.hasOwn(CHECKS, name)) throw new Error(`This page knows no '${name.slice(0, 40)}'.`);
    if (!CHECKS[name](value)) throw new Error(`Its '${name}' cannot be read.`);
  }
  return { ...emptySetup(), ...given, servers: (given.servers ?? []).map(asking) };
}

function read(text) {
  try {
    return JSON.parse(decoded(text));
  } catch {
    throw new Error("It is cut, or was changed.");
  }
}

/** Return a server whose calls a person approves. */
const asking = ({ server_label, server_url, allowed_tools: allowed, on }) => ({
  server_label,
  ...(server_url ? { server_url } : {}),
  ...(isList(allowed, isText) ? { allowed_tools: allowed } : {}),
  require_approval: "always",
  on: on !== false,
});

/** Asks about the setup of the page's address, also of one that comes later. `panel`: setup, replace(setup, told). */
export class Links {
  constructor(panel) {
    this.panel = panel;
    this.dialog = byId("preset");
    byId("preset-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.dialog.close();
      this.panel.replace(this.found, "The setup of the link is applied.");
    });
    this.dialog.addEventListener("close", () => {
      // The browser says later that it closed: another link may be there by then.
      if (location.hash === this.shown) history.replaceState(history.state, "", location.pathname + location.search);
    });
    addEventListener("hashchange", (event) => this.look(new URL(event.newURL).hash));
  }

  look(hash = location.hash) {
    this.found = null;
    let wrong = "";
    try {
      this.found = setupIn(hash);
      if (!this.found) return;
    } catch (error) {
      wrong = error.message;
    }
    this.shown = hash;
    if (this.found) this.found.model ||= this.panel.setup.model;
    const changes = this.found ? this.#changes() : [];
    byId("preset-wrong").textContent = wrong ? `The setup of this link cannot be used. ${wrong}` : "";
    byId("preset-why").textContent = changes.length ? "This link would change the setup of this lane. Apply it only if you trust whoever gave it to you." : "";
    if (!wrong && !changes.length) byId("preset-why").textContent = "The setup of this link is the one that you have.";
    byId("preset-approvals").hidden = !this.found?.servers.some(({ on }) => on);
    byId("preset-apply").hidden = !changes.length;
    byId("preset-changes").replaceChildren(...changes.flatMap(([name, now, then]) => [h("dt", {}, LABELS[name]), h("dd", {}, part("Now", now), part("Then", then))]));
    if (!this.dialog.open) this.dialog.showModal();
  }

  #changes() {
    const now = this.panel.setup;
    return Object.keys(CHECKS)
      .filter((name) => !isSame(now[name], this.found[name]) && !(name === "schema" && this.found.format !== "json_schema"))
      .map((name) => [name, now[name], this.found[name]]);
  }
}

/** Return one side of a change; signs that cannot be seen are written out. */
function part(title, value) {
  const isEmpty = value === "" || (typeof value === "object" && !Object.keys(value).length);
  const text = laidOutExactly(isText(value) ? value : JSON.stringify(value));
  return h("div", {}, h("small", {}, title), h("pre", { tabindex: "0", "aria-label": title }, isEmpty ? "nothing, as the server does by default" : text));
}

const isSame = (one, other) => JSON.stringify(one) === JSON.stringify(other);

function encoded(text) {
  const bytes = new TextEncoder().encode(text);
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join("")).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/u, "");
}

function decoded(text) {
  const bytes = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  return new TextDecoder("utf-8", { fatal: true }).decode(Uint8Array.from(bytes, (each) => each.charCodeAt(0)));
}
