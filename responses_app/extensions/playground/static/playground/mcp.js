// The MCP servers of a setup: which are on, which of their tools may be called, and which calls are approved first.

import { byId, h } from "./dom.js";
import { serverTool } from "./request.js";

const PER_TOOL = "per-tool";
const listed = new Map(); // the tools of a server, by where it is

/** `page`: facts, door, setup(), changed(). */
export class Servers {
  constructor(page) {
    this.page = page;
    this.opened = new Set(); // labels of the servers whose tools are shown
    const { facts } = page;
    byId("mcp").hidden = !facts.tools.includes("mcp");
    byId("add-server").hidden = !facts.servers_by_url;
    const dialog = byId("server");
    const form = byId("server-form");
    byId("add-server").addEventListener("click", () => {
      form.reset();
      dialog.showModal();
    });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const { setup } = page;
      const server = { ...Object.fromEntries(new FormData(form)), on: true };
      setup.servers = [...setup.servers.filter((each) => each.server_label !== server.server_label), server];
      dialog.close();
      page.changed();
      this.show();
    });
  }

  show() {
    const servers = this.#known();
    byId("no-servers").hidden = servers.length > 0;
    byId("servers").replaceChildren(...servers.map((server) => this.#row(server)));
  }

  /** Those that the operator has configured, and those that were added here. */
  #known() {
    const { facts, setup } = this.page;
    const fresh = (label) => ({ server_label: label, require_approval: "always", on: false });
    const configured = facts.servers.map((label) => setup.servers.find((each) => each.server_label === label && !each.server_url) ?? fresh(label));
    return [...configured, ...setup.servers.filter((each) => each.server_url || !facts.servers.includes(each.server_label))];
  }

  #row(server) {
    const { server_label: label, server_url: url } = server;
    const box = h("input", { type: "checkbox" });
    box.checked = server.on;
    const change = (values) => {
      Object.assign(server, values);
      const { setup } = this.page;
      if (!setup.servers.includes(server)) setup.servers.push(server);
      this.page.changed();
    };
    box.addEventListener("change", () => change({ on: box.checked }));
    const tools = h("div", { class: "mcp-tools", id: `tools-of-${label}`, hidden: true });
    const opens = h("button", { type: "button", class: "link", "aria-expanded": "false", "aria-controls": tools.id, "aria-label": `Tools of ${label}` }, toolsTold(server));
    const asks = this.#asks(server, (values) => {
      change(values);
      if (values.require_approval.never && tools.hidden) opens.click();
      else this.#fill(server, tools, change, opens);
    });
    opens.addEventListener("click", () => {
      tools.hidden = !tools.hidden;
      opens.setAttribute("aria-expanded", String(!tools.hidden));
      if (tools.hidden) this.opened.delete(label);
      else this.opened.add(label);
      this.#fill(server, tools, change, opens);
    });
    const told = url ?? (this.page.facts.servers.includes(label) ? "Of this server's settings" : "Not configured on this server");
    const head = h("label", { class: "switch" }, box, h("span", { class: "track", "aria-hidden": "true" }), h("span", { class: "what" }, label, h("small", {}, told)));
    const row = h("li", { class: "server" }, head, asks, opens, told === "Of this server's settings" ? null : this.#remove(server), tools);
    if (this.opened.has(label)) opens.click();
    return row;
  }

  #asks({ server_label: label, require_approval: now }, change) {
    const asks = h("select", { "aria-label": `Approval of calls of ${label}` });
    asks.append(h("option", { value: "always" }, "Ask me"), h("option", { value: "never" }, "Never ask"), h("option", { value: PER_TOOL }, "Ask per tool"));
    asks.value = typeof now === "object" && now ? PER_TOOL : (now ?? "always");
    asks.addEventListener("change", () => change({ require_approval: asks.value === PER_TOOL ? { never: { tool_names: [] } } : asks.value }));
    return asks;
  }

  #remove(server) {
    const remove = () => {
      const { setup } = this.page;
      setup.servers = setup.servers.filter((each) => each !== server);
      this.page.changed();
      this.show();
    };
    return h("button", { type: "button", class: "link", "aria-label": `Remove ${server.server_label}`, on: { click: remove } }, "Remove");
  }

  async #fill(server, element, change, opens) {
    if (element.hidden) return;
    const place = server.server_url ?? server.server_label;
    if (!listed.has(place)) {
      element.replaceChildren(h("p", { class: "hint", role: "status" }, "The server is asked for its tools…"));
      try {
        listed.set(place, await this.#ask(server));
      } catch (error) {
        const again = h("button", { type: "button", class: "link", on: { click: () => this.#fill(server, element, change, opens) } }, "Try again");
        element.replaceChildren(h("p", { class: "wrong", role: "alert" }, error.message), again);
        return;
      }
    }
    const tools = listed.get(place);
    const rows = tools.map((tool) => this.#tool(server, tool, tools, (values) => {
      change(values);
      opens.textContent = toolsTold(server);
    }));
    element.replaceChildren(tools.length ? h("ul", { "aria-label": `Tools of ${server.server_label}` }, ...rows) : h("p", { class: "hint" }, "It has no tools."));
  }

  /** Ask a server for its tools: only a response lists them, so one of a single token is made, and not stored. */
  async #ask(server) {
    const { allowed_tools: _, ...all } = serverTool(server);
    const request = { input: "List the tools.", store: false, max_output_tokens: 1, tools: [{ ...all, require_approval: "always" }] };
    const { model } = this.page.setup;
    const { output } = await this.page.door.ask("/v1/responses", { method: "POST", json: { ...(model ? { model } : {}), ...request } });
    const list = output.find(({ type }) => type === "mcp_list_tools");
    if (!list) throw new Error("The answer has no list of its tools.");
    if (list.error && !list.tools?.length) throw new Error(list.error.message ?? JSON.stringify(list.error));
    return list.tools;
  }

  #tool(server, { name, description }, tools, change) {
    const all = tools.map((tool) => tool.name);
    const allowed = h("input", { type: "checkbox" });
    allowed.checked = isAllowed(server, name);
    allowed.disabled = isFilter(server.allowed_tools);
    allowed.addEventListener("change", () => {
      const names = all.filter((each) => (each === name ? allowed.checked : isAllowed(server, each)));
      change({ allowed_tools: names.length === all.length ? undefined : names });
    });
    const what = h("label", { class: "pick" }, allowed, h("span", { class: "what" }, h("code", {}, name), h("small", {}, (description ?? "").slice(0, 300))));
    const never = server.require_approval?.never?.tool_names;
    if (!never) return h("li", {}, what);
    const free = h("input", { type: "checkbox", "aria-label": `Never ask before ${name}` });
    free.checked = never.includes(name);
    free.addEventListener("change", () => {
      const before = server.require_approval.never.tool_names.filter((each) => each !== name);
      change({ require_approval: { never: { tool_names: free.checked ? [...before, name] : before } } });
    });
    return h("li", {}, what, h("label", { class: "free" }, free, "Never ask"));
  }
}

const isFilter = (allowed) => Boolean(allowed) && !Array.isArray(allowed); // by what a tool does: written by hand
const isAllowed = ({ allowed_tools: allowed }, name) => !allowed || (isFilter(allowed) ? (allowed.tool_names ?? [name]).includes(name) : allowed.includes(name));

function toolsTold({ allowed_tools: allowed }) {
  if (!allowed) return "All tools";
  if (isFilter(allowed)) return "Some tools";
  return allowed.length === 1 ? "1 tool" : `${allowed.length} tools`;
}
