// The WebSocket of the API: opened, kept open, and told what becomes of it.

const FIRST_WAIT = 500;
const LONGEST_WAIT = 15_000;
const MAX_TRIES = 8;
const NAME = "respsite-playground"; // a harmless subprotocol, so that the server answers with this one

/** One connection at a time. `state` events tell what it does, `frame` events bring what it reads and writes. */
export class Connection extends EventTarget {
  #socket = null;
  #timer = 0;
  #tries = 0;

  /** `credentials()` returns what goes into the subprotocols; `why()` finds out why the server lets nobody in. */
  constructor(url, credentials, why) {
    super();
    this.url = url;
    this.credentials = credentials;
    this.why = why;
    this.state = "idle";
  }

  /** Open it, now. */
  open() {
    clearTimeout(this.#timer);
    this.#leave();
    this.#tell("connecting");
    const socket = (this.#socket = new WebSocket(this.url, [NAME, ...this.credentials()]));
    let opened = false;
    socket.onopen = () => {
      opened = true;
      this.#tell("open");
    };
    socket.onmessage = (message) => {
      this.#tries = 0;
      this.#heard(message.data);
    };
    socket.onclose = (closed) => this.#closed(socket, closed, opened);
  }

  /** Send a frame; return whether it could be sent. */
  send(frame) {
    if (this.state !== "open") return false;
    const text = JSON.stringify(frame);
    this.#socket.send(text);
    this.#note("out", text, frame);
    return true;
  }

  #leave() {
    const socket = this.#socket;
    this.#socket = null;
    if (socket) {
      socket.onopen = socket.onmessage = socket.onclose = null;
      socket.close();
      this.dispatchEvent(new CustomEvent("lost"));
    }
  }

  #heard(text) {
    let frame;
    try {
      frame = JSON.parse(text);
    } catch {
      frame = { type: "(not JSON)" };
    }
    this.#note("in", text, frame);
  }

  #note(direction, text, frame) {
    this.dispatchEvent(new CustomEvent("frame", { detail: { direction, text, frame, at: performance.now() } }));
  }

  async #closed(socket, closed, opened) {
    if (socket !== this.#socket) return;
    this.#socket = null;
    this.dispatchEvent(new CustomEvent("lost"));
    const refused = opened ? null : await this.why();
    if (this.#socket) return; // opened anew meanwhile
    if (refused?.final) {
      this.#tell("closed", refused);
    } else if (++this.#tries > MAX_TRIES) {
      this.#tell("closed", { message: refused?.message ?? `The server closed the connection (code ${closed.code}).` });
    } else {
      const wait = Math.min(FIRST_WAIT * 2 ** (this.#tries - 1), LONGEST_WAIT) * (0.8 + 0.4 * Math.random());
      this.#timer = setTimeout(() => this.open(), wait);
      this.#tell("waiting", { wait, message: refused?.message ?? `The connection closed (code ${closed.code}).` });
    }
  }

  #tell(state, detail = {}) {
    this.state = state;
    this.dispatchEvent(new CustomEvent("state", { detail: { state, ...detail } }));
  }
}
