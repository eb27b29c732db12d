// The fields of a request that the setup has one control for: what they are called, and which values the server takes.
// Those of sampling are declared by the server, which the page carries; a test compares the bounds of the others with
// its own. A field that is left empty is not sent.

import { facts } from "./door.js";

/** `of` is what kind of value it has; `at` where it stands in the request, if that is not its name. */
export const FIELDS = [
  ...facts.fields,
  { name: "top_logprobs", group: "sampling", label: "Log probabilities", of: "integer", min: 0, max: 20, example: "none", hint: "Alternatives to each token. They are in the events" },
  { name: "max_output_tokens", group: "ending", label: "Max output tokens", of: "integer", min: 1, example: "any" },
  { name: "truncation", group: "ending", label: "If the prompt is too long", of: "choice", options: { disabled: "Refuse it", auto: "Drop old items" } },
  { name: "stop", group: "ending", label: "Stop strings", of: "lines", most: 4, longest: 256, hint: "One a line, 4 at most; \\n is a line end" },
  { name: "stop_token_ids", group: "ending", label: "Stop token ids", of: "integers", most: 64, example: "1, 2" },
  { name: "tool_choice", group: "use", label: "Tool choice", of: "tool" },
  { name: "parallel_tool_calls", group: "use", label: "Parallel calls", of: "boolean" },
  { name: "max_tool_calls", group: "use", label: "Max tool calls", of: "integer", min: 1, example: "any", hint: "Of this server's tools" },
  { name: "verbosity", at: ["text", "verbosity"], group: "more", label: "Verbosity", of: "choice", options: { low: "Low", medium: "Medium", high: "High" }, hint: "Accepted and echoed: the models here know no such wish" },
  { name: "summary", at: ["reasoning", "summary"], group: "more", label: "Reasoning summary", of: "choice", options: { auto: "Auto", concise: "Concise", detailed: "Detailed" } },
  { name: "service_tier", group: "more", label: "Service tier", of: "choice", options: { auto: "Auto", default: "Default", flex: "Flex", scale: "Scale", priority: "Priority", fast: "Fast", ultrafast: "Ultrafast" } },
  { name: "prompt_cache_key", group: "more", label: "Prompt cache key", of: "text", longest: 1024 },
  { name: "safety_identifier", group: "more", label: "Safety identifier", of: "text", longest: 1024 },
  { name: "user", group: "more", label: "User", of: "text", longest: 1024 },
  { name: "metadata", group: "more", label: "Metadata", of: "json", example: '{"order": "17"}' },
];

const WHOLE = /^[+-]?\d{1,15}$/u; // digits that a number of JavaScript holds exactly
const NUMBER = /^[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d{1,3})?$/iu;

/** Return what a text of a field says in a request. What it cannot be read as is sent as it is: the server says why. */
export function valueOf(field, text) {
  switch (field.of) {
    case "number":
      return NUMBER.test(text.trim()) ? Number(text) : text;
    case "integer":
      return WHOLE.test(text.trim()) ? Number(text) : text;
    case "boolean":
      return text === "true";
    case "lines":
      return text.split("\n").filter(Boolean).map((line) => line.replaceAll("\\n", "\n").replaceAll("\\t", "\t"));
    case "integers":
      return text.split(/[\s,]+/u).filter(Boolean).map((each) => (WHOLE.test(each) ? Number(each) : each));
    case "json":
      try {
        return JSON.parse(text);
      } catch {
        return text;
      }
    case "tool":
      return text.startsWith("{") ? JSON.parse(text) : text;
    default:
      return text;
  }
}

/** Return a value of a request as the text of a field, as `valueOf` reads it. */
export function textFor(field, value) {
  if (value === null || value === undefined) return "";
  if (field.of === "lines") return [value].flat().map((each) => each.replaceAll("\n", "\\n").replaceAll("\t", "\\t")).join("\n");
  if (field.of === "integers") return value.join(", ");
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** Return what is wrong with a text of a field, "" for nothing. */
export function wrongWith(field, text) {
  if (!text.trim()) return "";
  const value = valueOf(field, text);
  if (["number", "integer"].includes(field.of)) return isWithin(field, value) ? "" : `${range(field)}.`;
  if (field.of === "json") return typeof value === "object" && value !== null && !Array.isArray(value) ? "" : `A JSON object, like ${field.example}.`;
  if (field.of === "integers" && value.some((each) => typeof each !== "number")) return "Whole numbers, with commas between.";
  if (field.most && value.length > field.most) return `At most ${field.most}.`;
  if (field.longest && [value].flat().some((each) => each.length > field.longest)) return `At most ${field.longest} characters.`;
  return "";
}

const isWithin = ({ min = -Infinity, max = Infinity, above = -Infinity }, value) => typeof value === "number" && value >= min && value <= max && value > above;

function range({ of, min, max, above }) {
  const kind = of === "integer" ? "A whole number" : "A number";
  const least = above === undefined ? (min === undefined ? "" : ` from ${min}`) : ` above ${above}`;
  const most = max === undefined || max > 1e6 ? "" : `${above === undefined ? "" : ", up"} to ${max}`;
  return `${kind}${least}${most}`;
}

/** Return what is set of a group, in one line; "" for nothing. */
export function toldOf(group, setup) {
  const set = FIELDS.filter((field) => field.group === group && setup[field.name] !== "");
  return set.map((field) => `${field.label} ${shown(field, setup[field.name])}`).join(", ");
}

function shown({ of, options }, text) {
  if (of === "boolean") return text === "true" ? "on" : "off";
  if (of === "choice") return (options[text] ?? text).toLowerCase();
  if (of === "tool" && text.startsWith("{")) {
    const { name, server_label: label, type } = JSON.parse(text);
    return name ?? label ?? type;
  }
  return text.replaceAll("\n", " | ").slice(0, 40);
}
