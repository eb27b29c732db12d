// Keys. Single ones never count while somebody writes, and can be switched off.

import { byId, h } from "./dom.js";

const STORED = "respsite.single-keys";
const MAC = navigator.platform?.startsWith("Mac");

/** Listen; `actions` are functions by name. */
export function listen(actions) {
  const single = byId("single-keys");
  single.checked = read() !== "off";
  single.addEventListener("change", () => write(single.checked ? "on" : "off"));
  const command = MAC ? "⌘" : "Ctrl";
  const keys = [
    [["Enter"], "Send; steer what runs (on a telephone a new line)"],
    [["Shift Enter"], "New line"],
    [[`${command} Enter`], "Send, wherever one is"],
    [[`${command} Shift Enter`], "Send to all lanes"],
    [["Esc"], "Interrupt what runs in this lane"],
    [["i"], "Write", actions.write],
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
    [["e"], "Events", actions.events],
    [["c"], "Copy as code", actions.copy],
    [["t"], "Light, dark, as the system", actions.theme],
    [["?"], "This list", actions.help],
  ];
  byId("shortcuts").replaceChildren(
    ...keys.map(([names, what]) => h("div", {}, h("dt", {}, ...names[0].split(" ").map((name) => h("kbd", {}, name))), h("dd", {}, what))),
  );
  const byKey = new Map(keys.filter(([, , act]) => act).map(([[name], , act]) => [name, act]));
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || document.querySelector("dialog[open]")) return;
    const writes = event.target.matches?.("textarea, input, select");
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      if (event.shiftKey) actions.sendAll();
      else actions.send();
    } else if (event.key === "Enter" && endsMessage(event)) {
      event.preventDefault();
      actions.send();
    } else if (event.key === "Escape") {
      actions.interrupt();
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

function read() {
  try {
    return localStorage.getItem(STORED);
  } catch {
    return null;
  }
}

function write(value) {
  try {
    localStorage.setItem(STORED, value);
  } catch {
    // Storage is off: it holds as long as the page.
  }
}
