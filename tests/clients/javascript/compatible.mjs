// OpenAI's cases for servers of gpt-oss: an agent has to call its tool, and each API has to show the model's thoughts.
// node compatible.mjs BASE_URL
// Prints a line of JSON for each tool, API and way, whole or streamed.
import { Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, tool } from "@openai/agents";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const model = "demo";
const APIS = {
  chat: new OpenAIChatCompletionsModel(client, model),
  responses: new OpenAIResponsesModel(client, model),
};
const text = { type: "string" };
const object = (properties, required) => ({ type: "object", properties, required, additionalProperties: false });
// As those cases have them: none strict, one without properties, one with nested arrays, an enum and defaults.
const TOOLS = {
  get_weather: object({ location: text }, ["location"]),
  get_system_health: { type: "object", properties: {} },
  generate_chart: object(
    {
      data: { type: "array", items: { type: "array", items: { type: "number" } } },
      chart_type: { type: "string", enum: ["line", "bar", "scatter"] },
      title: { ...text, default: "" },
    },
    ["data", "chart_type"],
  ),
  query_database: object(
    {
      table: text,
      columns: { type: "array", items: text },
      limit: { type: "integer", minimum: 1, maximum: 10000, default: 100 },
    },
    ["table", "columns"],
  ),
};

// What a whole answer has of thoughts, in the shape that each API has for them.
const thoughts = {
  chat: ({ choices }) => choices.flatMap(({ message }) => [message.reasoning, message.reasoning_content]),
  responses: ({ output }) =>
    output.filter(({ type }) => type === "reasoning").flatMap(({ content }) => content.map((part) => part.text)),
};

async function streamed(agent, runner, prompt) {
  const result = await runner.run(agent, prompt, { stream: true });
  const seen = { deltas: 0, done: 0 };
  for await (const { type, data } of result) {
    if (type !== "raw_model_stream_event" || data.type !== "model") continue;
    const { event } = data;
    if (event.choices?.[0]?.delta.reasoning || event.type === "response.reasoning_text.delta") seen.deltas += 1;
    if (event.type === "response.reasoning_text.done") seen.done += 1;
  }
  await result.completed;
  return { result, seen };
}

async function ask(name, api, way) {
  const called = [];
  const offered = tool({
    name,
    description: "Made up.",
    parameters: TOOLS[name],
    strict: false,
    execute: async (given) => {
      called.push(given);
      return '{"status":"ok"}';
    },
  });
  const runner = new Runner({ model: APIS[api], tracingDisabled: true });
  const agent = new Agent({ name, tools: [offered] });
  const prompt = `call ${name}`;
  const { result, seen } =
    way === "streamed" ? await streamed(agent, runner, prompt) : { result: await runner.run(agent, prompt) };
  const told = { name, api, way, called, answer: result.finalOutput, seen };
  if (way === "whole") told.thoughts = result.rawResponses.map(({ providerData }) => thoughts[api](providerData));
  console.log(JSON.stringify(told));
}

for (const api of Object.keys(APIS)) {
  for (const way of ["whole", "streamed"]) {
    await Promise.all(Object.keys(TOOLS).map((name) => ask(name, api, way)));
  }
}
