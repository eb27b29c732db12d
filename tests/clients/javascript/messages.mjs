// Anthropic's JavaScript SDK: messages whole, streamed, with thoughts and a tool loop; counts, models and errors.
// node messages.mjs SERVER_URL
import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { z } from "zod";

const [baseURL] = process.argv.slice(2);
const client = new Anthropic({ baseURL, apiKey: "none", maxRetries: 0 });
const model = "demo";
const ask = (content, fields) => ({ model, max_tokens: 2000, messages: [{ role: "user", content }], ...fields });
const thinking = { type: "adaptive" };
const forecast = {
  name: "forecast",
  description: "Tell tomorrow's weather of a city.",
  input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
};

const whole = await client.messages.create(ask("count to 5"));

let texts = 0;
let thoughts = "";
const stream = client.messages.stream(ask("count to 5", { thinking }));
stream.on("text", () => (texts += 1));
stream.on("thinking", (delta) => (thoughts += delta));
const streamed = await stream.finalMessage();

const loop = ask("call forecast for Paris", { tools: [forecast], thinking });
const called = await client.messages.stream(loop).finalMessage();
const call = called.content.find(({ type }) => type === "tool_use");
const png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
const result = {
  type: "tool_result",
  tool_use_id: call.id,
  content: [
    { type: "text", text: `rain in ${call.input.city}` },
    { type: "image", source: { type: "base64", media_type: "image/png", data: png } },
  ],
};
loop.messages.push({ role: "assistant", content: called.content }, { role: "user", content: [result] });
const answered = await client.messages.create(loop);

const runnable = betaZodTool({
  name: "forecast",
  description: forecast.description,
  inputSchema: z.object({ city: z.string() }),
  run: ({ city }) => `rain in ${city}`,
});
const ran = await client.beta.messages.toolRunner(ask("call forecast for Paris", { tools: [runnable] }));

const warmed = await client.messages.create(ask("hi", { max_tokens: 0 }));

const refusal = async (fields) => {
  try {
    await client.messages.create(ask("hi", fields));
  } catch (error) {
    return [error.constructor.name, error.status, error.error.error.type, Boolean(error.requestID)];
  }
};
const forged = { type: "thinking", thinking: "t", signature: "forged" };
const models = [];
for await (const each of client.models.list()) models.push(each.id);

console.log(
  JSON.stringify({
    whole: [whole.content, whole.stop_reason],
    streamed: [streamed.content.map(({ type }) => type), texts > 1, thoughts === streamed.content[0].thinking],
    signed: streamed.content[0].signature.length > 50,
    called: [called.stop_reason, call.name, call.input],
    answered: answered.content.at(-1).text,
    ran: ran.content.at(-1).text,
    warmed: [warmed.content, warmed.stop_reason],
    counted: (await client.messages.countTokens({ model, messages: loop.messages.slice(0, 1) })).input_tokens > 10,
    models: [models, (await client.models.retrieve(model)).type],
    refused: [
      await refusal({ model: "nobody" }),
      await refusal({ max_tokens: -1 }),
      await refusal({ messages: [{ role: "assistant", content: [forged] }, { role: "user", content: "hi" }] }),
    ],
  }),
);
