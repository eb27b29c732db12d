// OpenAI's JavaScript SDK runs a batch from its file to its answers, and reads an event of a webhook.
// node batches.mjs PACKAGE BASE_URL BODY HEADERS SECRET, of which the last three are an event's
const [name, baseURL, body, headers, secret] = process.argv.slice(2);
const { default: OpenAI, toFile } = await import(name);

const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const endpoint = "/v1/responses";
const line = (city) => ({ custom_id: city, method: "POST", url: endpoint, body: { model: "demo", input: `Greet ${city}.` } });
const upload = async (text) => (await client.files.create({ file: await toFile(Buffer.from(text), "input.jsonl"), purpose: "batch" })).id;
const create = async (text) => client.batches.create({ input_file_id: await upload(text), endpoint, completion_window: "24h" });
const ended = async ({ id }) => {
  for (;;) {
    const batch = await client.batches.retrieve(id);
    if (["completed", "failed", "cancelled", "expired"].includes(batch.status)) return batch;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
};

const good = await ended(await create(["Paris", "Rome"].map((city) => JSON.stringify(line(city))).join("\n")));
const answers = (await (await client.files.content(good.output_file_id)).text()).trim().split("\n").map((each) => JSON.parse(each));
const bad = await ended(await create("{"));
const listed = [];
for await (const { id } of client.batches.list({ limit: 1 })) listed.push(id);

const event = await client.webhooks.unwrap(body, JSON.parse(headers), secret);
let refused = "";
try {
  await client.webhooks.unwrap(`${body} `, JSON.parse(headers), secret);
} catch (error) {
  refused = error.constructor.name;
}
console.log(
  JSON.stringify({
    status: good.status,
    counts: good.request_counts,
    answers: answers.map((each) => [each.custom_id, each.response.status_code, each.error]),
    failed: [bad.status, bad.errors.data.map(({ code, line }) => [code, line])],
    listed: listed.indexOf(bad.id) < listed.indexOf(good.id),
    event: [event.type, event.data.id],
    refused,
  }),
);
