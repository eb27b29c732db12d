"""Chat completions in the document: how they are made, and what is done with those that are stored."""

from collections.abc import Mapping

from responses_app.api.parameters import AFTER, LIMIT, Parameter, text
from responses_app.openapi.operations import EVENTS, IS_THERE, JSON, Operation
from responses_app.protocol.metadata import MAX_PAIRS


def _of_chats(id: str, summary: str, answers: Mapping[str, str], **more: object) -> Operation:
    return Operation(id=id, summary=summary, tag="Chat", answers=answers, **more)  # type: ignore[arg-type]


_MODEL = Parameter("model", "Only what this model has said.", text())
_METADATA = Parameter(
    "metadata",
    "Only what has these pairs of metadata, as `metadata[key]=value`.",
    {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": MAX_PAIRS},
)
_ORDER = Parameter("order", "The oldest first, or the newest.", text(enum=["asc", "desc"], default="asc"))
_PAGED = (LIMIT, _ORDER, AFTER)
_LIST = "/v1/chat/completions"
_ONE = f"{_LIST}/{{completion_id}}"

CHAT_OPERATIONS: Mapping[str, Mapping[str, Operation]] = {
    _LIST: {
        "GET": _of_chats(
            "listChatCompletions",
            "List the chat completions that are stored",
            {JSON: "ChatCompletionList"},
            takes=(_MODEL, _METADATA, *_PAGED),
        ),
        "POST": _of_chats(
            "createChatCompletion",
            "Create a chat completion, at once or as a stream",
            {JSON: "ChatCompletion", EVENTS: "ChatServerSentEvent"},
            body="CreateChatCompletion",
            errors=(404, 409, 429),
        ),
    },
    _ONE: {
        "GET": _of_chats(
            "getChatCompletion", "Return a stored chat completion", {JSON: "ChatCompletion"}, errors=IS_THERE
        ),
        "POST": _of_chats(
            "updateChatCompletion",
            "Change the metadata of a stored chat completion",
            {JSON: "ChatCompletion"},
            body="ChatCompletionChanges",
            errors=IS_THERE,
        ),
        "DELETE": _of_chats(
            "deleteChatCompletion",
            "Delete a stored chat completion",
            {JSON: "DeletedChatCompletion"},
            errors=IS_THERE,
        ),
    },
    f"{_ONE}/messages": {
        "GET": _of_chats(
            "getChatCompletionMessages",
            "List what a stored chat completion was asked",
            {JSON: "ChatMessageList"},
            takes=_PAGED,
            errors=IS_THERE,
        ),
    },
}
