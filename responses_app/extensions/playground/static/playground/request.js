// What is set up, and the request that says it.

import { FIELDS, textFor, valueOf } from "./fields.js";

/** What the format of an answer is until somebody says which. */
export const EXAMPLE_SCHEMA = {
  type: "object",
  properties: { answer: { type: "string" }, certainty: { type: "number", minimum: 0, maximum: 1 } },
  required: ["answer", "certainty"],
  additionalProperties: false,
};

/** Return a setup with nothing in it but a model. Fields of `fields.js` are texts, "" for the server's default. */
export const emptySetup = (model = "") => ({
  model,
  instructions: "",
  effort: "",
  format: "", // or json_object, json_schema
  schema: { name: "answer", strict: true, schema: EXAMPLE_SCHEMA }, // that of json_schema
  ...Object.fromEntries(FIELDS.map(({ name }) => [name, ""])),
  store: true,
  functions: [], // tools as a request has them
  switched: [], // types of the server's tools
  vector_stores: "", // ids, with commas between
  container: "", // the id of one; "" for a new one
  container_files: "", // ids of files in a new one
  servers: [], // of MCP: {server_label, server_url?, authorization?, allowed_tools?, require_approval, on}
  extra: {}, // fields of the request that have no control here
  cards: { functions: [], switched: [] }, // what a card has added, functions as JSON: it goes with its chat
  prompt: "", // the name under which it was saved
});

/** Return a setup without what nobody else is to have: how one gets into MCP servers. */
export function withoutSecrets(setup) {
  return {
    ...setup,
    functions: setup.functions.map(withoutAccess),
    servers: setup.servers.map(withoutAccess),
  };
}

/** Return a tool of a request, or an MCP server of a setup, without its access; of its URL without user and query. */
export function withoutAccess({ authorization, headers, ...tool }) {
  if (tool.server_url === undefined) return tool;
  try {
    const url = new URL(tool.server_url);
    Object.assign(url, { username: "", password: "", search: "", hash: "" });
    return { ...tool, server_url: url.href };
  } catch {
    return tool;
  }
}

export const copyOf = (setup) => structuredClone(setup);

const INCLUDED = {
  code_interpreter: "code_interpreter_call.outputs",
  web_search: "web_search_call.action.sources",
  file_search: "file_search_call.results",
};

/** Return the tools of a request. */
export function toolsOf(setup) {
  const hosted = setup.switched.map((type) => {
    if (type === "code_interpreter") return { type, container: setup.container || newContainer(setup) };
    if (type === "file_search") return { type, vector_store_ids: idsIn(setup.vector_stores) };
    return { type };
  });
  return [...setup.functions, ...hosted, ...setup.servers.filter((server) => server.on !== false).map(serverTool)];
}

function newContainer({ container_files: files }) {
  return { type: "auto", ...(files ? { file_ids: idsIn(files) } : {}) };
}

/** Return an MCP server of a setup as a tool of a request. */
export function serverTool({ server_label, server_url, authorization, allowed_tools: allowed, require_approval }) {
  return {
    type: "mcp",
    server_label,
    ...(server_url ? { server_url } : {}),
    ...(authorization ? { authorization } : {}),
    ...(allowed ? { allowed_tools: allowed } : {}),
    require_approval,
  };
}

/** Return the ids in a text. */
export const idsIn = (text) => text.split(/[\s,]+/u).filter(Boolean);

/** Return the fields of a request, in the order in which people read them. */
export function requestOf(setup) {
  const tools = toolsOf(setup);
  const include = setup.switched.filter((type) => type in INCLUDED).map((type) => INCLUDED[type]);
  if (setup.top_logprobs !== "") include.push("message.output_text.logprobs");
  const request = {
    ...(setup.model ? { model: setup.model } : {}),
    ...(setup.instructions ? { instructions: setup.instructions } : {}),
    ...(setup.effort ? { reasoning: { effort: setup.effort } } : {}),
    ...(setup.format ? { text: { format: formatOf(setup) } } : {}),
    ...(tools.length ? { tools } : {}),
    ...(include.length ? { include } : {}),
  };
  for (const field of FIELDS) {
    if (setup[field.name] !== "") put(request, field.at ?? [field.name], valueOf(field, setup[field.name]));
  }
  return { ...request, ...(setup.store ? {} : { store: false }), ...setup.extra };
}

const formatOf = ({ format, schema }) => (format === "json_schema" ? { type: format, ...schema } : { type: format });

function put(request, [name, inner], value) {
  request[name] = inner ? { ...request[name], [inner]: value } : value;
}

// This page's own names in a request's metadata. `made_in`: the page made it. `version_of`: a response of the chat that a
// first message belongs to. `said_behind`: the turn that a message follows where the server cannot continue it, and how
// many items of the input repeat what was said.
const OF_PAGE = ["made_in", "version_of", "said_behind"];

/** Return the metadata that is the user's own. */
export const usersOf = (metadata) => Object.fromEntries(Object.entries(metadata).filter(([name]) => !OF_PAGE.includes(name)));

/**
 * Return the turns of a stored chat as the page shows them: behind what they were said, without what they repeat of it.
 * What they repeat of an answer is all that is left of it, where it died with its worker.
 */
export function asShown(turns) {
  const shown = new Map();
  for (const turn of turns) {
    const [behind, repeated = 0] = turn.metadata?.said_behind?.split(" ") ?? [];
    const before = shown.get(behind);
    const again = before ? turn.input.slice(0, Number(repeated)) : [];
    if (before && !before.output.length) before.output = again.slice(again.findLastIndex(({ role }) => role === "user") + 1);
    shown.set(turn.id, before ? { ...turn, previous_response_id: behind, input: turn.input.slice(again.length) } : turn);
  }
  return [...shown.values()];
}

const EFFORTS = { minimal: "low", xhigh: "high", max: "high" }; // as the server reads them
// What the server echoes of fields that were not sent, beside null.
const ECHOED = {
  ...{ temperature: 1, top_p: 1, presence_penalty: 0, frequency_penalty: 0, top_logprobs: 0, truncation: "disabled" },
  ...{ tool_choice: "auto", parallel_tool_calls: true, service_tier: "default", verbosity: "medium" },
};
const ECHOED_SEARCH = { max_num_results: 10, filters: null, ranking_options: { ranker: "auto", score_threshold: 0 } };

/**
 * Return the setup of a stored response: `request` has its fields as the server echoes them, so what is as the server
 * has it by default is left empty. What no control shows stays a tool as JSON.
 */
export function setupOf(request) {
  const setup = { ...emptySetup(request.model ?? ""), store: request.store !== false };
  setup.instructions = typeof request.instructions === "string" ? request.instructions : "";
  setup.effort = EFFORTS[request.reasoning?.effort] ?? request.reasoning?.effort ?? "";
  const { type, ...schema } = request.text?.format ?? {};
  if (type && type !== "text") setup.format = type;
  if (type === "json_schema") setup.schema = present(schema);
  for (const field of FIELDS) {
    const [name, inner] = field.at ?? [field.name];
    const told = inner ? request[name]?.[inner] : request[name];
    const value = name === "metadata" && told ? usersOf(told) : told;
    const isEmpty = value && typeof value === "object" && !Object.keys(value).length;
    if (!isEmpty && value !== ECHOED[field.name]) setup[field.name] = textFor(field, value);
  }
  for (const tool of request.tools ?? []) takeTool(setup, present(tool));
  return setup;
}

const present = (object) => Object.fromEntries(Object.entries(object).filter(([, value]) => value !== null));
const hasOnly = (object, names) => Object.keys(object).every((name) => names.includes(name));

function takeTool(setup, tool) {
  const { type, container, vector_store_ids: stores } = tool;
  const isPlain = ["web_search", "image_generation"].includes(type) && hasOnly(tool, ["type"]);
  const isAsEchoed = ([name, value]) => !tool[name] || JSON.stringify(tool[name]) === JSON.stringify(value);
  const searches = type === "file_search" && Object.entries(ECHOED_SEARCH).every(isAsEchoed);
  const runs = type === "code_interpreter" && (typeof container === "string" || hasOnly(container ?? {}, ["type", "file_ids"]));
  if (type === "mcp") {
    const { type: _, ...server } = withoutAccess(tool); // the server has cut the query of its URL
    setup.servers.push({ ...server, on: true });
  } else if (isPlain || searches || runs) {
    setup.switched.push(type);
    if (searches) setup.vector_stores = stores.join(", ");
    if (runs && typeof container === "string") setup.container = container;
    else if (runs) setup.container_files = (container?.file_ids ?? []).join(", ");
  } else {
    setup.functions.push(tool);
  }
}

/** Return a text, and parts of other kinds, as an item of the input. */
export function said(text, parts = []) {
  return { type: "message", role: "user", content: text || !parts.length ? [{ type: "input_text", text }, ...parts] : parts };
}

export const partsOf = (item) => (Array.isArray(item.content) ? item.content : []);

const ATTACHED = ["input_image", "input_file"];

/** Return the text of an item of the input, "" for one that has none. */
export function textOf(item) {
  if (typeof item === "string") return item;
  if (typeof item.content === "string") return item.content;
  const others = partsOf(item).filter(({ type }) => !ATTACHED.includes(type));
  return others.map((part) => part.text ?? `[${part.type}]`).join("\n");
}

/** Return the URLs of the images of an item of the input. */
export const imagesOf = (item) => partsOf(item).flatMap(({ image_url }) => image_url ?? []);
