// What a lane sends, one turn after the other: it waits where there is no connection, and nothing is ever sent twice.

import { say } from "./dom.js";
import { find } from "./following.js";
import { requestOf, usersOf } from "./request.js";
import { RUNS, Turn } from "./turn.js";

const MOST_METADATA = 16; // pairs that a request may have

/** The turns of a lane that are not sent yet, and those whose connection broke. */
export class Outbox {
  waiting = []; // in their order
  cut = []; // were sent, and may have run: they are looked for, never sent again by themselves

  constructor(lane) {
    this.lane = lane;
  }

  /** Take a turn that is to be sent: behind the others, or before them. */
  add(turn, { first = false } = {}) {
    turn.status = "unsent";
    if (first) this.waiting.unshift(turn);
    else this.waiting.push(turn);
    this.next();
  }

  /** Send the first of the turns that wait, if it can be sent now. */
  next() {
    const [turn] = this.waiting;
    if (!turn || this.#isLeft) return;
    const why = this.#obstacle(turn) ?? (this.#post(turn) ? null : { text: "Waiting for the connection" });
    if (why) turn.hold(why);
    for (const each of this.waiting) if (each !== turn) each.hold({ text: "Waits for the message before it" });
    this.lane.composer.refresh();
  }

  /** Whether the lane was cleared: nothing is sent then, nor shown, unless that is undone. */
  get #isLeft() {
    return this.lane.outbox !== this;
  }

  #obstacle({ node, behind, input }) {
    const { lane } = this;
    if (this.cut.length) return { text: "Waiting for the connection" };
    const before = behind?.turn;
    if (lane.isBusy || (before && !before.isOver)) return { text: "Waits for the answer before it" };
    if (before && !before.isAlive && !before.hasOutput) return { text: "Waits, because the message before it failed", now: true };
    return lane.from(lane.tree.parentOf(node.id), input).owes ? { text: "Waits for your answer to the call above" } : null;
  }

  #post(turn) {
    const { lane } = this;
    const from = lane.from(lane.tree.parentOf(turn.node.id), turn.input);
    const { previous, said } = from;
    turn.inConversation = lane.head !== null && previous === lane.head;
    const before = turn.inConversation ? { conversation: lane.chat.id } : previous ? { previous_response_id: previous } : {};
    const frame = {
      type: "response.create",
      stream_id: lane.stream,
      ...placed(requestOf(lane.setup), { version_of: previous ? null : lane.root, said_behind: lane.unlinked(turn.node, from), made_in: "playground" }),
      input: [...said, ...turn.input],
      ...before,
      ...(turn.kind === "warm" ? { generate: false } : {}),
    };
    if (!lane.page.send(frame)) return false;
    this.waiting = this.waiting.filter((each) => each !== turn);
    if (!turn.inConversation && (previous === null ? lane.head : lane.members.has(previous))) {
      turn.note = "Outside of the conversation, which has one line only: it goes on as a chain of its own.";
    }
    turn.previous = previous;
    turn.sending(doing(frame.tools));
    lane.sending(turn);
    return true;
  }

  /** Send a turn although the one before it failed. */
  sendNow(turn) {
    turn.behind = null;
    this.next();
  }

  /** Do not send a turn. */
  drop(turn) {
    const { lane } = this;
    this.waiting = this.waiting.filter((each) => each !== turn);
    const parent = lane.tree.parentOf(turn.node.id);
    lane.tree.remove(turn.node.id);
    lane.show(lane.tree.get(lane.tip) ? lane.tip : lane.tree.leaf(parent));
    this.next();
  }

  /** Look for what was cut with the connection: it may have run to its end, or to a part. Then send what waits. */
  async look() {
    if (this.looks || this.#isLeft) return;
    this.looks = true;
    const { lane } = this;
    try {
      while (this.cut.length) {
        const [turn] = this.cut;
        const isNew = (id) => !lane.tree.get(id);
        const found = await find(lane.page, turn, { chat: lane.chat?.id, previous: turn.previous, isNew });
        if (this.#isLeft) return; // cleared meanwhile
        this.cut.shift();
        if (found) this.#found(turn, found);
      }
    } catch (error) {
      say(error.message); // it is looked for again when the page is connected again
      return;
    } finally {
      this.looks = false;
    }
    this.next();
  }

  #found(turn, kept) {
    const { lane } = this;
    const { node, input, sentAt, firstAt, endedAt, thoughts } = turn;
    const isTip = lane.tip === node.id;
    lane.tree.rename(node.id, kept.id);
    if (RUNS.includes(kept.status)) {
      turn.goesOnElsewhere(kept);
      lane.give(node, turn);
    } else {
      const output = turn.hasMoreThan(kept.output) ? turn.carried : kept.output; // of what died with its worker
      lane.give(node, Turn.of({ ...kept, output, input, sentAt, firstAt, endedAt, thoughts }, lane.actions));
    }
    lane.show(isTip ? kept.id : lane.tip);
    lane.rest();
    lane.changed("ended");
  }
}

/** Return what the server does with these tools before a response begins, in words. */
function doing(tools = []) {
  const servers = tools.filter(({ type }) => type === "mcp").map(({ server_label: label }) => label);
  const prepares = tools.some(({ type }) => type === "code_interpreter") && "prepares the code interpreter";
  const all = [prepares, servers.length && `asks ${servers.join(", ")} for tools`].filter(Boolean);
  return all.length ? `Sent. The server ${all.join(" and ")}` : "Sent";
}

/** Return a request whose metadata says where it belongs, as far as there is room: names of `OF_PAGE`, null for none. */
function placed({ metadata, ...request }, places) {
  const told = usersOf(metadata ?? {});
  for (const [name, id] of Object.entries(places)) if (id && Object.keys(told).length < MOST_METADATA) told[name] = id;
  return Object.keys(told).length ? { ...request, metadata: told } : request;
}
