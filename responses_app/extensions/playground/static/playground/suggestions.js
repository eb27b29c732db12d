// What an empty lane suggests: three cards of what one can do here. Each suggestion is sent at once, and does something
// with the demo engine and with a real model. One whose tool this server lacks says which setting turns it on.

import { h } from "./dom.js";

const WEATHER = {
  type: "function",
  name: "get_weather",
  description: "Tells the weather of a city.",
  parameters: {
    type: "object",
    properties: { city: { type: "string", description: "The city" } },
    required: ["city"],
    additionalProperties: false,
  },
  strict: true,
};

const CARDS = [
  {
    title: "Talk",
    text: "Answers stream in. Steer one while it runs, or interrupt it.",
    all: [
      { title: "Watch it stream", text: "count to 200" },
      { title: "Two lanes side by side", text: "Explain WebSockets in two sentences.", efforts: ["low", "high"] },
    ],
  },
  {
    title: "Call tools",
    text: "You answer a function by hand. The server runs its own tools.",
    all: [
      { title: "Answer a function by hand", text: "Call get_weather for Lisbon.", functions: [WEATHER] },
      { title: "Search the web", text: "search for the Responses API", needs: "web_search" },
    ],
  },
  {
    title: "Make something",
    text: "The model writes code that runs in a sandbox, and draws pictures.",
    all: [
      { title: "Run Python", text: "python: print(sum(n * n for n in range(101)))", needs: "code_interpreter" },
      { title: "Draw a picture", text: "draw a lighthouse at dusk", needs: "image_generation" },
    ],
  },
];

// How a tool is turned on that this server lacks, and the page that says more.
const TURNS_ON = {
  web_search: { how: ["Set ", h("code", {}, "SEARCH_URL"), " or ", h("code", {}, "SEARCH_MCP"), "."], page: "web-search" },
  code_interpreter: { how: ["Set ", h("code", {}, "SANDBOX=auto"), "."], page: "code-interpreter" },
  image_generation: { how: ["Set ", h("code", {}, "IMAGE_SERVICE_URL"), "."], page: "images" },
};

/** Return the cards; `take` is called with the suggestion that somebody chooses. */
export function cards(facts, take) {
  const shown = (each) => {
    const why = lacking(each.needs, facts);
    if (why) return h("p", { class: "lacking" }, h("strong", {}, each.title), h("span", {}, ...why));
    return h("button", { type: "button", class: "card", on: { click: () => take(each) } }, h("strong", {}, each.title), h("span", {}, each.text));
  };
  return CARDS.map(({ title, text, all }) => h("section", { class: "what-one-can-do" }, h("h4", {}, title), h("p", {}, text), ...all.map(shown)));
}

/** Return why a tool cannot be used here, and what turns it on; null where it can. */
function lacking(needs, facts) {
  if (!needs) return null;
  const { how, page } = TURNS_ON[needs];
  const more = h("a", { class: "link", href: `/docs/how-to/${page}.html`, target: "_blank", rel: "noopener" }, "More");
  if (!facts.tools.includes(needs)) return ["Not set up here. ", ...how.map((each) => each.cloneNode?.(true) ?? each), " ", more];
  return needs === "code_interpreter" && facts.sandbox_missing ? [`No sandbox is installed here. ${facts.sandbox_missing} `, more] : null;
}

/** Put what a suggestion needs into a setup. */
export function prepare(setup, { functions = [], needs }) {
  const cards = (setup.cards = structuredClone(setup.cards ?? NOTHING));
  for (const made of functions) {
    if (setup.functions.some(({ name }) => name === made.name)) continue;
    setup.functions.push(structuredClone(made));
    cards.functions.push(JSON.stringify(made));
  }
  if (!needs || setup.switched.includes(needs)) return;
  setup.switched.push(needs);
  cards.switched.push(needs);
}

/** Take what suggestions have put there out again, but for functions that were changed since; return whether there was any. */
export function takeOut(setup) {
  const { functions, switched } = setup.cards ?? NOTHING;
  if (!functions.length && !switched.length) return false;
  setup.functions = setup.functions.filter((each) => !functions.includes(JSON.stringify(each)));
  setup.switched = setup.switched.filter((each) => !switched.includes(each));
  setup.cards = structuredClone(NOTHING);
  return true;
}

const NOTHING = { functions: [], switched: [] };
