// Structured output and forced calls: the AI SDK of Vercel, responses.parse of openai-node, outputType of the Agents SDK.
// node structured.mjs BASE_URL
// Prints a line of JSON for each way: what came.
import { createOpenAI } from "@ai-sdk/openai";
import { Agent, OpenAIProvider, Runner, tool as agentsTool } from "@openai/agents";
import { embedMany, generateObject, generateText, Output, stepCountIs, streamObject, streamText, tool } from "ai";
import { z } from "zod";

const [baseURL] = process.argv.slice(2);
const model = "demo";
const prompt = "Plan a trip to Paris.";
const Stop = z.object({ city: z.string(), nights: z.number().int().min(1).max(30) });
const Trip = z.object({
  title: z.string().min(1),
  by: z.enum(["rail", "road"]),
  stops: z.array(Stop).min(1).max(4),
  note: z.string().nullable(),
});
const say = (way, told) => console.log(JSON.stringify({ way, ...told }));
// zod throws where it does not fit.
const came = (way, output) => say(way, { output: Trip.parse(output) });

// `api` is how Vercel's provider reaches a model: over the Responses API, or over Chat Completions.
async function vercel(api) {
  const served = createOpenAI({ baseURL, apiKey: "none" })[api](model);
  const options = { model: served, prompt, maxRetries: 0 };
  came(`${api} generateObject`, (await generateObject({ ...options, schema: Trip })).object);
  const stream = streamObject({ ...options, schema: Trip });
  let parts = 0;
  for await (const _ of stream.partialObjectStream) parts += 1;
  came(`${api} streamObject`, await stream.object);
  say("streamObject, parts", { parts });
  came(`${api} Output.object`, (await generateText({ ...options, output: Output.object({ schema: Trip }) })).output);
  const parameters = z.object({ city: z.string() });
  const execute = async ({ city }) => `a bed in ${city}`;
  const findHotel = tool({ description: "Find a hotel.", inputSchema: parameters });
  const findTrain = tool({ description: "Find a train.", inputSchema: parameters });
  const tools = { find_hotel: findHotel, find_train: findTrain };
  for (const toolChoice of ["required", { type: "tool", toolName: "find_train" }]) {
    const asked = { ...options, tools, toolChoice };
    const whole = await generateText(asked);
    const streamed = await streamText(asked);
    for (const calls of [whole.toolCalls, await streamed.toolCalls]) {
      say("toolChoice", { choice: toolChoice, calls: calls.map((call) => [call.toolName, call.input, !!call.invalid]) });
    }
  }
  const loop = { tools: { find_hotel: { ...findHotel, execute } }, stopWhen: stepCountIs(3) };
  const calling = { ...options, ...loop, prompt: "call find_hotel for Paris" };
  for (const went of [streamText(calling), await generateText(calling)]) {
    const [text, steps, used] = [await went.text, await went.steps, await went.totalUsage];
    say(`${api} loop`, { text, steps: steps.length, used: used.totalTokens });
  }
  const counting = { ...options, prompt: "count to 5" };
  say(`${api} text`, { texts: [(await generateText(counting)).text, await streamText(counting).text] });
}

async function vercelBeside() {
  const respsite = createOpenAI({ baseURL, apiKey: "none" });
  const counting = { model: respsite.completion(model), prompt: "count to 3", maxRetries: 0 };
  const texts = [(await generateText(counting)).text, await streamText(counting).text];
  const { embeddings } = await embedMany({ model: respsite.embedding("hashing-256"), values: ["Paris", "rail"] });
  say("beside", { texts, dimensions: embeddings.map((each) => each.length) });
}

async function openaiNode(name) {
  const { default: OpenAI } = await import(name);
  const { zodTextFormat } = await import(`${name}/helpers/zod`);
  const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
  const request = { model, input: prompt, text: { format: zodTextFormat(Trip, "trip") } };
  came(`${name} parse`, (await client.responses.parse(request)).output_parsed);
  came(`${name} stream`, (await client.responses.stream(request).finalResponse()).output_parsed);
}

async function agents() {
  for (const useResponsesWebSocket of [false, true]) {
    const modelProvider = new OpenAIProvider({ baseURL, apiKey: "none", useResponsesWebSocket });
    const runner = new Runner({ modelProvider, tracingDisabled: true });
    const findHotel = agentsTool({
      name: "find_hotel",
      description: "Find a hotel.",
      parameters: z.object({ city: z.string() }),
      execute: async ({ city }) => `a hotel in ${city}`,
    });
    const agent = new Agent({ name: "Travel desk", model, outputType: Trip, tools: [findHotel] });
    const way = useResponsesWebSocket ? "agents, websocket" : "agents";
    const whole = await runner.run(agent, "call find_hotel for Paris");
    came(way, whole.finalOutput);
    say(`${way}, tools`, { called: whole.newItems.filter((item) => item.type === "tool_call_item").length });
    const streamed = await runner.run(agent, prompt, { stream: true });
    await streamed.completed;
    came(`${way}, streamed`, streamed.finalOutput);
    await modelProvider.close();
  }
}

await Promise.all([vercel("responses"), vercel("chat"), vercelBeside(), openaiNode("openai"), openaiNode("openai-6"), agents()]);
