// What an empty lane suggests. Each is sent at once, and does something with the demo engine and with a real model.

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

const ALL = [
  { title: "Watch it stream", text: "count to 200", detail: "steer or interrupt it meanwhile" },
  { title: "Answer a function by hand", text: "Call get_weather for Lisbon.", functions: [WEATHER] },
  { title: "Run Python", text: "python: print(sum(n * n for n in range(101)))", needs: "code_interpreter" },
  { title: "Search the web", text: "search for the Responses API", needs: "web_search" },
  { title: "Draw a picture", text: "draw a lighthouse at dusk", needs: "image_generation" },
  { title: "Two lanes side by side", text: "Explain WebSockets in two sentences.", efforts: ["low", "high"] },
];

/** Return those that this server can do. */
export const suggestions = (facts) => ALL.filter(({ needs }) => !needs || facts.tools.includes(needs));

/** Put what a suggestion needs into a setup. */
export function prepare(setup, { functions = [], needs }) {
  for (const made of functions) {
    if (!setup.functions.some(({ name }) => name === made.name)) setup.functions.push(structuredClone(made));
  }
  if (needs && !setup.switched.includes(needs)) setup.switched.push(needs);
}
