// OpenAI's SDKs and what the server runs for agents: its search for tools, its shell, and several agents at once.
// node agentic.mjs BASE_URL
import { Agent, OpenAIProvider, Runner, shellTool, tool, toolNamespace, toolSearchTool } from "@openai/agents";
import OpenAI from "openai";
import { z } from "zod";

const baseURL = process.argv[2];
const client = new OpenAI({ baseURL, apiKey: "none" });
const modelProvider = new OpenAIProvider({ baseURL, apiKey: "none" });
const runner = new Runner({ modelProvider, tracingDisabled: true });

async function answer(tools, question) {
  const result = await runner.run(new Agent({ name: "Desk", model: "demo", tools }), question);
  return result.finalOutput;
}

const asked = [];
const orders = tool({
  name: "list_open_orders",
  description: "Lists the open orders of a customer.",
  parameters: z.object({ customer_id: z.string() }),
  deferLoading: true,
  execute: async ({ customer_id }) => {
    asked.push(customer_id);
    return `two of ${customer_id}`;
  },
});
const crm = toolNamespace({ name: "crm", description: "Customers and their orders.", tools: [orders] });
const found = await answer([...crm, toolSearchTool()], "Please call list_open_orders for 'c42'.");
const shell = await answer([shellTool({ environment: { type: "container_auto" } })], "shell: seq 3 | paste -sd+");

const body = { model: "demo", input: "agent berlin: count to 3\nagent rome: count to 2", multi_agent: { enabled: true } };
const betas = ["responses_multi_agent=v1"];
const whole = await client.beta.responses.create({ ...body, betas });
const spoke = new Set();
let last;
for await (const event of await client.beta.responses.create({ ...body, betas, stream: true })) {
  spoke.add(event.agent?.agent_name);
  last = event.type;
}
const refused = await client.beta.responses.create(body).catch((error) => [error.status, error.code]);
await modelProvider.close();
const { text } = whole.output.filter((item) => item.type === "message").at(-1).content[0];
console.log(JSON.stringify({ asked, found, shell, text, spoke: [...spoke].sort(), last, refused }));
