"""What OpenTelemetry's conventions for generative AI say of spans, events and metrics, and a check of what is emitted.

The facts are those of the registry of https://github.com/open-telemetry/semantic-conventions-genai (its files
`model/gen-ai/registry.yaml`, `spans.yaml`, `events.yaml`, `metrics.yaml` and `gen-ai-*-messages.json`, at commits
002c8a6e and 004902b8, where it differs in types at 024a4f94, and its version 0.1.0; The OpenTelemetry Authors,
Apache-2.0), written down here as far as a server can have them: names, types, requirements.
The names are looked up in `opentelemetry-semantic-conventions`, too, which is installed.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jsonschema
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

ERROR = 2  # a span's status
DEBUG = 5  # the severity of an event
INTERNAL, CLIENT = 1, 3  # kinds of spans
_TYPES: dict[str, Any] = {"string": str, "int": int, "double": float, "boolean": bool, "string[]": list, "any": str}
ATTRIBUTES = {
    "string": "operation.name provider.name request.model response.id response.model conversation.id output.type "
    "agent.id agent.name agent.description agent.version tool.name tool.call.id tool.description tool.type "
    "data_source.id retrieval.query.text workflow.name token.type request.previous_response.id request.reasoning.level",
    "int": "request.max_tokens request.top_k request.choice.count request.seed usage.input_tokens usage.output_tokens "
    "usage.cache_read.input_tokens usage.cache_creation.input_tokens usage.reasoning.output_tokens "
    "embeddings.dimension.count",
    "double": "request.temperature request.top_p request.frequency_penalty request.presence_penalty "
    "response.time_to_first_chunk",
    "boolean": "request.stream conversation.compacted",
    "string[]": "request.stop_sequences request.encoding_formats response.finish_reasons",
    "any": "input.messages output.messages system_instructions tool.definitions tool.call.arguments tool.call.result",
}
TYPES = {f"gen_ai.{name}": kind for kind, names in ATTRIBUTES.items() for name in names.split()}
MEMBERS = {  # of what is one of several values; other values may be had where none of these fits
    "gen_ai.operation.name": "chat generate_content text_completion embeddings retrieval create_agent invoke_agent "
    "execute_tool invoke_workflow plan",
    "gen_ai.output.type": "text json image speech",
}
_REQUEST = (
    "request.max_tokens request.choice.count request.temperature request.top_p request.stop_sequences "
    "request.frequency_penalty request.presence_penalty request.seed output.type"
)
# In the registry's version 0.1.0, and not yet in the package.
NEWER = {
    f"gen_ai.{name}" for name in ("request.previous_response.id", "request.reasoning.level", "conversation.compacted")
}
_USAGE = "usage.input_tokens usage.cache_read.input_tokens usage.cache_creation.input_tokens usage.output_tokens"
_CONTENT = "system_instructions input.messages output.messages tool.definitions"


@dataclass(frozen=True)
class SpanRule:
    """What a span of some operations has."""

    required: str  # attributes, without `gen_ai.`
    others: str
    kinds: Sequence[int]
    named_by: str  # the attribute that its name ends with, where it has one


INFERENCE = SpanRule(
    "operation.name provider.name request.model",
    # `agent.id` says which agent asks, as any span may; the conventions list it at agents' own spans only.
    f"{_REQUEST} agent.id request.top_k request.stream request.previous_response.id request.reasoning.level "
    f"conversation.compacted response.id response.model response.finish_reasons "
    f"response.time_to_first_chunk usage.reasoning.output_tokens conversation.id {_USAGE} {_CONTENT}",
    (CLIENT, INTERNAL),
    "request.model",
)
SPANS = {
    **dict.fromkeys(("chat", "generate_content", "text_completion"), INFERENCE),
    "embeddings": SpanRule(
        "operation.name provider.name request.model",
        "request.encoding_formats usage.input_tokens embeddings.dimension.count response.model",
        (CLIENT,),
        "request.model",
    ),
    "execute_tool": SpanRule(
        "operation.name tool.name",
        "tool.call.id tool.description tool.type tool.call.arguments tool.call.result",
        (INTERNAL,),
        "tool.name",
    ),
    "invoke_agent": SpanRule(
        "operation.name provider.name",
        f"{_REQUEST} response.finish_reasons conversation.id agent.id agent.name agent.description agent.version "
        f"data_source.id request.model {_USAGE} {_CONTENT}",
        (INTERNAL, CLIENT),
        "agent.name",
    ),
}


EVENTS = ("gen_ai.client.inference.operation.details",)  # the others are of those who ask, and of evaluations


def _object(kind: str | None, required: str, **properties: object) -> dict[str, object]:
    const = {} if kind is None else {"type": {"const": kind}}
    return {"type": "object", "required": required.split(), "properties": {**const, **properties}}


_TEXT, _ID = {"type": "string"}, {"type": ["string", "null"]}
_KNOWN = {
    "text": _object("text", "type content", content=_TEXT),
    "reasoning": _object("reasoning", "type content", content=_TEXT),
    "tool_call": _object("tool_call", "type name", id=_ID, name=_TEXT),
    "tool_call_response": _object("tool_call_response", "type response", id=_ID),
    "server_tool_call": _object("server_tool_call", "type name server_tool_call", id=_ID, name=_TEXT,
                                server_tool_call=_object(None, "type", type=_TEXT)),
    "blob": _object("blob", "type modality content", content=_TEXT),
    "file": _object("file", "type modality file_id", file_id=_TEXT),
    "uri": _object("uri", "type modality uri", uri=_TEXT),
}  # fmt: skip
_PART = {  # a part of another type is a generic one
    "required": ["type"],
    "properties": {"type": {"type": "string"}},
    "allOf": [
        {"if": {"properties": {"type": {"const": kind}}}, "then": schema} for kind, schema in _KNOWN.items()
    ],
}  # fmt: skip
_PARTS = {"type": "array", "items": _PART}
_MESSAGES = {"type": "array", "items": _object(None, "role parts", role=_TEXT, parts=_PARTS, finish_reason=_ID)}
SCHEMAS = {
    "gen_ai.input.messages": _MESSAGES,
    "gen_ai.output.messages": _MESSAGES,
    "gen_ai.system_instructions": _PARTS,
}

_METRIC = {"gen_ai.operation.name", "gen_ai.provider.name"}
_METRIC_OTHERS = {"gen_ai.request.model", "gen_ai.response.model", "server.address", "server.port"}
METRICS: Mapping[str, tuple[set[str], set[str], Sequence[float]]] = {  # required, others, bounds of buckets; in seconds
    "gen_ai.server.request.duration": (
        _METRIC,
        {*_METRIC_OTHERS, "error.type"},
        (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
    ),
    "gen_ai.server.time_to_first_token": (
        _METRIC,
        _METRIC_OTHERS,
        (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    ),
    "gen_ai.server.time_per_output_token": (
        _METRIC,
        _METRIC_OTHERS,
        (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
    ),
}
PACKAGED = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}


def problems(name: str, kind: int, status: int, attributes: Mapping[str, Any]) -> list[str]:
    """Return what of a span does not fit the conventions. One that is no operation of theirs has nothing of theirs."""
    theirs = {key: value for key, value in attributes.items() if key.startswith("gen_ai.")}
    found = [f"{key} is in no registry" for key in theirs if key not in TYPES or key not in PACKAGED | NEWER]
    if not theirs:
        return found
    operation = str(theirs.get("gen_ai.operation.name"))
    rule = SPANS.get(operation)
    if rule is None:
        return [*found, f"{operation} is no operation that a server has"]
    required, others = ({f"gen_ai.{each}" for each in names.split()} for names in (rule.required, rule.others))
    found += [f"{key} is missing" for key in required - theirs.keys()]
    found += [f"{key} is not of {operation}" for key in theirs.keys() - required - others]
    for key, value in theirs.items():
        wanted = _TYPES[TYPES.get(key, "any")]
        if type(value) is not wanted or (wanted is list and not all(isinstance(each, str) for each in value)):
            found.append(f"{key} is {value!r}, not of the type {TYPES.get(key)}")
        if key in MEMBERS and value not in MEMBERS[key].split():
            found.append(f"{key} is {value!r}")
        if key in SCHEMAS:
            found += [f"{key}: {error.message}" for error in errors_of(json.loads(value), SCHEMAS[key])]
    if kind not in rule.kinds:
        found.append(f"its kind is {kind}")
    last = theirs.get(f"gen_ai.{rule.named_by}")
    if name != (operation if last is None else f"{operation} {last}"):
        found.append(f"{name!r} is not its name")
    if (status == ERROR) != ("error.type" in attributes):
        found.append("error.type goes with the status")
    return found


def event_problems(record: Any, attributes: Mapping[str, Any]) -> list[str]:
    """Return what of an event does not fit the conventions; `record` is as OTLP has it."""
    found = [] if record.event_name in EVENTS else [f"{record.event_name!r} is not an event that a server sends"]
    if record.severity_number != DEBUG:
        found.append(f"its severity is {record.severity_number}")
    if not record.span_id or not record.trace_id:
        found.append("it belongs to no span")
    # It has what its span has; contents stand in it as they are, not as JSON.
    found += [f"{key} is JSON" for key in SCHEMAS if isinstance(attributes.get(key), str)]
    written = {key: json.dumps(value) if key in SCHEMAS else value for key, value in attributes.items()}
    operation, model = (str(attributes.get(f"gen_ai.{name}")) for name in ("operation.name", "request.model"))
    if "error.type" in attributes and attributes.get("gen_ai.response.finish_reasons") != ["error"]:
        found.append("it has an error, and has not failed")
    status = ERROR if "error.type" in attributes else 0
    return found + problems(f"{operation} {model}", INTERNAL, status, written)


def errors_of(value: object, schema: Mapping[str, object]) -> list[Any]:
    """Return where a value does not fit a schema."""
    return list(jsonschema.Draft202012Validator(dict(schema)).iter_errors(value))
