// Calls, as they are shown: what they were called with, what came of them, and what the page's user answers.

import { Attached, attachmentsOf, isImage } from "./attachments.js";
import { h, icon, laidOut, laidOutExactly, soon } from "./dom.js";
import { textOf } from "./request.js";
import { link } from "./text.js";
import { enlargeable } from "./viewer.js";
import { writtenFiles } from "./written-files.js";

const IMAGE_TYPES = { png: "image/png", jpeg: "image/jpeg", jpg: "image/jpeg", webp: "image/webp" };
const PATHS = {
  call: "M9.5 2.5 6.5 13.5M4.5 5 1.5 8l3 3M11.5 5l3 3-3 3",
  code: "M2 3.5h12v9H2zM4.5 6.5 6.5 8l-2 1.5M8 10h3",
  web: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2zM2 8h12M8 2c2 2 2.5 4 2.5 6S10 12 8 14C6 12 5.5 10 5.5 8S6 4 8 2z",
  files: "M4 2h5l3 3v9H4zM9 2v3h3M6 8h4M6 10.5h4",
  image: "M2 3h12v10H2zM2 11l3.5-3.5 3 3L10.5 8.5 14 12M10.5 6v.1",
  mcp: "M6 2v4M10 2v4M4 6h8v2a4 4 0 0 1-8 0zM8 12v2",
  ask: "M8 2 2.5 13.5h11zM8 6.5v3M8 11.5v.1",
};

/** What all views have: an element, `delta` for text that comes, `update` for the item as a whole. */
export class View {
  constructor(element) {
    this.element = element;
  }

  delta() {}

  update() {}

  /** What came before the response was cut. */
  stop() {}
}

/** A call of something: a head, what it was called with, what came of it. */
class Call extends View {
  constructor(path, title, name) {
    const what = h("span", { class: "what" }, title);
    const how = h("span", { class: "how" });
    const head = h("header", {}, icon(path), what, name ? h("code", {}, name) : null, how);
    super(h("section", { class: "call", "aria-label": `${title} ${name ?? ""}`.trim() }, head));
    this.what = what;
    this.how = how;
    this.given = h("pre", { class: "given", tabindex: "0", "aria-label": "Arguments", hidden: true });
    this.outcome = h("div", { class: "outcome" });
    this.element.append(this.given, this.outcome);
    this.text = "";
    this.paint = () => this.show(this.text);
  }

  show(text) {
    this.given.hidden = !text;
    this.given.textContent = text;
  }

  delta(frame) {
    if (typeof frame.delta !== "string") return;
    this.text += frame.delta;
    soon(this.paint);
  }

  tell(text, tone = "") {
    this.how.textContent = text;
    this.how.dataset.tone = tone;
  }
}

/** A function of the page's user; `required` asks for what it gives back. */
export class FunctionCall extends Call {
  constructor(item, turn) {
    super(PATHS.call, item.type === "custom_tool_call" ? "Tool" : "Function", item.name);
    this.turn = turn;
    this.tell("is being written");
  }

  update(item, live) {
    this.show(laidOutExactly(item.arguments ?? item.input ?? ""));
    this.text = this.given.textContent;
    if (live && item.status === "in_progress") return;
    const answer = this.turn.requires(item.call_id, "the model waits for your answer to a call", { owed: true });
    if (!answer) this.tell("called");
    else if (!this.form) this.ask(item, answer);
  }

  ask(item, answer) {
    this.tell("waits for you", "wait");
    const id = `output-${item.call_id}`;
    const field = h("textarea", { id, rows: "2", placeholder: '{"temperature": 21}', spellcheck: "false" });
    const done = h("button", { class: "primary" }, "Send output");
    const wrong = h("p", { class: "refused", role: "alert" });
    const attached = new Attached({ setup: null, changed: () => (done.disabled = attached.isBusy), refuse: (why) => (wrong.textContent = why) });
    field.addEventListener("paste", (event) => attached.paste(event));
    const submit = (event) => {
      event.preventDefault();
      if (attached.isBusy) return;
      const [failed] = attached.failed;
      if (failed) {
        wrong.textContent = failed.sentence;
        return;
      }
      const { parts } = attached;
      const text = field.value && { type: "input_text", text: field.value };
      const output = parts.length ? [text, ...parts].filter(Boolean) : field.value;
      this.settle({ output }, "answered by you");
      const type = item.type === "custom_tool_call" ? "custom_tool_call_output" : "function_call_output";
      answer({ type, call_id: item.call_id, output });
    };
    const keys = (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.stopPropagation();
        event.preventDefault();
        this.form.requestSubmit();
      }
    };
    const label = h("label", { for: id }, `What ${item.name} gives back`);
    const foot = h("div", { class: "line" }, attached.button, attached.chooser, h("span", { class: "push" }), done);
    this.form = h("form", { class: "answer-form", on: { submit, keydown: keys } }, label, field, attached.list, wrong, foot);
    this.outcome.replaceChildren(this.form);
    if (document.activeElement === null || document.activeElement === document.body) field.focus({ preventScroll: true });
  }

  settle({ output }, told = "answered") {
    this.form?.remove();
    this.tell(told, "good");
    const item = { content: output };
    const text = Array.isArray(output) ? textOf(item) : laidOut(output);
    const files = attachmentsOf(item);
    const pre = text || !files ? h("pre", { tabindex: "0", "aria-label": "Output" }, text) : null;
    this.outcome.replaceChildren(...[pre, files].filter(Boolean));
  }
}

export class Approval extends Call {
  constructor(item, turn) {
    const name = `${item.server_label}.${item.name}`;
    super(PATHS.ask, "Approval wanted", name);
    this.name = name;
    this.turn = turn;
    this.element.classList.add("asks");
  }

  update(item) {
    this.show(laidOutExactly(item.arguments ?? ""));
    const answer = this.turn.requires(item.id, `${this.name} waits for your approval`);
    if (!answer || this.buttons) return;
    const give = (approve) => () => {
      this.settle({ approve });
      answer({ type: "mcp_approval_response", approval_request_id: item.id, approve });
    };
    const yes = h("button", { type: "button", class: "primary", on: { click: give(true) } }, "Approve");
    const no = h("button", { type: "button", class: "quiet", on: { click: give(false) } }, "Deny");
    this.buttons = h("div", { class: "buttons" }, yes, no);
    this.outcome.replaceChildren(this.buttons); // and no focus: who is typing would approve it unseen
  }

  settle({ approve }) {
    this.buttons?.remove();
    this.element.classList.remove("asks");
    this.tell(approve ? "approved" : "denied", approve ? "good" : "bad");
  }
}

export class McpCall extends Call {
  constructor(item) {
    super(PATHS.mcp, "MCP", `${item.server_label}.${item.name}`);
    this.tell("runs");
  }

  update(item, live) {
    this.show(laidOutExactly(item.arguments ?? ""));
    this.text = this.given.textContent;
    if (live && item.status === "in_progress") return;
    const error = typeof item.error === "string" ? item.error : item.error && (item.error.message ?? JSON.stringify(item.error));
    this.tell(error ? "failed" : "done", error ? "bad" : "good");
    const text = error ?? item.output ?? "";
    this.outcome.replaceChildren(h("pre", { tabindex: "0", "aria-label": "Output" }, laidOut(text)));
  }
}

export class Code extends Call {
  constructor(item, turn) {
    super(PATHS.code, "Python");
    this.turn = turn;
    this.tell("is being written");
  }

  delta(frame) {
    super.delta(frame);
    if (frame.type === "response.code_interpreter_call.interpreting") this.tell("runs");
  }

  update(item, live) {
    this.item = item;
    if (item.code) {
      this.text = item.code;
      this.paint();
    }
    if (live && item.status === "in_progress") return;
    this.tell(item.status === "completed" ? "ran" : item.status, item.status === "completed" ? "good" : "bad");
    const shown = (item.outputs ?? []).map((output) =>
      output.type === "image" ? figure(output.url, "A figure that the code drew") : logs(output.logs),
    );
    this.outcome.replaceChildren(...shown);
  }

  stop() {
    const files = writtenFiles(this.item, this.turn.output);
    if (files) this.element.append(files);
  }
}

const logs = (text) => h("pre", { tabindex: "0", "aria-label": "Output" }, text ?? "");

/** Return a picture, where its address is data or the server's own. */
function figure(url, alt) {
  const own = isImage(url) || url?.startsWith(`${location.origin}/`);
  return own ? h("figure", {}, enlargeable(h("img", { src: url, alt }))) : h("p", {}, link(url ?? "", url ?? "An image without an address"));
}

export class WebSearch extends Call {
  constructor() {
    super(PATHS.web, "Web");
    this.tell("searches");
  }

  update(item, live) {
    const action = item.action ?? {};
    this.what.textContent = { search: "Web search", open_page: "Page opened", find_in_page: "Looked for" }[action.type] ?? "Web";
    this.show(action.query ?? action.pattern ?? action.url ?? "");
    if (live && item.status === "in_progress") return;
    this.tell(item.status === "failed" ? "failed" : "done", item.status === "failed" ? "bad" : "good");
    const sources = (action.sources ?? []).map((source) => h("li", {}, link(source.url, source.title ?? source.url)));
    this.outcome.replaceChildren(...(sources.length ? [h("ol", { class: "sources" }, ...sources)] : []));
  }
}

export class FileSearch extends Call {
  constructor() {
    super(PATHS.files, "File search");
    this.tell("searches");
  }

  update(item, live) {
    this.show((item.queries ?? []).join("\n"));
    if (live && item.status === "in_progress") return;
    const found = item.results ?? [];
    this.tell(`${found.length} found`, "good");
    const rows = found.map((each) => h("li", {}, h("strong", {}, each.filename ?? each.file_id), ` ${(each.text ?? "").slice(0, 300)}`));
    this.outcome.replaceChildren(...(rows.length ? [h("ol", { class: "sources" }, ...rows)] : []));
  }
}

export class Picture extends Call {
  constructor() {
    super(PATHS.image, "Image");
    this.tell("is being drawn");
  }

  delta(frame) {
    if (frame.partial_image_b64) this.draw(frame.partial_image_b64, frame.output_format);
  }

  draw(base64, format) {
    const type = IMAGE_TYPES[format ?? "png"] ?? "image/png";
    this.outcome.replaceChildren(figure(`data:${type};base64,${base64}`, this.given.textContent || "The image that was made"));
  }

  update(item, live) {
    this.show(item.revised_prompt ?? "");
    if (item.result) this.draw(item.result, item.output_format);
    if (live && !["completed", "failed"].includes(item.status)) return;
    this.tell(item.status === "failed" ? (item.error?.message ?? "failed") : "drawn", item.status === "failed" ? "bad" : "good");
  }
}

