"""Chat Completions in the document: what a request takes, and what a completion and its chunks have."""

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.requests.create_fields import ENGINE_FIELDS

FinishReason = Literal["stop", "length", "tool_calls", "function_call"]
ServiceTierRun = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]


class _Answer(BaseModel):
    model_config = ConfigDict(extra="allow")


class ChatUsage(_Answer):
    """The tokens of a completion: the prompt's once, and those of all choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: dict[str, int]


class ChatLogprobs(_Answer):
    """The log probabilities of an answer's tokens."""

    content: list[JsonObject]
    refusal: None


class ChatAnswer(_Answer):
    """What the model says; `reasoning_content` is an older name of `reasoning`."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    annotations: list[JsonObject]
    reasoning: str = ""
    reasoning_content: str = ""
    tool_calls: list[JsonObject] = []


class ChatChoice(_Answer):
    """One of the completions that were asked for; `stop_reason` is the stop string that ended it."""

    index: int
    message: ChatAnswer
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | None


class ChatCompletion(_Answer):
    """A whole completion."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    service_tier: ServiceTierRun
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: ChatUsage
    metadata: dict[str, str] = {}


class ChatCompletionList(BaseModel):
    """A part of a list of stored completions. The ids of an empty one are empty texts."""

    object: Literal["list"]
    data: list[ChatCompletion]
    first_id: str
    last_id: str
    has_more: bool


class StoredChatMessage(_Answer):
    """A message as it was sent; `content_parts` are those of a content that was a list."""

    id: str
    role: str
    content: str | None
    name: str | None
    refusal: str | None
    content_parts: list[JsonObject] | None


class ChatMessageList(BaseModel):
    """A part of a list of messages. The ids of an empty one are empty texts."""

    object: Literal["list"]
    data: list[StoredChatMessage]
    first_id: str
    last_id: str
    has_more: bool


class ChatChunkChoice(_Answer):
    """What is new of a choice."""

    index: int
    delta: JsonObject
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | None = None


class ChatCompletionChunk(_Answer):
    """A part of a completion; the last one may have its usage, and no choices."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    service_tier: ServiceTierRun
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: ChatUsage | None = None


CHAT_ANSWERS: tuple[type[BaseModel], ...] = (
    *(ChatCompletion, ChatCompletionChunk, ChatCompletionList, ChatMessageList),
)
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
