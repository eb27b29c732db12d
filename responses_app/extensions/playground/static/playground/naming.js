// A title by the model: a request that is not stored reads the beginning of the chat.

import { textOf } from "./request.js";

const MOST_WORDS = 6;
const MOST_READ = 4_000; // characters of the chat
const MOST_TOKENS = 1_000; // a model that thinks needs some for that
const ASKED =
  "You are given a conversation. Write a title for it: at most six words, in the language of the conversation. " +
  "Answer with the title alone: no quotation marks, no full stop.";

/** Return a title for a chat, with its turns; throws an `Error` where the model gives none. */
export async function nameFor(chat, door) {
  const said = chat.turns.flatMap(({ input, output }) => [...input, ...output]).filter((item) => item.role === "user" || item.role === "assistant");
  const text = said.map((item) => `${item.role}: ${textOf(item)}`).join("\n\n").slice(0, MOST_READ);
  const body = { model: chat.model, instructions: ASKED, input: text, max_output_tokens: MOST_TOKENS, store: false };
  const { output } = await door.ask("/v1/responses", { method: "POST", json: body });
  const title = titleIn(output.filter(({ type }) => type === "message").map(textOf).join(" "));
  if (!title) throw new Error("it answered without a title.");
  return title;
}

const titleIn = (text) =>
  text
    .trim()
    .replaceAll(/^["'“”«»*#\s]+|["'“”«»*.\s]+$/gu, "")
    .split(/\s+/u)
    .slice(0, MOST_WORDS)
    .join(" ");
