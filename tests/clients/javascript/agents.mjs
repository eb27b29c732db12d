// OpenAI's Agents SDK: a run with a tool, a second one that goes on, and a handoff.
// node agents.mjs BASE_URL http|websocket streamed|whole
import { Agent, OpenAIProvider, Runner, tool } from "@openai/agents";
import { z } from "zod";

const [baseURL, transport, way] = process.argv.slice(2);
const modelProvider = new OpenAIProvider({ baseURL, apiKey: "none", useResponsesWebSocket: transport === "websocket" });
const runner = new Runner({ modelProvider, tracingDisabled: true });

const cities = [];
const getWeather = tool({
  name: "get_weather",
  description: "Tell the weather of a city.",
  parameters: z.object({ city: z.string() }),
  execute: async ({ city }) => {
    cities.push(city);
    return `18 °C in ${city}`;
  },
});
const nightDesk = new Agent({ name: "Night desk", instructions: "You work at night.", model: "test-model" });
const desk = new Agent({
  name: "Weather desk",
  instructions: "Be brief.",
  model: "test-model",
  tools: [getWeather],
  handoffs: [nightDesk],
});

async function run(input, options) {
  if (way === "whole") {
    return { result: await runner.run(desk, input, options), happened: [], deltas: [] };
  }
  const result = await runner.run(desk, input, { ...options, stream: true });
  const happened = [];
  const deltas = [];
  for await (const event of result) {
    if (event.type === "run_item_stream_event") happened.push(event.name);
    if (event.type === "raw_model_stream_event" && event.data.type === "output_text_delta") deltas.push(event.data.delta);
  }
  await result.completed;
  return { result, happened, deltas };
}

const first = await run("What is the [weather] in Paris?");
const second = await run("[Thanks], and good night.", { previousResponseId: first.result.lastResponseId });
const third = await run("Who is there at [night]?");
await modelProvider.close();
console.log(
  JSON.stringify({
    answers: [first, second, third].map(({ result }) => result.finalOutput),
    last_agent: third.result.lastAgent.name,
    cities,
    happened: first.happened,
    deltas: first.deltas,
    usage: first.result.state.usage,
  }),
);
