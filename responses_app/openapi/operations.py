"""What the API does, by path and method: names, parameters, bodies and answers. A test compares it with what it does.

The ids of operations are OpenAI's, where it has them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from responses_app.openapi.schemas import INCLUDE
from responses_app.protocol.dialects import DIALECT_HEADER, PRESETS, Switch
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.files import MAX_LISTED, PURPOSES
from responses_app.protocol.metadata import MAX_PAIRS
from responses_app.protocol.pages import DEFAULT_LIMIT, MAX_LIMIT
from responses_app.protocol.tool_outputs import COMPLETE, TOOL_MODE_HEADER, WAIT
from responses_app.protocol.vector_stores import STATUSES

JSON, EVENTS, TEXT = "application/json", "text/event-stream", "text/plain"
METRICS = "application/openmetrics-text"
FORM, BYTES = "multipart/form-data", "application/octet-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of a path.

    `answers` are the schemas of a 200 by their media types, `body` is that of a request's JSON, or of the form that is
    its `body_type`; `json` is that of JSON which may come in the form's place. `takes` names entries of `PARAMETERS`,
    `errors` are statuses beside those that all operations have. `is_open`: nobody needs a key.
    """

    id: str
    summary: str
    tag: str
    answers: Mapping[str, str]
    body: str | None = None
    body_type: str = JSON
    json: str | None = None
    takes: tuple[str, ...] = ()
    errors: tuple[int, ...] = ()
    is_open: bool = False


def _text(**more: object) -> JsonObject:
    return {"type": "string", **more}


_DIALECTS = "|".join((*PRESETS, *Switch))
_MAX_NUMBER = 999_999_999  # that `starting_after` takes

# By name, and whose where there are several: where a parameter stands, what it is, and what its value may be.
PARAMETERS: Mapping[str, tuple[str, str, JsonObject]] = {
    "limit": (
        "query",
        "How many items, at most.",
        {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
    ),
    "limit of files": (
        "query",
        "How many files, at most.",
        {"type": "integer", "minimum": 1, "maximum": MAX_LISTED, "default": MAX_LISTED},
    ),
    "filter": ("query", "Only files that have this status.", _text(enum=list(STATUSES))),
    "purpose": ("query", "Only files that are for this.", _text(enum=list(PURPOSES))),
    "order": ("query", "The newest first, or the oldest.", _text(enum=["asc", "desc"], default="desc")),
    "order of chats": ("query", "The oldest first, or the newest.", _text(enum=["asc", "desc"], default="asc")),
    "model": ("query", "Only what this model has said.", _text()),
    "metadata": (
        "query",
        "Only what has these pairs of metadata, as `metadata[key]=value`.",
        {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": MAX_PAIRS},
    ),
    "after": ("query", "The id of the item behind which the list is to begin.", _text()),
    "include": ("query", "What is to be given beside; `include[]` is the same.", INCLUDE),
    "stream": ("query", "Whether the response's stream is to be given, from its first event.", {"type": "boolean"}),
    "starting_after": (
        "query",
        "The sequence number behind which the stream is to begin.",
        {"type": "integer", "minimum": 0, "maximum": _MAX_NUMBER},
    ),
    "item_id": ("query", "The item that is to go.", _text(minLength=1)),
    "client_version": ("query", "The version of the Codex CLI: it is given a catalogue of its own.", _text()),
    DIALECT_HEADER: (
        "header",
        f"How events are to be worded: {', '.join(PRESETS)}, or switches of these; several are separated by commas.",
        _text(pattern=f"^({_DIALECTS})(,({_DIALECTS}))*$"),
    ),
    TOOL_MODE_HEADER: (
        "header",
        "Whether a response ends with calls of its client's tools, or waits for their outputs.",
        _text(enum=[COMPLETE, WAIT]),
    ),
}
REQUIRED = ("item_id",)

PAGED = ("limit", "order", "after")
_LIST = (*PAGED, "include")
_STREAMED = {JSON: "ResponseResource", EVENTS: "ServerSentEvent"}


def _of_responses(id: str, summary: str, answers: Mapping[str, str], **more: object) -> Operation:
    return Operation(id=id, summary=summary, tag="Responses", answers=answers, **more)  # type: ignore[arg-type]


def _of_conversations(id: str, summary: str, answer: str, **more: object) -> Operation:
    return Operation(id=id, summary=summary, tag="Conversations", answers={JSON: answer}, **more)  # type: ignore[arg-type]


def _of_server(id: str, summary: str, answers: Mapping[str, str], **more: object) -> Operation:
    return Operation(id=id, summary=summary, tag="Server", answers=answers, **more)  # type: ignore[arg-type]


_RUNS = (404, 409, 429)  # what a request that is to be generated for can be answered, too
IS_THERE = (404,)

OPERATIONS: Mapping[str, Mapping[str, Operation]] = {
    "/v1/responses": {
        "POST": _of_responses(
            "createResponse",
            "Create a response: at once, as a stream, or in the background",
            _STREAMED,
            body="CreateResponse",
            takes=(DIALECT_HEADER, TOOL_MODE_HEADER),
            errors=_RUNS,
        ),
    },
    "/v1/responses/input_tokens": {
        "POST": _of_responses(
            "getInputTokenCounts",
            "Count the tokens of the prompt that a request would have",
            {JSON: "InputTokens"},
            body="CreateResponse",
            errors=_RUNS,
        ),
    },
    "/v1/responses/compact": {
        "POST": _of_responses(
            "compactResponse",
            "Sum a conversation up",
            {JSON: "CompactedResponse"},
            body="CompactResponse",
            takes=(DIALECT_HEADER,),
            errors=_RUNS,
        ),
    },
    "/v1/responses/{response_id}": {
        "GET": _of_responses(
            "getResponse",
            "Return a response, or pick up its stream",
            _STREAMED,
            takes=("include", "stream", "starting_after", DIALECT_HEADER),
            errors=IS_THERE,
        ),
        "DELETE": _of_responses("deleteResponse", "Delete a response", {JSON: "DeletedResponse"}, errors=IS_THERE),
    },
    "/v1/responses/{response_id}/cancel": {
        "POST": _of_responses(
            "cancelResponse",
            "Cancel a background response",
            {JSON: "ResponseResource"},
            takes=(DIALECT_HEADER,),
            errors=IS_THERE,
        ),
    },
    "/v1/responses/{response_id}/input_items": {
        "GET": _of_responses(
            "listInputItems", "List what a response was asked", {JSON: "ItemList"}, takes=_LIST, errors=IS_THERE
        ),
    },
    "/v1/responses/{response_id}/tool_outputs": {
        "POST": _of_responses(
            "submitToolOutput",
            "Give a response that waits what came of a call",
            {JSON: "ResponseGoesOn"},
            body="ToolOutput",
            errors=(404, 409),
        ),
    },
    "/v1/conversations": {
        "POST": _of_conversations(
            "createConversation", "Create a conversation", "Conversation", body="NewConversation", errors=(429,)
        ),
    },
    "/v1/conversations/{conversation_id}": {
        "GET": _of_conversations("getConversation", "Return a conversation", "Conversation", errors=IS_THERE),
        "POST": _of_conversations(
            "updateConversation",
            "Change a conversation",
            "Conversation",
            body="ConversationChanges",
            errors=IS_THERE,
        ),
        "DELETE": _of_conversations(
            "deleteConversation", "Delete a conversation", "DeletedConversation", errors=IS_THERE
        ),
    },
    "/v1/conversations/{conversation_id}/items": {
        "GET": _of_conversations(
            "listConversationItems", "List a conversation's items", "ItemList", takes=_LIST, errors=IS_THERE
        ),
        "POST": _of_conversations(
            "createConversationItems",
            "Add items to a conversation",
            "ItemList",
            body="NewItems",
            takes=("include",),
            errors=IS_THERE,
        ),
        "DELETE": _of_conversations(
            "deleteNamedConversationItem",
            "Delete the item that the query names",
            "Conversation",
            takes=("item_id",),
            errors=IS_THERE,
        ),
    },
    "/v1/conversations/{conversation_id}/items/{item_id}": {
        "GET": _of_conversations(
            "getConversationItem", "Return an item of a conversation", "Item", takes=("include",), errors=IS_THERE
        ),
        "DELETE": _of_conversations(
            "deleteConversationItem", "Delete an item of a conversation", "Conversation", errors=IS_THERE
        ),
    },
    "/v1/models": {
        "GET": _of_server("listModels", "List the models", {JSON: "Models"}, takes=("client_version",)),
    },
    "/v1/models/{model}": {
        "GET": _of_server("retrieveModel", "Return a model", {JSON: "Model"}, errors=IS_THERE),
    },
    "/v1/openapi.json": {
        "GET": _of_server("getOpenApi", "Return this document", {JSON: "OpenApi"}, is_open=True),
    },
    "/health": {
        "GET": _of_server("getHealth", "Say that the process answers", {JSON: "Health"}, is_open=True),
    },
    "/ready": {
        "GET": _of_server("getReadiness", "Say whether requests can be served", {JSON: "Readiness"}, is_open=True),
    },
    "/metrics": {
        "GET": _of_server(
            "getMetrics", "Return the server's numbers for Prometheus", {TEXT: "", METRICS: ""}, errors=IS_THERE
        ),
    },
}
