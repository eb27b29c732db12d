"""The document's schemas: of what requests may be, by the types that validate them, and of what is answered.

What the protocol reads without a type (a request's input, its tools, the format of its answer) is put in here, for
responses, chats, conversations, and requests to models alone.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from responses_app.protocol.chat.encoder import ChatCompletionChunk
from responses_app.protocol.chat.messages import MESSAGES
from responses_app.protocol.chat.request import ChatFields
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.events.events import EventType
from responses_app.protocol.items.items import ParsedItem
from responses_app.protocol.messages.blocks import MESSAGES as MESSAGES_OF_ANTHROPIC
from responses_app.protocol.messages.message import EVENT_TYPES
from responses_app.protocol.messages.request import CountFields, MessagesFields
from responses_app.protocol.messages.tools import TOOLS as TOOLS_OF_ANTHROPIC
from responses_app.protocol.messages.tools import MessagesMcpServer
from responses_app.protocol.requests.create_fields import ENGINE_FIELDS, Fields, TextFormat
from responses_app.protocol.requests.requests import COMPACT_FIELDS
from responses_app.protocol.requests.resources import ResponseObject
from responses_app.protocol.requests.server_tools import ITEMS as RUN_BY_SERVER
from responses_app.protocol.requests.server_tools import McpServer
from responses_app.protocol.requests.tools import CLIENT_TOOLS, Custom, Function, Namespace
from responses_app.protocol.stateless.completions import MAX_CHOICES, CompletionFields
from responses_app.protocol.stateless.decisions import DecisionFields
from responses_app.protocol.stateless.embeddings import MAX_INPUTS, MAX_TOKEN_ID, EmbeddingFields
from responses_app.resources.conversations.fields import MAX_ITEMS, ConversationFields
from responses_app.web.endpoint import INCLUDE, Endpoint, Schema

_TEMPLATE = "#/components/schemas/{model}"


class _Generator(GenerateJsonSchema):
    """pydantic's, without a title on each field that only repeats its name."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def ref(name: str) -> JsonObject:
    """Return a reference to a schema."""
    return {"$ref": _TEMPLATE.format(model=name)}


def name_of(schema: Schema) -> str:
    """Return the name of a schema."""
    return schema if isinstance(schema, str) else schema.__name__


def schemas(endpoints: Sequence[Endpoint], *, engine_fields: bool) -> JsonObject:
    """Return all schemas by their names; `engine_fields`: a create takes the fields that are the engine's."""
    named = [schema for each in endpoints for schema in (each.body, *each.contents.values())]
    types: tuple[Any, ...] = (
        *dict.fromkeys(each for each in named if not isinstance(each, str | None)),
        *(Fields, ConversationFields, Function, Custom, Namespace, McpServer),
        *_MODEL_REQUESTS,
        *(ChatFields, *MESSAGES.values()),
        *(MessagesFields, CountFields, MessagesMcpServer, *_TOOLS_OF_MESSAGES, *MESSAGES_OF_ANTHROPIC.values()),
        ChatCompletionChunk,
        *dict.fromkeys(each.error_answer for each in endpoints),
    )
    named_schemas = _defined((each.__name__, each) for each in types)
    named_schemas |= _defined([("InputItem", ParsedItem), ("TextFormat", TextFormat)])
    # From here on raw schemas are put in for what the types do not tell; what only served for that is taken out.
    named_schemas |= _defined([("ResponseResource", ResponseObject)])  # so the specification of Open Responses calls it
    named_schemas |= _model_requests(named_schemas)
    named_schemas |= _tools(named_schemas) | _CREATE | _STREAM | _CHAT_STREAM
    chat = named_schemas.pop("ChatFields")
    named_schemas |= _chat_request(chat, MESSAGES.values(), engine_fields=engine_fields)
    named_schemas |= _messages_requests(named_schemas, MESSAGES_OF_ANTHROPIC.values()) | _MESSAGES_STREAM
    del named_schemas["Namespace"], named_schemas["McpServer"]  # only tools are such
    named_schemas |= {each.form.name: each.form.schema for each in endpoints if each.form is not None}
    fields = named_schemas.pop("Fields")
    if not engine_fields:
        fields["properties"] = {name: each for name, each in fields["properties"].items() if name not in ENGINE_FIELDS}
    named_schemas["TextOptions"]["properties"]["format"] = _or_null(ref("TextFormat"))
    named_schemas["CreateResponse"] = _create(fields)
    named_schemas["CompactResponse"] = _compact(fields)
    conversation = named_schemas.pop("ConversationFields")
    named_schemas["NewConversation"] = {
        **conversation,
        "description": "A conversation that is to be, with its first items.",
        "properties": {**conversation["properties"], "items": _or_null(_ITEMS)},
    }
    named_schemas["ConversationChanges"] = {
        **conversation,
        "description": "What is to change of a conversation.",
        "anyOf": [{"required": [name]} for name in conversation["properties"]],
    }
    named_schemas["NewItems"] = {"type": "object", "properties": {"items": _ITEMS}, "required": ["items"]}
    return dict(sorted(named_schemas.items()))


def _defined(types: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the schemas of these types and of those within them."""
    definitions: dict[str, Any] = {}
    for name, each in types:
        schema = TypeAdapter(each).json_schema(ref_template=_TEMPLATE, schema_generator=_Generator)
        inside = schema.pop("$defs", {})
        # Two types of one name would replace each other in the document.
        for inner, described in {name: schema, **inside}.items():  # a type alias is one of those within itself
            described.pop("title", None)  # which only repeats the name
            assert definitions.setdefault(inner, described) == described, f"two types are called {inner}"
    return definitions


def _sent(description: str, schema: JsonObject, *required: str, is_named: bool = True) -> JsonObject:
    """Return the schema of a server-sent event with such data."""
    name: JsonObject = {"event": {"type": "string"}} if is_named else {}
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": schema}
    properties: JsonObject = {**name, "data": data}
    return {"type": "object", "description": description, "properties": properties, "required": list(required)}


_CHAT_STREAM: dict[str, Any] = {
    "ChatServerSentEvent": _sent(
        "A part of a stream. The last one has `[DONE]` in the place of its data.",
        ref("ChatCompletionChunk"),
        "data",
        is_named=False,
    )
}


def _chat_request(
    fields: dict[str, Any], messages: Iterable[type[BaseModel]], *, engine_fields: bool
) -> dict[str, JsonObject]:
    """Return the schema of a request, and of its messages, made of those of its `fields`."""
    properties = {
        name: schema for name, schema in fields["properties"].items() if engine_fields or name not in ENGINE_FIELDS
    }
    own = {
        "messages": {"type": "array", "items": ref("ChatMessage"), "minItems": 1},
        "tools": _or_null({"type": "array", "items": {"anyOf": [ref(name) for name in _TOOLS]}}),
        "tool_choice": _or_null(ref("ToolChoice")),
        "response_format": _or_null(ref("ResponseFormat")),
        "functions": _or_null({"type": "array", "items": ref("Function")}),
        "function_call": _or_null({"anyOf": [{"type": "string", "enum": ["none", "auto"]}, _NAMED]}),
    }
    names = dict.fromkeys(each.__name__ for each in messages)
    return {
        "CreateChatCompletion": {
            **fields,
            "description": "A chat that is to go on. Fields that are not known are ignored.",
            "properties": {**properties, **own},
            "required": ["messages"],
        },
        "ChatMessage": {"anyOf": [ref(name) for name in names]},
        "ResponseFormat": {
            "type": "object",
            "description": "The shape of the answer.",
            "properties": {
                "type": {"type": "string", "enum": ["text", "json_object", "json_schema"]},
                "json_schema": {
                    "type": "object",
                    "properties": {"name": {"type": "string"}, "schema": {"type": "object"}},
                    "required": ["name", "schema"],
                },
            },
            "required": ["type"],
        },
    }


_TOOLS_OF_MESSAGES = tuple(dict.fromkeys(TOOLS_OF_ANTHROPIC.values()))


def _messages_requests(definitions: dict[str, Any], messages: Iterable[type[BaseModel]]) -> dict[str, JsonObject]:
    """Take the fields of Anthropic's requests from the schemas that were found, and return the whole requests."""
    own = {
        "messages": {"type": "array", "items": ref("MessagesMessage"), "minItems": 1},
        "tools": _or_null({"type": "array", "items": {"anyOf": [ref(each.__name__) for each in _TOOLS_OF_MESSAGES]}}),
        "mcp_servers": _or_null({"type": "array", "items": ref("MessagesMcpServer")}),
    }
    about = {
        "CreateMessage": ("MessagesFields", "A conversation that is to go on. Fields that are not known are ignored."),
        "CountMessageTokens": ("CountFields", "A conversation whose tokens are to be counted."),
    }
    requests: dict[str, JsonObject] = {}
    for name, (kind, description) in about.items():
        fields = definitions.pop(kind)
        required = [*fields["required"], "messages"]
        properties = fields["properties"] | own
        requests[name] = {**fields, "description": description, "properties": properties, "required": required}
    return {**requests, "MessagesMessage": {"anyOf": [ref(each.__name__) for each in messages]}}


def _type_is(*kinds: str) -> JsonObject:
    kind: JsonObject = {"type": "string", "enum": list(kinds)}
    return {"type": "object", "properties": {"type": kind}, "required": ["type"]}


_MESSAGES_STREAM: dict[str, Any] = {
    "MessagesServerSentEvent": _sent(
        "A part of a stream, which is called as its data says. The last one is `message_stop`.",
        _type_is(*EVENT_TYPES),
        *("event", "data"),
    )
}
_TOOLS = ("NestedFunctionTool", "NestedCustomTool")
_NAMED: JsonObject = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def _or_null(schema: JsonObject) -> JsonObject:
    return {"anyOf": [schema, {"type": "null"}]}


_MODEL_REQUESTS = (EmbeddingFields, CompletionFields, DecisionFields)


def _model_requests(definitions: dict[str, Any]) -> dict[str, Any]:
    """Take the fields of requests from the schemas that were found, and return the whole requests."""
    embedding, completion = definitions.pop("EmbeddingFields"), definitions.pop("CompletionFields")
    decisions = definitions.pop("DecisionFields")
    input_forms: list[JsonObject] = [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]
    return {
        "CreateDecision": {
            **decisions,
            "description": "An input, as of a response, and questions about it.",
            "properties": {**decisions["properties"], "input": {"anyOf": input_forms}},
            "required": [*decisions["required"], "input"],
        },
        "CreateEmbedding": {
            **embedding,
            "description": "What is to be embedded: each text, or list of tokens, by itself.",
            "properties": {**embedding["properties"], "input": _inputs(MAX_INPUTS)},
            "required": ["input"],
        },
        "CreateCompletion": {
            **completion,
            "description": "Prompts that are to go on as they are. Fields that are not known are ignored.",
            "properties": {**completion["properties"], "prompt": _inputs(MAX_CHOICES)},
            "required": ["prompt"],
        },
    }


def _inputs(maximum: int) -> JsonObject:
    text: JsonObject = {"type": "string", "minLength": 1}
    token: JsonObject = {"type": "integer", "minimum": 0, "maximum": MAX_TOKEN_ID}
    tokens: JsonObject = {"type": "array", "items": token, "minItems": 1}
    several: list[JsonObject] = [
        {"type": "array", "items": each, "minItems": 1, "maxItems": maximum} for each in (text, tokens)
    ]
    return {"anyOf": [text, tokens, *several]}


def _create(fields: dict[str, Any]) -> JsonObject:
    own = {
        "input": _or_null(ref("Input")),
        "tools": _or_null({"type": "array", "items": ref("Tool")}),
        "tool_choice": _or_null(ref("ToolChoice")),
        "include": _or_null(INCLUDE.schema),
    }
    description = "What a response is to be made of. Fields that are not known are ignored."
    return {**fields, "description": description, "properties": {**fields["properties"], **own}}


def _compact(fields: dict[str, Any]) -> JsonObject:
    taken = {name: fields["properties"][name] for name in COMPACT_FIELDS}
    return {
        "type": "object",
        "description": "What is to be summed up: the input, behind the response that it continues.",
        "properties": {**taken, "input": _or_null(ref("Input"))},
        "required": ["model"],
    }


_ITEMS: JsonObject = {"type": "array", "items": ref("InputItem"), "maxItems": MAX_ITEMS}


def _tools(definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schemas of tools, by their names, made of those of what tools hold.

    Each is an object with a name of its own: generators of clients (openapi-python-client 0.29) make no types of
    `allOf` within a union, and leave out every operation that takes one.
    """
    tools = {
        **{f"{name}Tool": _typed(name.lower(), definitions[name]) for name in ("Function", "Custom", "Namespace")},
        **{f"Nested{name}Tool": _nested(name.lower(), name) for name in ("Function", "Custom")},
        "McpTool": _typed("mcp", definitions["McpServer"]),
        "OtherTool": _type_is(*_BY_TYPE),
    }
    description = (
        "A tool that the client runs, in the form of the Responses API or that of Chat Completions, or one that the "
        "server runs, where that is set up."
    )
    return {**tools, "Tool": {"description": description, "anyOf": [ref(name) for name in tools]}}


def _typed(kind: str, schema: dict[str, Any]) -> JsonObject:
    """Return a tool of this type, whose further fields the schema has."""
    of_type: dict[str, Any] = _type_is(kind)
    properties = of_type["properties"] | schema["properties"]
    return {**schema, "properties": properties, "required": of_type["required"] + schema["required"]}


def _nested(kind: str, schema: str) -> JsonObject:
    """Return a tool of this type as Chat Completions has it: its fields are in an object of the type's name."""
    of_type: dict[str, Any] = _type_is(kind)
    properties = of_type["properties"] | {kind: ref(schema)}
    return {**of_type, "properties": properties, "required": [*of_type["required"], kind]}


_DESCRIBED = ("function", "custom", "namespace", "mcp")
_BY_TYPE = [kind for kind in (*CLIENT_TOOLS, *RUN_BY_SERVER) if kind not in _DESCRIBED]
_CREATE: dict[str, Any] = {
    "Input": {"anyOf": [{"type": "string"}, {"type": "array", "items": ref("InputItem")}]},
    "ToolChoice": {
        "description": "Which tools the model may call, and whether it must; an object names one, or several.",
        "anyOf": [
            {"type": "string", "enum": ["none", "auto", "required"]},
            _type_is("function", "custom", "allowed_tools", "mcp", *_BY_TYPE),
        ],
    },
}
_STREAM: dict[str, Any] = {
    "ServerSentEvent": _sent(
        "An event of a stream. The last one has no name, and `[DONE]` in the place of its data.",
        ref("ResponseStreamEvent"),
        "data",
    ),
    "ResponseStreamEvent": {
        "type": "object",
        "description": "The data of an event. A dialect may have other types beside and in the place of these.",
        "properties": {
            "type": {"type": "string", "pattern": "^response\\.", "examples": [str(each) for each in EventType]},
            "sequence_number": {"type": "integer"},
        },
        "required": ["type", "sequence_number"],
    },
}
