// Whether the AI SDK's schemas (Zod) take items of a response: each in an answer of its own, and in a stream's events.
// node schemas.mjs ITEMS.json
// Prints {"refused": [[type, way, what the SDK says], …], "read": how many answers it took}.
import { readFileSync } from "node:fs";
import { createOpenAI } from "@ai-sdk/openai";

const items = JSON.parse(readFileSync(process.argv[2], "utf8"));
const prompt = [{ role: "user", content: [{ type: "text", text: "hi" }] }];
const usage = { input_tokens: 1, output_tokens: 1 };
const response = { id: "resp_1", created_at: 1, model: "demo", error: null, incomplete_details: null, usage };
const answering = (type, body) =>
  createOpenAI({ apiKey: "none", fetch: async () => new Response(body, { headers: { "content-type": type } }) })
    .responses("demo");
const refused = [];
let read = 0;

async function whole(item) {
  const { content } = await answering("application/json", JSON.stringify({ ...response, output: [item] }))
    .doGenerate({ prompt });
  return content;
}

async function streamed(item) {
  const kind = item.status === "in_progress" ? "added" : "done";
  const events = [
    { type: "response.created", response },
    { type: `response.output_item.${kind}`, output_index: 0, item },
    { type: "response.completed", response },
  ];
  const body = events.map((event) => `data: ${JSON.stringify(event)}\n\n`).join("");
  const { stream } = await answering("text/event-stream", body).doStream({ prompt });
  for await (const part of stream) if (part.type === "error") throw part.error;
}

for (const item of items) {
  for (const way of item.status === "in_progress" ? [streamed] : [whole, streamed]) {
    try {
      await way(item);
      read += 1;
    } catch (error) {
      refused.push([item.type, way.name, String(error.cause ?? error).slice(0, 2000)]);
    }
  }
}
console.log(JSON.stringify({ refused, read }));
