// What the JavaScript SDKs raise for a key, over a way of each: what they said, or the error, one for each way.
// node keys.mjs BASE_URL KEY MAX_RETRIES
import { Agent, OpenAIProvider, Runner } from "@openai/agents";
import OpenAI from "openai";

const [baseURL, apiKey, retries] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: Number(retries) });
const ask = { model: "demo", input: "count to 3" };

async function agent(useResponsesWebSocket) {
  const modelProvider = new OpenAIProvider({ openAIClient: client, useResponsesWebSocket });
  const runner = new Runner({ modelProvider, tracingDisabled: true });
  try {
    const result = await runner.run(new Agent({ name: "Desk", model: "demo" }), ask.input);
    return result.finalOutput;
  } finally {
    await modelProvider.close();
  }
}

const ways = {
  create: async () => (await client.responses.create(ask)).output_text,
  stream: async () => (await client.responses.stream(ask).finalResponse()).output_text,
  agent: () => agent(false),
  agent_websocket: () => agent(true),
};

const told = {};
for (const [name, way] of Object.entries(ways)) {
  try {
    told[name] = { said: await way() };
  } catch (error) {
    const { status = null, code = null, message } = error;
    told[name] = { error: error.constructor.name, status, code, message };
  }
}
console.log(JSON.stringify(told));
