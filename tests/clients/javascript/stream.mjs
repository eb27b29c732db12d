// openai-node's helpers: responses.stream(), responses.parse(), and the client of the WebSocket.
// node stream.mjs PACKAGE BASE_URL
const [name, baseURL] = process.argv.slice(2);
const { default: OpenAI } = await import(name);
const { zodResponsesFunction } = await import(`${name}/helpers/zod`);
const { ResponsesWS } = await import(`${name}/resources/responses/ws`);
const { z } = await import("zod");

const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const model = "test-model";
const tools = [zodResponsesFunction({ name: "get_weather", parameters: z.object({ city: z.string() }) })];
const question = "What is the [weather] in Paris?";

const callOf = (response) => response.output.find((item) => item.type === "function_call");
const outputFor = (call) => [{ type: "function_call_output", call_id: call.call_id, output: "18 °C in Paris" }];

async function streamed(request) {
  const stream = client.responses.stream({ model, tools, ...request });
  const types = new Set();
  let text = "";
  stream.on("response.output_text.delta", ({ snapshot }) => (text = snapshot));
  for await (const event of stream) types.add(event.type);
  return { final: await stream.finalResponse(), types: [...types], text };
}

const asked = await streamed({ input: question });
const answered = await streamed({ input: outputFor(callOf(asked.final)), previous_response_id: asked.final.id });
const again = await streamed({ response_id: answered.final.id, starting_after: 3 });
const parsed = await client.responses.parse({ model, tools, input: question });

// All turns of a WebSocket are in one list of events.
const socket = new ResponsesWS(client);
const types = new Set();
const ask = (request) => socket.send({ type: "response.create", model, tools, ...request });
let spoken;
ask({ input: question, store: false });
for await (const event of socket.stream()) {
  if (event.type === "error") throw event.error;
  if (event.type !== "message") continue;
  types.add(event.message.type);
  if (event.message.type === "error") throw new Error(JSON.stringify(event.message));
  if (event.message.type !== "response.completed") continue;
  const { response } = event.message;
  const call = callOf(response);
  if (call === undefined) {
    spoken = response.output.at(-1).content[0].text;
    break;
  }
  ask({ input: outputFor(call), previous_response_id: response.id, store: false });
}
socket.close();

console.log(
  JSON.stringify({
    call: callOf(asked.final),
    text: answered.final.output_text,
    snapshot: answered.text,
    again: again.final.output_text,
    parsed: callOf(parsed).parsed_arguments,
    spoken,
    types: [...new Set([...asked.types, ...answered.types, ...again.types, ...types])],
  }),
);
