// The playground: everything is put together here.

import { Newest } from "./asking.js";
import { takeDrops } from "./attachments.js";
import { Chats } from "./chats.js";
import { formAround } from "./composer.js";
import { Connection } from "./connection.js";
import { CopyAs } from "./copy-as.js";
import { door, facts } from "./door.js";
import { byId, duration, h, say } from "./dom.js";
import { Events } from "./events.js";
import { Lane } from "./lane.js";
import { closeDrawer, nameTheme, nextTheme, showChats, showSetup, toggleChats, toggleEvents, view, watchRoom } from "./looks.js";
import { OpenChats } from "./open-chats.js";
import { copyOf, emptySetup, said } from "./request.js";
import { SetupPanel } from "./setup.js";
import { listen } from "./shortcuts.js";
import { SignIn } from "./sign-in.js";
import { Streams } from "./streams.js";
import { prepare } from "./suggestions.js";
import { undoLast } from "./toast.js";
import { isTerminal } from "./turn.js";

const MAX_LANES = 16; // as many as may run at once on a connection

const socket = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/v1/responses`;
const connection = new Connection(socket, () => door.subprotocols(), () => door.why(), (heard) => new Streams(door, heard));
const events = new Events();
const panel = new SetupPanel(facts, door, { changed: () => openChats.changed(chosen, "setup") });
const models = new Newest(door);
const lanes = [];
const leaving = new Set(); // streams that no lane has any more, and whose responses still end
let chosen = null;

const page = {
  facts,
  send: (frame) => connection.send(frame),
  ask: (path, how) => door.ask(path, how),
  answer: (path) => door.answer(path),
  choose,
  changed: (lane, what) => openChats.changed(lane, what),
  mayTalk() {
    if (door.isShut) signIn.open();
    return !door.isShut;
  },
  fork(lane, turn) {
    const made = addLane(copyOf(lane.setup));
    if (!made) return;
    made.takeOver(lane, turn);
    openChats.changed(made, "path");
  },
  close(lane) {
    if (lanes.length === 1) return lane.clear();
    lane.interrupt();
    if (lane.running || lane.sent.length) leaving.add(lane.stream);
    const place = lanes.indexOf(lane);
    lanes.splice(place, 1);
    lane.element.remove();
    arrange();
    openChats.left(lane);
    choose(lanes[Math.max(0, place - 1)]);
    return chosen.composer.focus();
  },
  suggest(lane, suggestion) {
    prepare(lane.setup, suggestion);
    panel.show(lane.setup);
    panel.keep();
    const { efforts = [] } = suggestion;
    const all = [lane, efforts.length > 1 && addLane(copyOf(lane.setup))].filter(Boolean);
    efforts.slice(0, all.length).forEach((effort, place) => (all[place].setup.effort = effort));
    for (const each of all) each.say(said(suggestion.text));
    return lane.composer.focus();
  },
};

function addLane(setup, { focus = true } = {}) {
  if (lanes.length >= MAX_LANES) {
    say(`There are ${MAX_LANES} lanes, which is all that may run at once.`);
    return null;
  }
  let number = 1;
  while (lanes.some(({ name }) => name === `lane-${number}`) || leaving.has(`lane-${number}`)) number += 1;
  const lane = new Lane(`lane-${number}`, `Lane ${number}`, setup, page);
  lanes.push(lane);
  byId("lanes").append(lane.element);
  arrange();
  choose(lane);
  lane.element.scrollIntoView({ inline: "nearest", block: "nearest" });
  if (focus) lane.composer.focus();
  return lane;
}

function arrange() {
  byId("lanes").dataset.count = String(lanes.length);
}

function choose(lane) {
  if (chosen === lane) return;
  chosen = lane;
  for (const each of lanes) each.element.toggleAttribute("data-chosen", each === lane);
  panel.show(lane.setup, lanes.length > 1 ? lane.title : "");
  openChats.show();
}

const chats = new Chats(door, facts, {
  open(chat) {
    closeDrawer();
    view("talk");
    openChats.open(chat.id);
  },
  shown: () => chosen?.chat?.id,
  isOpen: (id) => lanes.some((lane) => lane.chat?.id === id),
  deleted: (id) => openChats.deleted(id),
  gone: (id) => openChats.gone(id),
  listed: () => openChats.show(),
});
let released = 0;
const openChats = new OpenChats(door, chats, {
  lanes,
  chosen: () => chosen,
  choose,
  addLane,
  showSetup: (lane) => lane === chosen && panel.show(lane.setup),
  release(lane) {
    leaving.add(lane.stream);
    released += 1;
    lane.stream = `${lane.name}.${released}`;
  },
});

const STATES = { idle: "Not connected", connecting: "Connecting", open: "Connected", waiting: "Reconnecting", closed: "Not connected" };

connection.addEventListener("state", ({ detail }) => {
  byId("state").dataset.state = detail.state;
  byId("state-text").textContent = STATES[detail.state];
  const banner = byId("banner");
  if (detail.state === "open") {
    banner.hidden = !detail.message;
    banner.replaceChildren(h("span", {}, detail.message ?? ""));
    for (const lane of lanes) lane.ready();
    return;
  }
  if (!detail.message) return;
  const wait = detail.wait ? ` Trying again in ${duration(detail.wait)}.` : "";
  const now = h("button", { type: "button", class: "quiet", on: { click: () => connection.open() } }, "Connect now");
  banner.replaceChildren(h("span", {}, `${detail.message}${wait}`), now);
  banner.hidden = false;
  if (detail.status === 401 || detail.status === 403) signIn.open(detail.message);
});

addEventListener("online", () => ["waiting", "closed"].includes(connection.state) && !door.isShut && connection.open());

connection.addEventListener("lost", () => {
  leaving.clear();
  for (const lane of lanes) lane.lost();
});

connection.addEventListener("frame", ({ detail }) => {
  events.add(detail);
  if (detail.direction === "out") return;
  const { frame } = detail;
  const lane = lanes.find(({ stream }) => stream === frame.stream_id);
  if (lane) lane.take(frame);
  else if (isTerminal(frame)) leaving.delete(frame.stream_id);
  else if (frame.type === "error") showProblem(frame.error);
  else if (frame.type === "connection_expiring") say("This connection ends in a few minutes; the page opens a new one then.");
});

addEventListener("pagehide", () => lanes.forEach((lane) => lane.interrupt())); // so that it can be continued

document.addEventListener("setup", () => {
  panel.show(chosen.setup);
  panel.keep();
});
document.addEventListener("download", ({ detail }) => door.download(detail.path, detail.name).catch(showProblem));

function showProblem(error) {
  byId("banner").replaceChildren(h("span", {}, error.message));
  byId("banner").hidden = false;
}

const signIn = new SignIn(door, {
  changed: () => {
    connection.open();
    loadModels();
    openChats.enter();
  },
  forgets: () => openChats.forget(),
});

async function loadModels() {
  if (door.isShut) return signIn.open();
  try {
    const { data } = await models.ask("/v1/models");
    const talking = data.filter(({ capabilities }) => capabilities?.includes("generate")); // others embed
    panel.models(talking.map(({ id }) => id));
  } catch (error) {
    if (error.name !== "AbortError") showProblem(error);
  }
  return undefined;
}

const copyAs = new CopyAs(() => ({ lane: chosen, base: `${location.origin}/v1`, needsKey: facts.door !== "open" }));

const actions = {
  write: () => {
    view("talk");
    chosen.composer.focus();
  },
  lane: () => addLane(copyOf(chosen.setup)),
  step: (by) => {
    const next = lanes[(lanes.indexOf(chosen) + by + lanes.length) % lanes.length];
    next.element.scrollIntoView({ inline: "nearest", block: "nearest" });
    next.composer.focus();
  },
  fork: () => {
    const turn = chosen.turns.findLast((each) => each.isOver && each.id);
    if (turn) page.fork(chosen, turn);
  },
  edit: () => chosen.turns.findLast(({ input }) => input.some(({ role }) => role === "user"))?.write(),
  regenerate: () => chosen.last((turn) => turn.isOver && turn.kind !== "warm", (turn) => chosen.regenerate(turn)),
  goOn: () => chosen.last((turn) => turn.isCut, (turn) => chosen.goOn(turn)),
  walk: (by) => chosen.last((turn) => !turn.walker.element.hidden, (turn) => chosen.walk(turn, by)),
  undo: undoLast,
  warm: () => chosen.warmUp(),
  send: () => chosen.composer.go.disabled || chosen.composer.submit(),
  sendAll: () => {
    const item = chosen.composer.take();
    if (!item) return;
    chosen.composer.focus();
    for (const lane of lanes) lane.say(item);
  },
  interrupt: () => closeDrawer() || chosen.interrupt(),
  chats: toggleChats,
  newChat: () => {
    closeDrawer();
    view("talk");
    openChats.begin();
  },
  toChats: () => {
    showChats();
    chats.focus();
  },
  search: () => {
    showChats();
    chats.search.focus();
  },
  inList: (what, by) => (what === "step" ? chats.step(by) : chats.withReached(what)),
  setup: showSetup,
  prompts: () => panel.prompts.open(),
  events: toggleEvents,
  copy: () => copyAs.open(),
  theme: nextTheme,
  help: () => byId("help").showModal(),
  sign: () => signIn.open(),
};

for (const button of document.querySelectorAll("[data-do]")) button.addEventListener("click", () => actions[button.dataset.do]());
for (const button of document.querySelectorAll("[data-view-of]")) button.addEventListener("click", () => view(button.dataset.viewOf));
for (const button of document.querySelectorAll("[data-close]")) button.addEventListener("click", () => button.closest("dialog").close());

listen(actions);
takeDrops((element) => formAround(element) ?? (lanes.find((lane) => lane.element.contains(element)) ?? chosen).composer);
nameTheme();
watchRoom();
// Not in the field, where keys would be letters: `i` leads there.
addLane({ ...emptySetup(), ...openChats.lastSetup }, { focus: !byId("single-keys").checked });
panel.links.look(); // before the address is that of a chat
if (door.isShut) {
  chats.clear();
} else {
  connection.open();
  openChats.start();
}
loadModels();
