"""The response object: what a request asked for, echoed, beside what became of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, ClassVar, Literal, NotRequired

from pydantic.json_schema import SkipJsonSchema
from typing_extensions import TypedDict

from responses_app.protocol.errors import ApiError, JsonObject, ResponseError, invalid_request, rate_limited
from responses_app.protocol.events.events import EventType
from responses_app.protocol.fields import CACHES_ALL, ClientModel, Refused, check_fields, known_names, missing
from responses_app.protocol.items.items import parse_input
from responses_app.protocol.items.resources import ItemJson, OutputJson
from responses_app.protocol.requests.create_fields import Fields
from responses_app.protocol.requests.requests import CreateRequest, parse_create
from responses_app.protocol.sizes import json_size
from responses_app.protocol.tiers import ServiceTier
from responses_app.protocol.usage import Usage

StatusText = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class Status(Enum):
    """The states of a response."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    FAILED = "failed"
    CANCELLED = "cancelled"


NEXT: dict[Status, frozenset[Status]] = {  # anything else is a bug and raises; terminal states are never overwritten
    Status.QUEUED: frozenset((Status.IN_PROGRESS, Status.FAILED, Status.CANCELLED)),
    Status.IN_PROGRESS: frozenset((Status.COMPLETED, Status.INCOMPLETE, Status.FAILED, Status.CANCELLED)),
    Status.COMPLETED: frozenset(),
    Status.INCOMPLETE: frozenset(),
    Status.FAILED: frozenset(),
    Status.CANCELLED: frozenset(),
}
TERMINAL_STATUSES = frozenset(status for status, following in NEXT.items() if not following)
RUNNING = tuple(status.value for status, following in NEXT.items() if following)  # as response objects have them
CONTINUABLE = frozenset((Status.COMPLETED, Status.INCOMPLETE))


class IncompleteDetails(TypedDict):
    """Why a response is incomplete."""

    reason: str


class ResponseObject(TypedDict):
    """A response, and what its request asked for."""

    # As clients read it, as streams tell it and as the store keeps it; OpenAI's description says what the fields mean.
    id: str
    object: Literal["response"]
    created_at: int  # in Unix seconds
    completed_at: int | None
    status: StatusText
    background: bool
    conversation: JsonObject | None
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputJson]
    parallel_tool_calls: bool
    presence_penalty: float
    frequency_penalty: float
    previous_response_id: str | None
    prompt: JsonObject | None  # a stored one, which there is not here
    prompt_cache_key: str | None
    prompt_cache_retention: str | None
    reasoning: JsonObject
    safety_identifier: str | None
    service_tier: ServiceTier
    store: bool
    temperature: float
    text: JsonObject
    tool_choice: str | JsonObject
    tools: list[JsonObject]
    top_logprobs: int
    top_p: float
    truncation: str
    usage: Usage | None
    user: str | None
    input_messages: NotRequired[list[JsonObject]]  # what the model read and said, in its own words, where asked for
    output_messages: NotRequired[list[JsonObject]]
    # See `public_ids`. It is stored, and never shown: clients see it as the `id`.
    public_id: NotRequired[Annotated[tuple[str, int], SkipJsonSchema()]]


def known_id(response: ResponseObject) -> str:
    """Return the id by which clients know a response."""
    return response["public_id"][0] if "public_id" in response else response["id"]


def as_known(response: ResponseObject) -> ResponseObject:
    """Return a response object as clients know it: under its public id, where it has one."""
    if "public_id" not in response:
        return response
    known: ResponseObject = {**response, "id": known_id(response)}
    del known["public_id"]
    return known


def as_failed(response: ResponseObject, error: ResponseError) -> ResponseObject:
    """Return the object of a running response as it is once it has failed; `error` is its `{code, message}`."""
    return {**response, "status": Status.FAILED.value, "completed_at": None, "error": error}


def new_response(
    request: CreateRequest,
    *,
    response_id: str,
    created_at: int,
    model: str,
    store: bool,
    service_tier: ServiceTier = "default",
) -> ResponseObject:
    """Return the response object of a request at its start: every field of the spec, most of them an echo.

    `created_at` is in Unix seconds; `service_tier` is the tier that runs.
    """
    text = request.text
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_at,
        "completed_at": None,
        "status": (Status.QUEUED if request.background else Status.IN_PROGRESS).value,
        "background": bool(request.background),
        "conversation": {"id": request.conversation.id} if request.conversation else None,
        "error": None,
        "incomplete_details": None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "metadata": request.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "presence_penalty": request.presence_penalty or 0.0,
        "frequency_penalty": request.frequency_penalty or 0.0,
        "previous_response_id": request.previous_response_id,
        "prompt": None,
        "prompt_cache_key": request.prompt_cache_key,
        "prompt_cache_retention": request.prompt_cache_retention,
        "reasoning": {
            "effort": request.reasoning.effort if request.reasoning else None,
            "summary": request.reasoning.wanted_summary if request.reasoning else None,
        },
        "safety_identifier": request.safety_identifier,
        "service_tier": service_tier,
        "store": store,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "text": {
            "format": request.text_format.echoed(),
            "verbosity": (text.verbosity if text else None) or "medium",
        },
        "tool_choice": request.tool_choice.echo,
        "tools": request.tools_json,
        "top_logprobs": request.top_logprobs or 0,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "truncation": request.truncation or "disabled",
        "usage": None,
        "user": request.user,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a response ends.

    `completed_at` is in Unix seconds, `error` the `{code, message}` of a failed response, `reason` why an incomplete
    one is. `messages` are what the model said in its own words, None where nobody asked for them.
    """

    status: Status
    completed_at: int | None = None
    usage: Usage | None = None
    error: ResponseError | None = None
    reason: str | None = None
    messages: list[JsonObject] | None = None

    @property
    def event(self) -> EventType:
        """The type of its event."""
        return _EVENTS[self.status]

    def of(self, response: ResponseObject, output: Sequence[JsonObject]) -> ResponseObject:
        """Return the object of a running response as it is after this ending."""
        ended: ResponseObject = {
            **response,
            "status": self.status.value,
            "output": list(output),
            "completed_at": self.completed_at if self.status is Status.COMPLETED else None,
            "usage": self.usage,
            "error": self.error,
            "incomplete_details": {"reason": self.reason} if self.reason else None,
        }
        if self.messages is not None:
            ended["output_messages"] = self.messages
        return ended


_EVENTS = {
    Status.COMPLETED: EventType.COMPLETED,
    Status.INCOMPLETE: EventType.INCOMPLETE,
    Status.FAILED: EventType.FAILED,
    Status.CANCELLED: EventType.INCOMPLETE,  # the spec has no response.cancelled; the status inside says it
}


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
