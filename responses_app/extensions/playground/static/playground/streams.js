// Answers over HTTP, where no WebSocket gets through: frames go in and come out as on one.

import { eventsOf } from "./following.js";
import { isTerminal } from "./turn.js";

const RESPONSES = "/v1/responses";
const NO_STEERING = { code: "steering_not_supported", message: "Without a WebSocket nothing can be added while it answers: send this behind the answer." };

/** `door` asks the server, `take(frame)` gets what comes, `lost(message)` hears that the server cannot be reached. */
export class Streams {
  #runs = new Set(); // what was sent and has not ended: {stream, id, controller}

  constructor(door, { take, lost }) {
    Object.assign(this, { door, take, lost });
  }

  /** Take a frame that a WebSocket would have taken. */
  send(frame) {
    if (frame.type === "response.create") this.#create(frame);
    else if (frame.type === "response.interrupt") this.#interrupt(frame.response_id);
    else if (frame.type === "response.steer") this.#refuse(frame);
  }

  /** Let go of all that runs; nothing of it comes any more. */
  end() {
    for (const run of this.#runs) this.#drop(run);
  }

  async #create({ type: _, stream_id: stream, ...request }) {
    const run = { stream, id: "", controller: new AbortController() };
    this.#runs.add(run);
    try {
      const answer = await this.door.answer(RESPONSES, { method: "POST", json: { ...request, stream: true }, signal: run.controller.signal });
      for await (const event of eventsOf(answer)) if (this.#runs.has(run)) this.#came(run, event);
      if (this.#runs.has(run)) throw new Error("The stream was cut."); // before the last event
    } catch (error) {
      if (!this.#runs.delete(run)) return; // dropped here
      if (error.status) this.take({ type: "error", stream_id: stream, status: error.status, error: { code: error.code, message: error.message } });
      else this.lost(error.message);
    }
  }

  #came(run, event) {
    if (event.type === "response.created") run.id = event.response.id;
    if (isTerminal(event)) this.#runs.delete(run);
    this.take({ ...event, stream_id: run.stream });
  }

  #drop(run) {
    this.#runs.delete(run);
    run.controller.abort();
  }

  /** Stop a response: the server ends what its client leaves. */
  #interrupt(id) {
    const run = [...this.#runs].find((each) => each.id === id);
    if (!run) return;
    this.#drop(run);
    this.#answer({ type: "response.incomplete", stream_id: run.stream, response: { id, status: "cancelled" } });
  }

  #refuse({ previous_response_id: id, input }) {
    const run = [...this.#runs].find((each) => each.id === id);
    this.#answer({ type: "response.steer.failed", stream_id: run?.stream, error: NO_STEERING, steer: { previous_response_id: id, input } });
  }

  /** Answer as a server would: not before the sender goes on. */
  #answer(frame) {
    queueMicrotask(() => this.take(frame));
  }
}
