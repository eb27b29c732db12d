// The WebSocket of the API: opened, kept open, and told what becomes of it. Where none gets through, HTTP takes its place.

const FIRST_WAIT = 500;
const LONGEST_WAIT = 15_000;
const MAX_TRIES = 8;
const REFUSED_TRIES = 3; // handshakes in a row that fail while the API answers
const OVER_HTTP =
  "No WebSocket gets through to the server: a proxy in front drops the header Upgrade, or the server does not know this address as its own (its operator sets BEHIND_PROXY and CSRF_TRUSTED_ORIGINS). Answers come over HTTP instead; only steering needs a WebSocket.";
const NAME = "respsite-playground"; // a harmless subprotocol, so that the server answers with this one

/** One connection at a time. `state` events tell what it does, `frame` events bring what it reads and writes. */
export class Connection extends EventTarget {
  #socket = null;
  #newest = null; // the socket that was made last, open or not
  #timer = 0;
  #tries = 0;
  #refusals = 0;
  #streams = null;

  /**
   * `credentials()` returns what goes into the subprotocols; `why()` finds out why the server lets nobody in;
   * `makeStreams({take, lost})` returns what sends frames over HTTP.
   */
  constructor(url, credentials, why, makeStreams) {
    super();
    this.url = url;
    this.credentials = credentials;
    this.why = why;
    this.makeStreams = makeStreams;
    this.state = "idle";
  }

  /** Open it, now. */
  open() {
    clearTimeout(this.#timer);
    this.#leave();
    this.#tell("connecting");
    const socket = (this.#socket = this.#newest = new WebSocket(this.url, [NAME, ...this.credentials()]));
    let opened = false;
    socket.onopen = () => {
      opened = true;
      this.#refusals = 0;
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
    this.#note("out", text, frame);
    if (this.#streams) this.#streams.send(frame);
    else this.#socket.send(text);
    return true;
  }

  #leave() {
    const socket = this.#socket;
    this.#socket = null;
    if (this.#streams) this.#endStreams();
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
    if (this.#newest !== socket) return; // opened anew meanwhile, and perhaps closed again
    this.#refusals = refused && refused.status === undefined ? this.#refusals + 1 : 0;
    if (refused?.final) {
      this.#tell("closed", refused);
    } else if (this.#refusals >= REFUSED_TRIES) {
      this.#goOverHttp();
    } else if (++this.#tries > MAX_TRIES) {
      this.#tell("closed", { message: refused?.message ?? `The server closed the connection (code ${closed.code}).` });
    } else {
      this.#wait(refused?.message ?? `The connection closed (code ${closed.code}).`);
    }
  }

  #wait(message) {
    const wait = Math.min(FIRST_WAIT * 2 ** (this.#tries - 1), LONGEST_WAIT) * (0.8 + 0.4 * Math.random());
    this.#timer = setTimeout(() => this.open(), wait);
    this.#tell("waiting", { wait, message });
  }

  #goOverHttp() {
    this.#streams = this.makeStreams({
      take: (frame) => {
        this.#tries = 0;
        this.#note("in", JSON.stringify(frame), frame);
      },
      lost: (message) => {
        this.#endStreams();
        this.#tries += 1;
        this.#refusals = REFUSED_TRIES - 1; // a WebSocket is tried once, then it is HTTP again
        this.#wait(message);
      },
    });
    this.#tell("open", { message: OVER_HTTP });
  }

  #endStreams() {
    const streams = this.#streams;
    this.#streams = null;
    streams.end();
    this.dispatchEvent(new CustomEvent("lost"));
  }

  #tell(state, detail = {}) {
    this.state = state;
    this.dispatchEvent(new CustomEvent("state", { detail: { state, ...detail } }));
  }
}
