// What openai-node has beside responses: chats whole, streamed, parsed and in a tool loop; text, embeddings, models.
// node chat.mjs PACKAGE BASE_URL
const [name, baseURL] = process.argv.slice(2);
const { default: OpenAI } = await import(name);
const { zodResponseFormat } = await import(`${name}/helpers/zod`);
const { z } = await import("zod");

const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const model = "demo";
const chat = (content, fields) => ({ model, messages: [{ role: "user", content }], ...fields });

const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const forecast = {
  name: "forecast",
  description: "Tell tomorrow's weather of a city.",
  parameters,
  parse: JSON.parse,
  function: ({ city }) => `rain in ${city}`,
};
const loop = (stream) =>
  client.chat.completions.runTools(chat("call forecast for Paris", { tools: [{ type: "function", function: forecast }], stream }));

const whole = await client.chat.completions.create(chat("count to 5"));

const stream = client.chat.completions.stream(chat("count to 5", { stream_options: { include_usage: true } }));
let deltas = 0;
let reasoning = "";
stream.on("content", () => (deltas += 1));
stream.on("chunk", ({ choices }) => (reasoning += choices[0]?.delta.reasoning ?? ""));
const streamed = await stream.finalChatCompletion();

const Trip = z.object({ city: z.string(), days: z.number().int() });
const parsed = await client.chat.completions.parse(
  chat("Plan 3 days in Paris", { response_format: zodResponseFormat(Trip, "trip") }),
);

const stored = await client.chat.completions.create(chat("count to 2", { store: true, metadata: { from: name } }));
const kept = [];
for await (const each of client.chat.completions.list({ metadata: { from: name } })) kept.push(each.id);
const asked = await client.chat.completions.messages.list(stored.id);
const changed = await client.chat.completions.update(stored.id, { metadata: { from: "nobody" } });
const read = await client.chat.completions.retrieve(stored.id);
const { deleted } = await client.chat.completions.delete(stored.id);

const counting = { model, prompt: "count to 3", max_tokens: 20 };
const text = await client.completions.create(counting);
let textStreamed = "";
for await (const { choices } of await client.completions.create({ ...counting, stream: true })) {
  textStreamed += choices[0].text;
}
const embedding = { model: "hashing-256", input: ["Paris", "rail"] };
const asBase64 = await client.embeddings.create(embedding); // which openai-node asks for by itself
const asFloats = await client.embeddings.create({ ...embedding, encoding_format: "float", dimensions: 64 });
const models = await client.models.list();

console.log(
  JSON.stringify({
    whole: whole.choices[0].message,
    streamed: streamed.choices[0].message.content,
    deltas,
    reasoning,
    used: [whole, streamed].map(({ usage }) => usage.total_tokens),
    loops: [await loop(false).finalContent(), await loop(true).finalContent()],
    parsed: parsed.choices[0].message.parsed,
    stored: [kept.includes(stored.id), asked.data[0].content, changed.metadata, read.choices[0].message.content, deleted],
    texts: [text.choices[0].text, textStreamed],
    dimensions: [asBase64, asFloats].map(({ data }) => data.map((each) => each.embedding.length)),
    models: models.data.map(({ id }) => id),
    retrieved: (await client.models.retrieve(model)).id,
  }),
);
