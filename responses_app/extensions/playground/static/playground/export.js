// A conversation as something one keeps: Markdown to read, and JSON whose items can be the input of a request.

import { laidOutExactly } from "./dom.js";
import { imagesOf, textOf } from "./request.js";

const LONGEST_TITLE = 60; // characters that are made of what was said first
const LONGEST_NAME = 60; // of the name of a file
const ENDED = ["completed", "incomplete"]; // turns that the server goes on from

/**
 * Return what was said in a lane: {title, model, turns: [{id, stored, input, output, open}]}. A turn without an answer
 * is left out. `open` are the answers that its calls wait for: what was given so far, null for others, by call.
 */
export function transcriptOf(lane) {
  const turns = lane.turns
    .filter((turn) => turn.id && ENDED.includes(turn.status))
    .map((turn) => ({
      id: turn.id,
      stored: turn.stored !== false,
      input: turn.input.map(asItem),
      output: turn.output.filter(Boolean),
      open: turn.wentOn ? new Map() : (turn.required ?? new Map()),
    }));
  const asked = turns.flatMap(({ input }) => input).find((item) => item.role === "user");
  const words = asked ? textOf(asked).trim().replaceAll(/\s+/gu, " ") : "";
  return { title: lane.chat?.title || shortened(words, LONGEST_TITLE) || "Chat", model: lane.setup.model, turns };
}

const asItem = (item) => (typeof item === "string" ? { role: "user", content: item } : item);
const shortened = (text, most) => (text.length > most ? `${text.slice(0, most - 1).trimEnd()}…` : text);

/** Return all items of a transcript, in their order: they can be the `input` of a request. */
export const itemsOf = ({ turns }) => turns.flatMap(({ input, output }) => [...input, ...output]);

/** Return the name of a file for a title. */
export function fileName(title, ending) {
  const name = title.normalize("NFKC").toLowerCase().replaceAll(/[^\p{L}\p{N}]+/gu, "-").slice(0, LONGEST_NAME).replaceAll(/^-+|-+$/gu, "");
  return `${name || "chat"}.${ending}`;
}

/** Return a transcript as JSON. */
export const asJson = (transcript) => `${JSON.stringify({ title: transcript.title, model: transcript.model, items: itemsOf(transcript) }, null, 2)}\n`;

/** Return a transcript as Markdown. */
export function asMarkdown(transcript) {
  const parts = [`# ${transcript.title}`];
  let speaker = "";
  for (const item of itemsOf(transcript)) {
    const written = (WRITERS[item.type ?? "message"] ?? other)(item).filter(Boolean);
    const by = SPEAKERS[item.role] ?? (isAnswer(item) ? "You" : transcript.model || "Model");
    if (written.length && by !== speaker) parts.push(`## ${(speaker = by)}`);
    parts.push(...written);
  }
  return `${parts.join("\n\n")}\n`;
}

const SPEAKERS = { user: "You", system: "System", developer: "Developer" };
const isAnswer = ({ type }) => /_output$|_response$/u.test(type ?? "");

const WRITERS = {
  message: (item) => [...imagesOf(item).map(image), ...files(item), textOf(item).trim(), sources(item)],
  reasoning: ({ summary, content }) => [quoted([...(summary ?? []), ...(content ?? [])].map(({ text }) => text ?? "").join("\n\n"))],
  function_call: (item) => [`**Called** \`${item.name}\``, fenced(item.arguments, "json")],
  custom_tool_call: (item) => [`**Called** \`${item.name}\``, fenced(item.input)],
  function_call_output: ({ output }) => ["**Output**", fenced(output)],
  custom_tool_call_output: ({ output }) => ["**Output**", fenced(output)],
  mcp_list_tools: () => [],
  mcp_approval_request: (item) => [`**Approval wanted** for \`${item.server_label}.${item.name}\``, fenced(item.arguments, "json")],
  mcp_approval_response: ({ approve }) => [approve ? "**Approved**" : "**Denied**"],
  mcp_call: (item) => [`**Called** \`${item.server_label}.${item.name}\``, fenced(item.arguments, "json"), item.error ? fenced(item.error, "json") : fenced(item.output)],
  code_interpreter_call: ({ code, outputs }) => ["**Python**", fenced(code, "python"), ...(outputs ?? []).map(({ logs }) => (logs === undefined ? "*(a figure)*" : fenced(logs)))],
  web_search_call: ({ action = {} }) => [`**Web**: ${action.query ?? action.pattern ?? action.url ?? ""}`],
  file_search_call: ({ queries }) => [`**File search**: ${(queries ?? []).join(", ")}`],
  image_generation_call: (item) => [`**Image**: ${item.revised_prompt ?? item.id ?? ""}`],
};

const other = (item) => [`**${item.type}**`, fenced(item, "json")]; // an item of a kind that came later
const image = (url) => (url.startsWith("data:") ? "*(an image)*" : `![An image](<${url.replaceAll(/[<>\s]/gu, encodeURIComponent)}>)`);
const partsOf = ({ content }) => (Array.isArray(content) ? content : []);
const files = (item) => partsOf(item).filter(({ type }) => type === "input_file").map((part) => `*(a file: ${part.filename ?? part.file_url ?? part.file_id})*`);
const quoted = (text) => text.trim() && text.trim().replaceAll(/^/gmu, "> ");

function sources(item) {
  const cited = partsOf(item).flatMap(({ annotations }) => annotations ?? []);
  const names = new Map(cited.map(({ url, title, filename, file_id: id }) => [url ?? filename ?? id, title ?? filename ?? url ?? id]));
  const rows = [...names].map(([key, name], place) => `${place + 1}. ${/^https?:/u.test(key) ? `[${name}](<${key}>)` : name}`);
  return rows.length ? `Sources:\n\n${rows.join("\n")}` : "";
}

/** Return a text in a fence that it cannot close. */
function fenced(value, language = "") {
  if (value === undefined || value === null || value === "") return "";
  const given = typeof value === "string" ? value : JSON.stringify(value);
  const text = language === "json" ? laidOutExactly(given) : given;
  const longest = Math.max(2, ...[...text.matchAll(/`+/gu)].map(([run]) => run.length));
  const fence = "`".repeat(longest + 1);
  return `${fence}${language}\n${text}${text.endsWith("\n") ? "" : "\n"}${fence}`;
}
