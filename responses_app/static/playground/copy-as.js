// What is set up now, as code for somewhere else. No key is in it: it is read from the environment.

import { byId, copy } from "./dom.js";
import { imagesOf, requestOf, textOf } from "./request.js";
import { tabs } from "./tabs.js";

const KEY = "RESPSITE_API_KEY";
const HINTS = {
  python: "Needs pip install openai.",
  node: "Needs npm install openai.",
  curl: "Streams server-sent events.",
  codex: "Goes into ~/.codex/config.toml. Codex brings instructions and tools of its own.",
};

const LONGEST_URL = 200; // characters of an image that stand in the code
const CUT = "Images are shortened: put the rest of the data URL in place of each …, or the address of an image.";

/** The dialog; `current()` returns {setup, asked, base, needsKey} of what is to be copied; `asked` may be missing. */
export class CopyAs {
  constructor(current) {
    this.current = current;
    this.kind = "python";
    const buttons = [...byId("copy").querySelectorAll("[data-as]")];
    this.tabs = tabs(buttons, (tab) => this.#show(tab.dataset.as));
    byId("copy-now").addEventListener("click", (event) => copy(byId("copy-text").textContent, event.target));
  }

  open() {
    this.#show(this.kind);
    byId("copy").showModal();
  }

  #show(kind) {
    this.kind = kind;
    const current = this.current();
    const text = snippet(kind, current);
    byId("copy-text").textContent = text;
    byId("copy-text").setAttribute("aria-labelledby", `copy-${kind}`);
    const key = current.needsKey ? `Set ${KEY} to your key.` : "";
    const cut = kind !== "codex" && imagesOf(current.asked ?? {}).some((url) => shortened(url) !== url) ? CUT : "";
    byId("copy-hint").textContent = [HINTS[kind], key, cut].filter(Boolean).join(" ");
  }
}

/** Return code of one kind. */
export function snippet(kind, { setup, asked, base, needsKey }) {
  const request = withoutSecrets({ ...requestOf(setup), input: inputOf(asked) });
  return { python, node, curl, codex }[kind](request, base, needsKey);
}

function inputOf(asked = "") {
  if (!imagesOf(asked).length) return textOf(asked) || "Hello";
  const content = asked.content.map((part) => (part.image_url ? { ...part, image_url: shortened(part.image_url) } : part));
  return [{ role: "user", content }];
}

const shortened = (url) => (url.length > LONGEST_URL ? `${url.slice(0, 60)}…` : url);

function withoutSecrets({ tools, ...request }) {
  if (!tools) return request;
  return { ...request, tools: tools.map(({ authorization, headers, ...tool }) => tool) };
}

function python(request, base, needsKey) {
  const fields = Object.entries(request).map(([name, value]) => `    ${name}=${pythonValue(value, 1)},\n`);
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
  const effort = request.reasoning?.effort;
  return `model = ${JSON.stringify(request.model ?? "")}
model_provider = "respsite"
${effort ? `model_reasoning_effort = "${effort}"\n` : ""}
[model_providers.respsite]
name = "respsite"
base_url = "${base}"
wire_api = "responses"
supports_websockets = true
${needsKey ? `env_key = "${KEY}"\n` : ""}`;
}
