// What is set up, and the request that says it.

/** Return a setup with nothing in it but a model. */
export const emptySetup = (model = "") => ({
  model,
  instructions: "",
  effort: "",
  temperature: "",
  max_output_tokens: "",
  store: true,
  functions: [],
  switched: [],
  vector_stores: "", // ids, with commas between
  container: "", // the id of one; "" for a new one
  container_files: "", // ids of files in a new one
  servers: [],
});

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
  const servers = setup.servers
    .filter((server) => server.on !== false)
    .map(({ server_label, server_url, authorization, require_approval }) => ({
      type: "mcp",
      server_label,
      ...(server_url ? { server_url } : {}),
      ...(authorization ? { authorization } : {}),
      require_approval,
    }));
  return [...setup.functions, ...hosted, ...servers];
}

function newContainer({ container_files: files }) {
  return { type: "auto", ...(files ? { file_ids: idsIn(files) } : {}) };
}

/** Return the ids in a text. */
export const idsIn = (text) => text.split(/[\s,]+/u).filter(Boolean);

/** Return the fields of a request, in the order in which people read them. */
export function requestOf(setup) {
  const tools = toolsOf(setup);
  const include = setup.switched.filter((type) => type in INCLUDED).map((type) => INCLUDED[type]);
  return {
    ...(setup.model ? { model: setup.model } : {}),
    ...(setup.instructions ? { instructions: setup.instructions } : {}),
    ...(setup.effort ? { reasoning: { effort: setup.effort } } : {}),
    ...(tools.length ? { tools } : {}),
    ...(include.length ? { include } : {}),
    ...(setup.temperature !== "" ? { temperature: Number(setup.temperature) } : {}),
    ...(setup.max_output_tokens !== "" ? { max_output_tokens: Number(setup.max_output_tokens) } : {}),
    ...(setup.store ? {} : { store: false }),
  };
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

/** Return a setup from the request of a stored chat. */
export const setupOf = (request) => ({
  ...emptySetup(request.model ?? ""),
  instructions: request.instructions ?? "",
  effort: request.reasoning?.effort ?? "",
  functions: (request.tools ?? []).filter(({ type }) => type === "function"),
});
