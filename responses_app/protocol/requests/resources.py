"""The response object: what a request asked for, echoed, beside what became of it.

`Status` and `NEXT` are the table of its states. `Ending`: how a response ends, what becomes of its object, and which
event says so. `CompactedResponse`: what a response becomes that only compacts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Literal, NotRequired

from pydantic.json_schema import SkipJsonSchema
from typing_extensions import TypedDict

from responses_app.protocol.errors import JsonObject, ResponseError
from responses_app.protocol.events.events import EventType
from responses_app.protocol.items.resources import ItemJson, OutputJson
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
    multi_agent: NotRequired[JsonObject]  # how many agents may work at once, where the model may start any
    # See `ids.PublicId`. It is stored, and never shown: clients see it as the `id`.
    public_id: NotRequired[Annotated[tuple[str, int], SkipJsonSchema()]]


def known_id(response: ResponseObject) -> str:
    """Return the id by which clients know a response."""
    return response["public_id"][0] if "public_id" in response else response["id"]


def has_failed(response: Mapping[str, object]) -> bool:
    """Whether a response that has ended is no answer: it failed, or was cancelled."""
    return response["status"] in (Status.FAILED.value, Status.CANCELLED.value)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a response ends."""

    status: Status  # a terminal one
    completed_at: int | None = None  # Unix seconds; shown of completed responses only
    usage: Usage | None = None  # None: no turn has begun
    error: ResponseError | None = None  # of a failed response
    reason: str | None = None  # why an incomplete one is
    messages: list[JsonObject] | None = None  # what the model said in its own words; None: nobody asked for them

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


class CompactedResponse(TypedDict):
    """What a conversation becomes: the user's messages, and a `compaction`."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[ItemJson]
    usage: Usage


def compacted_response(response: ResponseObject, messages: Sequence[JsonObject]) -> CompactedResponse:
    """Return the object of a response that has compacted, with the user's messages before its one item."""
    assert response["usage"] is not None, "it was generated"
    return {
        "id": response["id"],
        "object": "response.compaction",
        "created_at": response["created_at"],
        "output": [*messages, *response["output"]],
        "usage": response["usage"],
    }
