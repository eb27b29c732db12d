// OpenAI's Agents SDK: a model that calls functions from a program, several at once, and reads what it prints.
// node programs.mjs BASE_URL http|websocket streamed|whole
import { Agent, OpenAIProvider, Runner, programmaticToolCallingTool, tool } from "@openai/agents";
import { z } from "zod";

const [baseURL, transport, way] = process.argv.slice(2);
const modelProvider = new OpenAIProvider({ baseURL, apiKey: "none", useResponsesWebSocket: transport === "websocket" });
const runner = new Runner({ modelProvider, tracingDisabled: true });

const asked = [];
const stock = tool({
  name: "stock",
  description: "Tell how many there are.",
  parameters: z.object({ name: z.string() }),
  allowedCallers: ["programmatic"],
  execute: async ({ name }) => {
    asked.push(name);
    return `1 of ${name}`;
  },
});
const agent = new Agent({
  name: "Stock desk",
  instructions: "Look into the stock with a program.",
  model: "test-model",
  modelSettings: { toolChoice: "programmatic_tool_calling" },
  tools: [stock, programmaticToolCallingTool()],
});

let result;
if (way === "whole") {
  result = await runner.run(agent, "[stock] What is there?");
} else {
  result = await runner.run(agent, "[stock] What is there?", { stream: true });
  for await (const event of result) void event;
  await result.completed;
}
await modelProvider.close();
console.log(
  JSON.stringify({
    answer: result.finalOutput,
    asked,
    kinds: result.rawResponses.map(({ output }) => output.map((item) => item.type)),
  }),
);
