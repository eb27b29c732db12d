// Responses that the server keeps: one that still runs is followed, one whose connection broke is looked for.

import { textOf } from "./request.js";

const CHATS = "/v1/playground/chats";
const LOOKED_AT = 5; // chats, the newest, in which a first message is looked for
const EARLIER = 60; // seconds by which the server's clock may be behind this one

/** Read the events of a stored response, from the first to the last one it will have; `take(event)` gets each. */
export async function follow(page, id, take) {
  for await (const event of eventsOf(await page.answer(`/v1/responses/${encodeURIComponent(id)}?stream=true`))) take(event);
}

/** The events of a stream, as they come. Throws where it is cut. */
export async function* eventsOf(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = `${rest}${value}`.split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const line = event.split("\n").find((each) => each.startsWith("data: {"));
      if (line) yield JSON.parse(line.slice("data: ".length));
    }
  }
}

/**
 * Return what the server keeps of a turn whose connection broke; null where it keeps nothing. `chat` is the chat's id, if
 * it has one by now; `isNew(id)` says that the page does not know a response. Throws where the server cannot be asked.
 */
export async function find(page, turn, { chat, previous, isNew }) {
  if (turn.id) return orNull(page.ask(`/v1/responses/${encodeURIComponent(turn.id)}`));
  const turns = chat ? (await chatOf(page, chat))?.turns ?? [] : await firstTurns(page, turn);
  const said = textOfAll(turn.input);
  const saidIn = ({ input }) => textOfAll(input.slice(Math.max(0, input.length - turn.input.length))); // behind what it repeats
  return turns.findLast((each) => isNew(each.id) && (each.previous_response_id ?? null) === previous && saidIn(each) === said) ?? null;
}

async function firstTurns(page, turn) {
  const list = await orNull(page.ask(`${CHATS}?made_in=playground&limit=${LOOKED_AT}`));
  const since = turn.sentOn / 1000 - EARLIER;
  const recent = (list?.data ?? []).filter(({ created_at }) => created_at >= since);
  const chats = await Promise.all(recent.map(({ id }) => chatOf(page, id)));
  return chats.flatMap((each) => each?.turns.slice(0, 1) ?? []);
}

const chatOf = (page, id) => orNull(page.ask(`${CHATS}/${encodeURIComponent(id)}`));

const textOfAll = (input) => input.map((item) => (item.output === undefined ? textOf(item) : JSON.stringify(item.output))).join("\n");

/** What is not there is null; every other failure is the caller's. */
async function orNull(asked) {
  try {
    return await asked;
  } catch (error) {
    if (error.status === 404) return null;
    throw error;
  }
}
