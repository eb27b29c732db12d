// Who asks: nobody is asked, a user of the admin has signed in, or there is a key. A key stays in this tab.

import { saveAs } from "./dom.js";
import { ofTab } from "./storage.js";

const KEY = "respsite.key";
const PROJECT = "respsite.project";
export const SESSION_HEADER = "Respsite-Session";

/** How this page comes in. `facts` are the server's: `door` is open, session or key. */
class Door {
  constructor(facts) {
    this.facts = facts;
    this.key = ofTab.get(KEY) ?? "";
  }

  /** Whether a key or a user is needed, and there is none. */
  get isShut() {
    return this.facts.door === "key" && !this.key;
  }

  /** The project that a superuser has chosen. */
  get project() {
    const chosen = ofTab.get(PROJECT);
    return this.facts.projects?.includes(chosen) ? chosen : (this.facts.projects?.[0] ?? "");
  }

  choose(project) {
    ofTab.put(PROJECT, project);
  }

  keep(key) {
    this.key = key;
    if (key) ofTab.put(KEY, key);
    else ofTab.drop(KEY);
  }

  /** The subprotocols that say who asks: browsers cannot set headers of a WebSocket. */
  subprotocols() {
    if (this.key) return [`openai-insecure-api-key.${this.key}`];
    return this.facts.door === "session" ? [`respsite-session.${this.project}`] : [];
  }

  headers() {
    if (this.key) return { Authorization: `Bearer ${this.key}` };
    return this.facts.door === "session" ? { [SESSION_HEADER]: this.project } : {};
  }

  /** Ask a path of the API; return its JSON. `how` is that of `answer`. Throws an `Error` that says what to do. */
  async ask(path, how) {
    return (await this.answer(path, how)).json();
  }

  /** Ask a path of the API, with a body of `json` where there is one; return its answer. Throws as `ask` does. */
  async answer(path, { json, ...how } = {}) {
    const sent = json === undefined ? {} : { body: JSON.stringify(json) };
    const headers = { ...this.headers(), ...(json === undefined ? {} : { "Content-Type": "application/json" }) };
    let answer;
    try {
      answer = await fetch(path, { ...how, ...sent, headers, credentials: "same-origin" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw unreachable();
    }
    if (answer.ok) return answer;
    const body = await answer.json().catch((error) => {
      if (error.name === "AbortError") throw error;
      return {};
    });
    throw refusal(answer.status, body);
  }

  /** Send a form; return the answer's JSON. `progress(bytes)` hears how much has gone. Throws as `ask` does. */
  send(path, form, { progress, signal }) {
    return new Promise((resolve, reject) => {
      const request = new XMLHttpRequest(); // fetch does not tell how much has gone
      request.open("POST", path);
      request.responseType = "json";
      for (const [name, value] of Object.entries(this.headers())) request.setRequestHeader(name, value);
      request.upload.onprogress = ({ loaded }) => progress(loaded);
      request.onload = () => (request.status < 300 ? resolve(request.response) : reject(refusal(request.status, request.response)));
      request.onerror = () => reject(unreachable());
      request.onabort = () => reject(Object.assign(new Error("It was cancelled."), { cancelled: true }));
      signal.addEventListener("abort", () => request.abort(), { once: true });
      request.send(form);
    });
  }

  /** Have the browser keep what a path of the API gives, as a file of this name. Throws as `ask` does. */
  async download(path, name) {
    saveAs(name, await (await this.answer(path)).blob());
  }

  /** Find out why a WebSocket was refused, which browsers do not tell. */
  async why() {
    try {
      await this.ask("/v1/models");
      return { message: "The server refused the connection." };
    } catch (error) {
      return { message: error.message, status: error.status, final: error.status === 401 || error.status === 403 };
    }
  }
}

const unreachable = () => Object.assign(new Error("The server cannot be reached. Is it running?"), { status: 0 });

const refusal = (status, body) =>
  Object.assign(new Error(body?.error?.message ?? `The server answered ${status}.`), { status, code: body?.error?.code });

export const facts = JSON.parse(document.body.dataset.facts); // the server's, which the page carries
export const door = new Door(facts); // the page's only one
