// What a response is made of, as it is shown: one view for each kind of item, which grows with its deltas.

import { Approval, Code, FileSearch, FunctionCall, McpCall, Picture, View, WebSearch } from "./calls.js";
import { duration, h, soon } from "./dom.js";
import { codeBlock, link, Markdown, withMarks } from "./markdown.js";

class Message extends View {
  constructor(item) {
    const body = h("div", { class: "prose" });
    super(h("article", { class: `answer ${item.phase === "commentary" ? "aside" : ""}` }, body));
    this.sources = h("ol", { class: "sources", hidden: true });
    this.element.append(this.sources);
    this.markdown = new Markdown(body);
    this.paint = () => this.markdown.paint();
  }

  delta(frame) {
    if (!/(output_text|refusal)\.delta$/u.test(frame.type)) return;
    this.markdown.append(frame.delta);
    soon(this.paint);
  }

  update(item) {
    const parts = item.content ?? [];
    const text = parts.map((part) => part.text ?? part.refusal ?? "").join("\n\n");
    const cited = parts.length === 1 ? (parts[0].annotations ?? []) : [];
    if (!cited.length) {
      if (text !== this.markdown.text) this.markdown.set(text);
      else this.markdown.paint(true);
      return;
    }
    const sources = new Map();
    const places = cited.map((each) => [each.end_index ?? each.index ?? text.length, numbered(sources, each)]);
    this.markdown.set(withMarks(text, places));
    this.sources.replaceChildren(...[...sources.values()].map(({ shown }) => h("li", {}, shown)));
    this.sources.hidden = false;
  }
}

/** Return the number of what is cited; the same source keeps its number. */
function numbered(sources, cited) {
  const key = cited.url ?? cited.file_id ?? cited.filename ?? JSON.stringify(cited);
  if (!sources.has(key)) {
    const name = cited.title || cited.filename || key;
    const shown = cited.url ? link(cited.url, name) : cited.container_id ? download(cited, name) : h("span", {}, name);
    sources.set(key, { number: sources.size + 1, shown });
  }
  return sources.get(key).number;
}

/** Return a button that gives a file that code has written; `main` hears of it, as it knows who asks. */
function download({ container_id: container, file_id: file }, name) {
  const path = `/v1/containers/${encodeURIComponent(container)}/files/${encodeURIComponent(file)}/content`;
  const ask = ({ currentTarget }) =>
    currentTarget.dispatchEvent(new CustomEvent("download", { bubbles: true, detail: { path, name } }));
  return h("button", { type: "button", class: "link", title: `Download ${name}`, on: { click: ask } }, name);
}

class Reasoning extends View {
  constructor() {
    const what = h("span", {}, "Thinking");
    const body = h("div", { class: "thought prose" });
    super(h("details", { class: "reasoning", open: true }, h("summary", {}, what), body));
    this.what = what;
    this.began = performance.now();
    this.chosen = false;
    this.element.classList.add("busy");
    this.element.firstChild.addEventListener("click", () => (this.chosen = true));
    this.markdown = new Markdown(body);
    this.paint = () => this.markdown.paint();
  }

  delta(frame) {
    if (!/reasoning.*\.delta$/u.test(frame.type)) return;
    this.markdown.append(frame.delta);
    soon(this.paint);
  }

  update(item, live) {
    const parts = [...(item.summary ?? []), ...(item.content ?? [])];
    const text = parts.map((part) => part.text ?? "").join("\n\n");
    if (text && text !== this.markdown.text) this.markdown.set(text);
    if (live && item.status === "in_progress") return;
    this.markdown.paint(true);
    this.what.textContent = live ? `Thought for ${duration(performance.now() - this.began)}` : "Thought";
    this.stop();
    if (!this.markdown.text) this.element.hidden = true;
  }

  stop() {
    this.element.classList.remove("busy");
    if (this.what.textContent === "Thinking") this.what.textContent = "Thought";
    if (!this.chosen) this.element.open = false;
  }
}

class McpTools extends View {
  constructor() {
    super(h("details", { class: "listed" }, h("summary", {}, "Tools are being listed")));
  }

  update(item, live) {
    if (live && !item.tools?.length && !item.error) return;
    const tools = item.tools ?? [];
    const told = item.error ? "its tools cannot be listed" : `${tools.length} tool${tools.length === 1 ? "" : "s"}`;
    const rows = tools.map((tool) => [h("dt", {}, h("code", {}, tool.name)), h("dd", {}, tool.description ?? "")]);
    const body = item.error ? h("pre", {}, JSON.stringify(item.error, null, 2)) : h("dl", {}, ...rows.flat());
    this.element.replaceChildren(h("summary", {}, h("code", {}, item.server_label), ` ${told}`), body);
  }
}

class Other extends View {
  constructor(item) {
    super(h("details", { class: "listed" }, h("summary", {}, h("code", {}, item.type))));
    this.update(item);
  }

  update(item) {
    this.element.replaceChildren(h("summary", {}, h("code", {}, item.type)), codeBlock(JSON.stringify(item, null, 2), "json"));
  }
}

const VIEWS = {
  message: Message,
  reasoning: Reasoning,
  function_call: FunctionCall,
  custom_tool_call: FunctionCall,
  mcp_approval_request: Approval,
  mcp_list_tools: McpTools,
  mcp_call: McpCall,
  code_interpreter_call: Code,
  web_search_call: WebSearch,
  file_search_call: FileSearch,
  image_generation_call: Picture,
};

/** Return the view of an item; `turn.requires(id)` returns what takes its answer, where one is wanted. */
export function itemView(item, turn) {
  return new (VIEWS[item.type] ?? Other)(item, turn);
}
