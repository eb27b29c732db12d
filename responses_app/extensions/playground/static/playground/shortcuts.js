// Keys, and the list of them. Single ones never count while somebody writes, and can be switched off.

import { byId, h } from "./dom.js";
import { ofSite } from "./storage.js";

const STORED = "respsite.single-keys";
const SHOWN = { ArrowUp: "↑", ArrowDown: "↓", Delete: "Del" };
const MAC = navigator.platform?.startsWith("Mac");

/** Listen; `actions` are functions by name. */
export function listen(actions) {
  const single = byId("single-keys");
  single.checked = ofSite.get(STORED) !== "off";
  single.addEventListener("change", () => ofSite.put(STORED, single.checked ? "on" : "off"));
  const command = MAC ? "⌘" : "Ctrl";
  const row = ".chat-link"; // of the list of chats: such keys count there alone
  const keys = [
    [["Enter"], "Send; steer what runs (on a telephone a new line)"],
    [["Shift Enter"], "New line"],
    [[`${command} Enter`], "Send, wherever one is"],
    [[`${command} Shift Enter`], "Send to all lanes"],
    [["Esc"], "Interrupt what runs in this lane; else leave the field, so that single keys work"],
    [["i"], "Write", actions.write],
    [["o"], "New chat", actions.newChat],
    [["h"], "List of chats", actions.toChats],
    [["/"], "Search in chats", actions.search],
    [["ArrowUp ArrowDown"], "In the list: up, down", (key) => actions.inList("step", key === "ArrowUp" ? -1 : 1), row],
    [["Enter"], "In the list: open the chat", null, row],
    [["F2"], "In the list: rename the chat", () => actions.inList("rename"), row],
    [["p"], "In the list: pin the chat", () => actions.inList("pin"), row],
    [["Delete"], "In the list: delete the chat", () => actions.inList("remove"), row],
    [["n"], "New lane", actions.lane],
    [["["], "Lane before", () => actions.step(-1)],
    [["]"], "Lane behind", () => actions.step(1)],
    [["f"], "Fork from the last turn", actions.fork],
    [["u"], "Edit the last message, and send it again", actions.edit],
    [["r"], "Regenerate the last answer", actions.regenerate],
    [["g"], "Continue an answer that was cut", actions.goOn],
    [["<"], "Version before", () => actions.walk(-1)],
    [[">"], "Next version", () => actions.walk(1)],
    [["z"], "Undo: clear, delete", actions.undo],
    [["w"], "Warm up", actions.warm],
    [["s"], "Setup", actions.setup],
    [["l"], "Prompts: load and save the setup by name", actions.prompts],
    [["e"], "Events", actions.events],
    [["c"], "Copy as code, or export", actions.copy],
    [["t"], "Light, dark, as the system", actions.theme],
    [["?"], "This list", actions.help],
  ];
  byId("shortcuts").replaceChildren(
    ...keys.map(([names, what]) => h("div", {}, h("dt", {}, ...names[0].split(" ").map((name) => h("kbd", {}, SHOWN[name] ?? name))), h("dd", {}, what))),
  );
  const byKey = new Map(keys.filter(([, , act, where]) => act && !where).map(([[name], , act]) => [name, act]));
  const inPlace = keys.filter(([, , act, where]) => act && where);
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.isComposing || document.querySelector("dialog[open]")) return;
    const near = inPlace.find(([[names], , , where]) => names.split(" ").includes(event.key) && event.target.matches?.(where));
    if (near && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      near[2](event.key);
      return;
    }
    const writes = event.target.matches?.("textarea, input, select");
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      if (event.shiftKey) actions.sendAll();
      else actions.send();
    } else if (event.key === "Enter" && endsMessage(event)) {
      event.preventDefault();
      actions.send();
    } else if (event.key === "Escape") {
      if (!actions.interrupt() && writes) event.target.blur();
    } else if (!writes && single.checked && !event.ctrlKey && !event.metaKey && !event.altKey && byKey.has(event.key)) {
      event.preventDefault();
      byKey.get(event.key)();
    }
  });
}

// An Enter that ends the composition of a character ends nothing else. A telephone has no Shift Enter for a new line.
function endsMessage(event) {
  const bare = !event.shiftKey && !event.altKey && !event.isComposing;
  return bare && event.target.matches?.(".composer textarea") && !matchMedia("(pointer: coarse)").matches;
}
