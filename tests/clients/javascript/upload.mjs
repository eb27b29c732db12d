// OpenAI's JavaScript SDK uploads a file in parts: what it was told, and what is in the file then.
// node upload.mjs BASE_URL
import OpenAI, { toFile } from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const texts = ["The soup ", "is 4 euros."];
const upload = await client.uploads.create({
  bytes: texts.join("").length,
  filename: "menu.txt",
  mime_type: "text/plain",
  purpose: "user_data",
});
const parts = [];
for (const text of texts) parts.push(await client.uploads.parts.create(upload.id, { data: await toFile(Buffer.from(text)) }));
const done = await client.uploads.complete(upload.id, { part_ids: parts.map((part) => part.id) });
const content = await (await client.files.content(done.file.id)).text();
const open = await client.uploads.create({ bytes: 1, filename: "a", mime_type: "text/plain", purpose: "user_data" });
const cancelled = await client.uploads.cancel(open.id);
console.log(JSON.stringify({ upload, parts, done, content, cancelled }));
