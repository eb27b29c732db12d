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
  vector_stores: "",
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
    if (type === "code_interpreter") return { type, container: { type: "auto" } };
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

const idsIn = (text) => text.split(/[\s,]+/u).filter(Boolean);

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

/** Return a text, and images as data URLs, as an item of the input. */
export function said(text, images = []) {
  const parts = images.map((url) => ({ type: "input_image", image_url: url }));
  return { type: "message", role: "user", content: text || !parts.length ? [{ type: "input_text", text }, ...parts] : parts };
}

const partsOf = (item) => (Array.isArray(item.content) ? item.content : []);

/** Return the text of an item of the input, "" for one that has none. */
export function textOf(item) {
  if (typeof item === "string") return item;
  if (typeof item.content === "string") return item.content;
  const others = partsOf(item).filter(({ image_url }) => !image_url);
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
