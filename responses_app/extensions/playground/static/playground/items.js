// What a response is made of, as it is shown: one view for each kind of item, which grows with its deltas.

import { Approval, Code, FileSearch, FunctionCall, McpCall, Picture, View, WebSearch } from "./calls.js";
import { cited, showSources, sourcesList } from "./citations.js";
import { duration, h } from "./dom.js";
import { codeBlock, renderText } from "./text.js";

// Joining copies what has come: of one part, as nearly all have, nothing is copied with each event.
const joined = (parts) => (parts.length === 1 ? parts[0] : parts.join("\n\n"));

class Message extends View {
  constructor(item) {
    const body = h("div", { class: "prose" });
    const sources = sourcesList(body);
    super(h("article", { class: `answer ${item.phase === "commentary" ? "aside" : ""}` }, body, sources));
    Object.assign(this, { body, sources, parts: [], hasEnded: false });
  }

  delta(frame) {
    if (!/(output_text|refusal)\.delta$/u.test(frame.type)) return;
    const place = frame.content_index ?? 0;
    this.parts[place] = (this.parts[place] ?? "") + frame.delta;
    renderText(this.body, joined(this.parts), { done: false });
  }

  update(item, live) {
    const { text, sources } = cited(item.content ?? []);
    this.hasEnded = !(live && item.status === "in_progress");
    renderText(this.body, text, { done: this.hasEnded, marked: true });
    showSources(this.sources, sources);
  }

  stop() {
    if (!this.hasEnded) renderText(this.body, this.parts.join("\n\n"));
  }
}

class Reasoning extends View {
  constructor(item, turn) {
    const what = h("span", {}, "Thinking");
    const body = h("div", { class: "thought prose" });
    super(h("details", { class: "reasoning", open: true }, h("summary", {}, what), body));
    this.what = what;
    this.began = turn.isFollowed ? 0 : performance.now(); // its events come faster than it thinks
    this.took = 0; // milliseconds that it thought; 0 where that is not known
    this.chosen = false;
    this.text = "";
    this.element.classList.add("busy");
    this.element.firstChild.addEventListener("click", () => (this.chosen = true));
    this.body = body;
    this.parts = new Map(); // by whether they are a summary, and their place
  }

  delta(frame) {
    if (!/reasoning.*\.delta$/u.test(frame.type)) return;
    const place = `${frame.type} ${frame.summary_index ?? frame.content_index ?? 0}`;
    this.parts.set(place, (this.parts.get(place) ?? "") + frame.delta);
    renderText(this.body, (this.text = joined([...this.parts.values()])), { done: false });
  }

  update(item, live) {
    const parts = [...(item.summary ?? []), ...(item.content ?? [])];
    this.text = parts.map((part) => part.text ?? "").join("\n\n") || this.text;
    if (live && item.status === "in_progress") return;
    this.tell(live && this.began ? performance.now() - this.began : 0);
    this.stop();
    if (!this.text) this.element.hidden = true;
  }

  /** Say how long it thought. */
  tell(took) {
    this.took = took;
    this.what.textContent = took ? `Thought for ${duration(took)}` : "Thought";
  }

  stop() {
    renderText(this.body, this.text);
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
