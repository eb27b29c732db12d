// Every frame, as it came. Only the rows that are seen are elements, so ten thousand cost no more than thirty.

import { byId, bytes, copy, h, laidOut, saveAs, soon } from "./dom.js";

const MOST = 50_000; // frames that are kept; then the oldest go
const MOST_SHOWN = 100_000; // characters of a frame
const ROW = 26; // pixels, as in page.css
const AROUND = 6; // rows above and below those that are seen
const encoder = new TextEncoder();

/** The list of frames. */
export class Events {
  constructor() {
    this.list = byId("events-list");
    this.space = this.list.firstElementChild;
    this.frames = [];
    this.shown = this.frames; // those that the filter lets through
    this.dropped = 0;
    this.began = new Map(); // by lane: when its last request was sent
    this.chosen = null;
    this.rows = [];
    this.follows = true;
    this.filter = "";
    this.paint = () => this.#paint();
    this.list.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    this.list.addEventListener("keydown", (event) => this.#key(event));
    this.list.addEventListener("click", (event) => this.#click(event));
    new ResizeObserver(this.paint).observe(this.list);
    byId("events-filter").addEventListener("input", (event) => this.#filtered(event.target.value.trim()));
    byId("events-clear").addEventListener("click", () => this.clear());
    byId("events-save").addEventListener("click", () => this.#save());
    byId("frame-close").addEventListener("click", () => this.#choose(null));
    byId("frame-copy").addEventListener("click", (event) => copy(laidOut(this.chosen.text), event.target));
  }

  /** Take a frame. `at` is in milliseconds of the page's clock. */
  add({ direction, text, frame, at }) {
    const lane = frame.stream_id ?? "";
    if (direction === "out" && frame.type === "response.create") this.began.set(lane, at);
    const since = at - (this.began.get(lane) ?? at);
    const size = /^[\x00-\x7f]*$/u.test(text) ? text.length : encoder.encode(text).length;
    const made = { direction, text, type: String(frame.type), lane, since, size };
    this.frames.push(made);
    if (this.shown !== this.frames && this.#passes(made)) this.shown.push(made);
    if (this.frames.length > MOST + 1000) this.#drop();
    soon(this.paint);
  }

  #drop() {
    this.dropped += this.frames.length - MOST;
    this.frames.splice(0, this.frames.length - MOST);
    this.#filtered(this.filter);
  }

  clear() {
    this.frames = [];
    this.dropped = 0;
    this.#choose(null);
    this.#filtered(this.filter);
  }

  #passes(frame) {
    return frame.type.includes(this.filter) || frame.lane === this.filter;
  }

  #filtered(filter) {
    this.filter = filter;
    this.shown = filter ? this.frames.filter((frame) => this.#passes(frame)) : this.frames;
    this.follows = true;
    soon(this.paint);
  }

  #scrolled() {
    this.follows = this.list.scrollHeight - this.list.scrollTop - this.list.clientHeight < ROW * 2;
    soon(this.paint);
  }

  #paint() {
    const count = this.shown.length;
    byId("events-count").textContent = this.dropped ? `last ${count.toLocaleString("en")}` : count.toLocaleString("en");
    const seen = this.list.clientHeight;
    if (!seen) return; // the pane is closed
    const height = count * ROW;
    if (this.height !== height) this.space.style.height = `${(this.height = height)}px`;
    if (this.follows) this.list.scrollTop = height;
    const first = Math.max(0, Math.floor(this.list.scrollTop / ROW) - AROUND);
    const last = Math.min(count, Math.ceil((this.list.scrollTop + seen) / ROW) + AROUND);
    while (this.rows.length < last - first) this.#newRow();
    this.rows.forEach((row, place) => this.#fill(row, first + place < last ? first + place : -1));
  }

  #newRow() {
    const [time, size, way, type, lane] = ["time", "size", "way", "type", "of"].map((name) => h("span", { class: name }));
    const element = h("div", { class: "row", role: "option", id: `frame-${this.rows.length}` }, time, size, way, type, lane);
    this.rows.push({ element, time, size, way, type, lane, place: -2 });
    this.space.append(element);
  }

  #fill(row, place) {
    const frame = this.shown[place];
    const chosen = frame !== undefined && frame === this.chosen;
    if (row.frame === frame && row.place === place && row.chosen === chosen) return;
    Object.assign(row, { frame, place, chosen });
    row.element.hidden = !frame;
    if (!frame) return;
    row.element.style.transform = `translateY(${place * ROW}px)`;
    row.element.dataset.way = frame.direction;
    row.element.dataset.kind = kindOf(frame.type);
    row.element.setAttribute("aria-selected", String(chosen));
    row.element.setAttribute("aria-setsize", String(this.shown.length));
    row.element.setAttribute("aria-posinset", String(place + 1));
    row.time.textContent = since(frame.since);
    row.size.textContent = bytes(frame.size);
    row.way.textContent = frame.direction === "out" ? "↑" : "↓";
    row.type.textContent = frame.type.replace(/^response\./u, "");
    row.lane.textContent = frame.lane.replace(/^lane-/u, "");
    if (chosen) this.list.setAttribute("aria-activedescendant", row.element.id);
  }

  #click(event) {
    const row = this.rows.find(({ element }) => element.contains(event.target));
    if (row?.frame) this.#choose(row.place);
  }

  #key(event) {
    const here = this.chosen ? this.shown.indexOf(this.chosen) : -1;
    const page = Math.max(1, Math.floor(this.list.clientHeight / ROW) - 1);
    const end = this.shown.length - 1;
    const to = { ArrowDown: here + 1, ArrowUp: here < 0 ? end : here - 1, PageDown: here + page, PageUp: here - page, Home: 0, End: end }[event.key];
    if (to === undefined || end < 0) return;
    event.preventDefault();
    this.#choose(Math.max(0, Math.min(to, end)));
  }

  #choose(place) {
    this.chosen = place === null ? null : this.shown[place];
    byId("events-frame").hidden = !this.chosen;
    if (!this.chosen) {
      this.list.removeAttribute("aria-activedescendant");
    } else {
      byId("frame-title").textContent = this.chosen.type;
      const text = laidOut(this.chosen.text);
      byId("frame-text").textContent = text.length > MOST_SHOWN ? `${text.slice(0, MOST_SHOWN)}\n… (Copy has all of it)` : text;
      byId("frame-text").scrollTop = 0;
      this.follows = false;
      const top = place * ROW;
      const { scrollTop, clientHeight } = this.list;
      if (top < scrollTop) this.list.scrollTop = top;
      else if (top + ROW > scrollTop + clientHeight) this.list.scrollTop = top + ROW - clientHeight;
    }
    this.#paint();
  }

  #save() {
    const lines = this.frames.map(({ direction, since, text }) => `{"direction":"${direction}","ms":${since.toFixed(1)},"frame":${text}}\n`);
    saveAs("frames.jsonl", new Blob(lines, { type: "application/jsonl" }));
  }
}

const since = (ms) => (ms < 10_000 ? `${ms.toFixed(1)} ms` : `${(ms / 1000).toFixed(2)} s`);

function kindOf(type) {
  if (type === "error" || type.endsWith(".failed")) return "bad";
  if (type.endsWith(".delta")) return "delta";
  return /^response\.(created|completed|incomplete|create|steer|interrupt)/u.test(type) ? "mark" : "";
}
