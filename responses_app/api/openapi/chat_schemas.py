"""Chat Completions in the document: what a request takes, and what a stream is."""

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.requests.create_fields import ENGINE_FIELDS

CHAT_STREAM: dict[str, Any] = {
    "ChatServerSentEvent": {
        "type": "object",
        "description": "A part of a stream. The last one has `[DONE]` in the place of its data.",
        "properties": {
            "data": {
                "type": "string",
                "contentMediaType": "application/json",
                "contentSchema": {"$ref": "#/components/schemas/ChatCompletionChunk"},
            },
        },
        "required": ["data"],
    },
}


def chat_request(
    fields: dict[str, Any], messages: Iterable[type[BaseModel]], *, engine_fields: bool
) -> dict[str, JsonObject]:
    """Return the schema of a request, and of its messages, made of those of its `fields`."""
    properties = {
        name: schema for name, schema in fields["properties"].items() if engine_fields or name not in ENGINE_FIELDS
    }
    own = {
        "messages": {"type": "array", "items": _ref("ChatMessage"), "minItems": 1},
        "tools": _or_null({"type": "array", "items": {"anyOf": [_ref(name) for name in _TOOLS]}}),
        "tool_choice": _or_null(_ref("ToolChoice")),
        "response_format": _or_null(_ref("ResponseFormat")),
        "functions": _or_null({"type": "array", "items": _ref("Function")}),
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
        "ChatMessage": {"anyOf": [_ref(name) for name in names]},
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


_TOOLS = ("NestedFunctionTool", "NestedCustomTool")
_NAMED: JsonObject = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def _ref(name: str) -> JsonObject:
    return {"$ref": f"#/components/schemas/{name}"}


def _or_null(schema: JsonObject) -> JsonObject:
    return {"anyOf": [schema, {"type": "null"}]}
