// OpenAI's JavaScript SDK asks once, with an idempotency key, and tries again by itself.
// node once.mjs PACKAGE BASE_URL KEY
const { default: OpenAI } = await import(process.argv[2]);

const client = new OpenAI({ baseURL: process.argv[3], apiKey: "none", maxRetries: 8 });
const headers = { "Idempotency-Key": process.argv[4] };
const response = await client.responses.create({ model: "scripted", input: "[long]" }, { headers });
const types = [];
const stream = await client.responses.create({ model: "scripted", input: "Hi", stream: true }, { headers: { "Idempotency-Key": `${process.argv[4]} 2` } });
for await (const event of stream) types.push([event.type, event.sequence_number]);
const again = [];
const same = await client.responses.create({ model: "scripted", input: "Hi", stream: true }, { headers: { "Idempotency-Key": `${process.argv[4]} 2` } });
for await (const event of same) again.push([event.type, event.sequence_number]);
console.log(JSON.stringify({ id: response.id, text: response.output_text, types, again }));
