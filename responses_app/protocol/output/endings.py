"""How a response ends, and what becomes of its object and which event says so."""

from collections.abc import Sequence
from dataclasses import dataclass

from responses_app.protocol.errors import JsonObject, ResponseError
from responses_app.protocol.events.events import EventType
from responses_app.protocol.requests.resources import ResponseObject, Status
from responses_app.protocol.usage import Usage


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
