"""`POST /v1/responses/compact`: a create that only compacts, and what its response becomes."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from typing_extensions import TypedDict

from responses_app.protocol.errors import ApiError, JsonObject, ResponseError, invalid_request, rate_limited
from responses_app.protocol.fields import CACHES_ALL, ClientModel, Refused, check_fields, known_names
from responses_app.protocol.items.items import parse_input
from responses_app.protocol.items.output_items import ItemJson
from responses_app.protocol.json_size import json_size
from responses_app.protocol.requests.create_fields import Fields
from responses_app.protocol.requests.requests import CreateRequest, parse_create
from responses_app.protocol.requests.resources import ResponseObject, Status
from responses_app.protocol.usage import Usage
from responses_app.protocol.validation import missing

FIELDS = (  # of a create that this takes, too; everything else means nothing here
    "model",
    "previous_response_id",
    "instructions",
    "service_tier",
    "prompt_cache_key",
    "prompt_cache_retention",
)


class CompactFields(ClientModel):
    """The names of the fields. Those that it shares with a create are read as those of one."""

    beside: ClassVar = ("input", *FIELDS)
    refused: ClassVar = {
        "conversation": Refused(
            "Name a response of the conversation with 'previous_response_id', or send its items as 'input'."
        ),
        "image": Fields.refused["image"],
    }
    idle: ClassVar = {
        "prompt_cache_options": CACHES_ALL,
        **dict.fromkeys(
            sorted(known_names(Fields).difference(("input", "conversation", "image", "prompt_cache_options"), FIELDS)),
            "A summary is made in one way: no other field of a create changes it.",
        ),
    }
    own: ClassVar = ("conversation", *(name for name in idle if name != "prompt_cache_options"))


_TRIGGER: JsonObject = {"type": "compaction_trigger"}


def parse_compact(data: Mapping[str, object]) -> CreateRequest:
    """Validate a request. Raises `ApiError` that names the field and says what it takes."""
    check_fields(CompactFields, data)
    if "model" not in data:
        raise missing("model")
    json_size({"input": data.get("input")})
    _, items = parse_input(data.get("input"))
    if not items or items[-1]["type"] != _TRIGGER["type"]:
        items.append(_TRIGGER)
    fields = {name: data[name] for name in FIELDS if name in data}
    return parse_create({**fields, "input": items, "store": False})


class CompactedResponse(TypedDict):
    """What a conversation becomes: the user's messages, and a `compaction`."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[ItemJson]
    usage: Usage


def compacted_response(response: ResponseObject, said: Sequence[JsonObject]) -> CompactedResponse:
    """Return the object of a response that has compacted, with the user's messages before its one item.

    Raises `ApiError` for one that has not.
    """
    if response["status"] != Status.COMPLETED.value or response["usage"] is None:
        raise _failure(response["error"])
    return {
        "id": response["id"],
        "object": "response.compaction",
        "created_at": response["created_at"],
        "output": [*said, *response["output"]],
        "usage": response["usage"],
    }


def _failure(error: ResponseError | None) -> ApiError:
    code, message = (error["code"], error["message"]) if error is not None else ("", "")
    message = message or "The compaction was cancelled. Send the request again."
    match code:
        case "rate_limit_exceeded":
            return rate_limited(message)
        case "invalid_prompt":
            return invalid_request(message, param="input", code="context_length_exceeded")
    return ApiError(message, status=500, type="server_error", code="server_error")
