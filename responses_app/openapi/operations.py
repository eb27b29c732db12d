"""What the API does, by path and method: names, parameters, bodies and answers. A test compares it with what it does.

The ids of operations are OpenAI's, where it has them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from responses_app.api.parameters import DIALECT, INCLUDE, PAGED, Parameter, text
from responses_app.protocol.tool_outputs import COMPLETE, TOOL_MODE_HEADER, WAIT

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
    takes: tuple[Parameter, ...] = ()
    errors: tuple[int, ...] = ()
    is_open: bool = False


_STREAM = Parameter(
    "stream", "Whether the response's stream is to be given, from its first event.", {"type": "boolean"}
)
_STARTING_AFTER = Parameter(
    "starting_after",
    "The sequence number behind which the stream is to begin.",
    {"type": "integer", "minimum": 0, "maximum": 999_999_999},
)
_ITEM_ID = Parameter("item_id", "The item that is to go.", text(minLength=1), required=True)
_CLIENT_VERSION = Parameter(
    "client_version", "The version of the Codex CLI: it is given a catalogue of its own.", text()
)
_TOOL_MODE = Parameter(
    TOOL_MODE_HEADER,
    "Whether a response ends with calls of its client's tools, or waits for their outputs.",
    text(enum=[COMPLETE, WAIT]),
    where="header",
)

_LIST = (*PAGED, INCLUDE)
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
            takes=(DIALECT, _TOOL_MODE),
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
            takes=(DIALECT,),
            errors=_RUNS,
        ),
    },
    "/v1/responses/{response_id}": {
        "GET": _of_responses(
            "getResponse",
            "Return a response, or pick up its stream",
            _STREAMED,
            takes=(INCLUDE, _STREAM, _STARTING_AFTER, DIALECT),
            errors=IS_THERE,
        ),
        "DELETE": _of_responses("deleteResponse", "Delete a response", {JSON: "DeletedResponse"}, errors=IS_THERE),
    },
    "/v1/responses/{response_id}/cancel": {
        "POST": _of_responses(
            "cancelResponse",
            "Cancel a background response",
            {JSON: "ResponseResource"},
            takes=(DIALECT,),
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
            takes=(INCLUDE,),
            errors=IS_THERE,
        ),
        "DELETE": _of_conversations(
            "deleteNamedConversationItem",
            "Delete the item that the query names",
            "Conversation",
            takes=(_ITEM_ID,),
            errors=IS_THERE,
        ),
    },
    "/v1/conversations/{conversation_id}/items/{item_id}": {
        "GET": _of_conversations(
            "getConversationItem", "Return an item of a conversation", "Item", takes=(INCLUDE,), errors=IS_THERE
        ),
        "DELETE": _of_conversations(
            "deleteConversationItem", "Delete an item of a conversation", "Conversation", errors=IS_THERE
        ),
    },
    "/v1/models": {
        "GET": _of_server("listModels", "List the models", {JSON: "Models"}, takes=(_CLIENT_VERSION,)),
    },
    "/v1/models/{model}": {
        "GET": _of_server("retrieveModel", "Return a model", {JSON: "Model"}, errors=IS_THERE),
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
