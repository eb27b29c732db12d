// A conversation as code for somewhere else, which goes on where it stands; and as a file. No key is in it: code reads
// it from the environment.

import { byId, copy, saveAs } from "./dom.js";
import { asJson, asMarkdown, fileName, itemsOf, transcriptOf } from "./export.js";
import { imagesOf, requestOf, said, textOf, withoutAccess } from "./request.js";
import { tabs } from "./tabs.js";

const KEY = "RESPSITE_API_KEY";
const HINTS = {
  python: "Needs pip install openai.",
  node: "Needs npm install openai.",
  curl: "Streams server-sent events.",
  codex: "Goes into ~/.codex/config.toml. Codex brings instructions, functions and conversations of its own.",
  markdown: "To read. Images are left out.",
  json: "'items' can be the 'input' of a request, here or at another server.",
};
const ENDINGS = { python: "py", node: "mjs", curl: "sh", codex: "toml", markdown: "md", json: "json" };
const CODE = ["python", "node", "curl"];

const LONGEST_URL = 200; // characters of an image that stand in the code
const CUT = "Images are shortened: put the rest of the data URL in place of each …, or the address of an image. JSON has them whole.";
const TOKEN = "Access to MCP servers is left out: add it as 'authorization'.";
const GOES_ON = "Write the next message first to have it in the code.";

/** The dialog; `current()` returns {lane, base, needsKey} of what is to be copied. */
export class CopyAs {
  constructor(current) {
    this.current = current;
    this.kind = "python";
    const buttons = [...byId("copy").querySelectorAll("[data-as]")];
    this.tabs = tabs(buttons, (tab) => this.#show(tab.dataset.as));
    byId("copy-how").addEventListener("change", () => this.#show(this.kind));
    byId("copy-now").addEventListener("click", (event) => copy(this.text, event.target));
    byId("copy-save").addEventListener("click", () => saveAs(fileName(this.transcript.title, ENDINGS[this.kind]), new Blob([this.text], { type: "text/plain" })));
  }

  open() {
    const { lane } = this.current();
    this.transcript = transcriptOf(lane);
    const last = this.transcript.turns.at(-1);
    byId("copy-how").value = !last || last.stored ? "id" : "items";
    byId("copy-how").querySelector("[value=id]").disabled = !last?.stored;
    this.#show(this.kind);
    byId("copy").showModal();
  }

  #show(kind) {
    this.kind = kind;
    const current = this.current();
    const how = byId("copy-how").value;
    const isCode = CODE.includes(kind);
    const hints = [HINTS[kind], current.needsKey && (isCode || kind === "codex") ? `Set ${KEY} to your key.` : ""];
    byId("copy-way").hidden = !isCode || !this.transcript.turns.length;
    if (isCode) {
      const { request, next } = copied(current.lane, this.transcript, how);
      const shown = withShortImages(request);
      this.text = { python, node, curl }[kind](shown, current.base, current.needsKey);
      hints.push(next === "go on" ? GOES_ON : next === "answer" ? "Put the outputs of the calls in, and whether they are approved." : "");
      hints.push(JSON.stringify(shown) === JSON.stringify(request) ? "" : CUT);
    } else {
      this.text = { codex: () => codex(requestOf(current.lane.setup), current.base, current.needsKey), markdown: () => asMarkdown(this.transcript), json: () => asJson(this.transcript) }[kind]();
    }
    if (kind !== "markdown" && current.lane.setup.servers.some(({ on, authorization }) => on && authorization)) hints.push(TOKEN);
    byId("copy-text").textContent = this.text.length > MOST_SHOWN ? `${this.text.slice(0, MOST_SHOWN)}\n… and ${(this.text.length - MOST_SHOWN).toLocaleString("en")} more characters, which are copied, too` : this.text;
    byId("copy-text").setAttribute("aria-labelledby", `copy-${kind}`);
    byId("copy-hint").textContent = hints.filter(Boolean).join(" ");
  }
}

const MOST_SHOWN = 200_000; // characters of a text in the dialog

/**
 * Return the request that goes on with a conversation, and what its input is: "draft", "answer" where calls wait, or
 * "go on". `how`: "id" continues the stored response, "items" carries all items, "again" asks the last turn once more.
 */
export function copied(lane, transcript, how) {
  const { turns } = transcript;
  const isAgain = how === "again" && turns.length > 0;
  const before = isAgain ? turns.slice(0, -1) : turns;
  const last = before.at(-1);
  const byItsId = Boolean(last?.stored) && (how === "id" || isAgain);
  const { input, next } = isAgain ? { input: turns.at(-1).input, next: "draft" } : nextInput(lane.composer.draft, last);
  const { tools, ...request } = requestOf(lane.setup);
  const items = byItsId ? input : [...itemsOf({ turns: before }), ...input];
  return {
    next,
    request: {
      ...request,
      ...(tools ? { tools: tools.map(withoutAccess) } : {}),
      ...(byItsId ? { previous_response_id: last.id } : {}),
      input: plainly(items),
    },
  };
}

/** Return what comes next: the answers that calls wait for, and what is written. */
function nextInput(draft, last) {
  const waiting = last ? answersTo(last) : [];
  if (waiting.length) return { input: [...waiting, ...(draft ? [draft] : [])], next: "answer" };
  if (draft) return { input: [draft], next: "draft" };
  return { input: [said(last ? "Go on." : "Hello")], next: last ? "go on" : "draft" };
}

function answersTo({ output, open }) {
  const given = (id, answer) => open.get(id) ?? answer;
  return output
    .filter((item) => open.has(item.call_id ?? item.id))
    .map((item) => {
      if (item.type === "mcp_approval_request") return given(item.id, { type: "mcp_approval_response", approval_request_id: item.id, approve: false });
      const type = item.type === "custom_tool_call" ? "custom_tool_call_output" : "function_call_output";
      return given(item.call_id, { type, call_id: item.call_id, output: `What ${item.name} gives back` });
    });
}

/** Return the input as people write it: a text where it is one. */
function plainly(items) {
  const [item] = items;
  const isText = items.length === 1 && item.role === "user" && !imagesOf(item).length && (typeof item.content === "string" || item.content.every(({ type }) => type === "input_text"));
  return isText ? textOf(item) : items;
}

/** Return a request whose images as data are shortened: they would be most of the code. */
function withShortImages(value) {
  if (Array.isArray(value)) return value.map(withShortImages);
  if (typeof value === "string") return value.startsWith("data:") && value.length > LONGEST_URL ? `${value.slice(0, 60)}…` : value;
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, withShortImages(each)]));
}

// What the SDK for Python has a parameter for; other fields go into its `extra_body`.
const PARAMETERS = new Set(
  `background context_management conversation include input instructions max_output_tokens max_tool_calls metadata model
   parallel_tool_calls previous_response_id prompt_cache_key prompt_cache_retention reasoning safety_identifier
   service_tier store stream_options temperature text tool_choice tools top_logprobs top_p truncation user`.split(/\s+/u),
);

function python(request, base, needsKey) {
  const known = Object.entries(request).filter(([name]) => PARAMETERS.has(name));
  const others = Object.entries(request).filter(([name]) => !PARAMETERS.has(name));
  if (others.length) known.push(["extra_body", Object.fromEntries(others)]);
  const fields = known.map(([name, value]) => `    ${name}=${pythonValue(value, 1)},\n`);
  const key = needsKey ? `os.environ["${KEY}"]` : `os.environ.get("${KEY}", "none")`;
  return `import os

from openai import OpenAI

client = OpenAI(base_url="${base}", api_key=${key})
stream = client.responses.create(
${fields.join("")}    stream=True,
)
for event in stream:
    if event.type == "response.output_text.delta":
        print(event.delta, end="", flush=True)
print()
`;
}

function pythonValue(value, depth) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const pad = "    ".repeat(depth + 1);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const inner = Array.isArray(value)
    ? value.map((each) => pythonValue(each, depth + 1))
    : Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${pythonValue(each, depth + 1)}`);
  const line = inner.join(", ");
  if (line.length < 70 && !line.includes("\n")) return `${open}${line}${close}`;
  return `${open}\n${inner.map((each) => `${pad}${each},\n`).join("")}${"    ".repeat(depth)}${close}`;
}

function node(request, base, needsKey) {
  const key = needsKey ? `process.env.${KEY}` : `process.env.${KEY} ?? "none"`;
  const body = JSON.stringify({ ...request, stream: true }, null, 2).replace(/^(\s*)"([A-Za-z_]\w*)":/gmu, "$1$2:");
  return `import OpenAI from "openai";

const client = new OpenAI({ baseURL: "${base}", apiKey: ${key} });
const stream = await client.responses.create(${body});
for await (const event of stream) {
  if (event.type === "response.output_text.delta") process.stdout.write(event.delta);
}
console.log();
`;
}

function curl(request, base, needsKey) {
  const body = JSON.stringify({ ...request, stream: true }, null, 2).replaceAll("'", "'\\''");
  const key = needsKey ? `  -H "Authorization: Bearer $${KEY}" \\\n` : "";
  return `curl --no-buffer ${base}/responses \\\n  -H "Content-Type: application/json" \\\n${key}  -d '${body}'\n`;
}

function codex(request, base, needsKey) {
  const { effort } = request.reasoning ?? {};
  const servers = (request.tools ?? []).map(withoutAccess).filter(({ type, server_url: url }) => type === "mcp" && url);
  return `model = ${JSON.stringify(request.model ?? "")}
model_provider = "respsite"
${effort ? `model_reasoning_effort = "${effort}"\n` : ""}
[model_providers.respsite]
name = "respsite"
base_url = "${base}"
wire_api = "responses"
supports_websockets = true
${needsKey ? `env_key = "${KEY}"\n` : ""}${servers.map(({ server_label: label, server_url: url }) => `\n[mcp_servers.${label}]\nurl = ${JSON.stringify(url)}\n`).join("")}`;
}
