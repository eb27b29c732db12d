"""A finished response's stream, made again of its log: the same events, with the same ids and numbers.

Nothing of the stream itself is kept but its inputs (about 4 bytes a token). The response's body tells how it began:
what it was asked is echoed there, and what became of it is made anew from the inputs.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from engine.formats.base import ModelFormat
from responses_app.protocol.chain import ChainLink
from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.protocol.input_codec import decode
from responses_app.protocol.inputs import Ended, Enqueued, Failed, Input, Started
from responses_app.protocol.resources import Status
from responses_app.runs.journal import EventJournal
from responses_app.runs.machines import machine_of, wanted_tools
from responses_app.stores.base import StoredLog
from responses_app.tools.base import BaseTool

_BECAME = ("completed_at", "usage", "error", "incomplete_details")  # fields of a response that are null at first


@dataclass(frozen=True, slots=True)
class Replay:
    """A response that has ended, with all its events; an `EventSource` as a run is."""

    response_id: str
    journal: EventJournal
    status: Status
    body: JsonObject
    link: ChainLink | None = None
    problem: ApiError | None = None
    has_spoken: bool = True

    def response(self) -> JsonObject:
        """Return the response object of its terminal event."""
        return self.body


def replay(
    stored: StoredLog, *, model_format: ModelFormat, key: bytes, tools: Collection[BaseTool] = ()
) -> Replay | None:
    """Make a finished response's stream again; None where its log was not kept.

    Pure computation, 5 µs an event: in a thread where it is long. Raises `BrokenLog`.
    """
    response = stored.response
    machine = machine_of(as_begun(response), model_format, key=key, tools=wanted_tools(response, tools))
    journal = EventJournal(max_lag_bytes=0, kept=True)  # nothing is appended while somebody reads
    for given in decode(stored.data) if stored.data else _of_a_failure(response):
        journal.extend(machine.receive(given).events)
    if not journal.closed:
        return None
    return Replay(str(response["id"]), journal, machine.status, machine.stream.snapshot())


def as_begun(response: JsonObject) -> JsonObject:
    """Return a response object as it was when it began."""
    status = Status.QUEUED if response.get("background") else Status.IN_PROGRESS
    return {**response, "status": status.value, "output": [], **dict.fromkeys(_BECAME)}


def _of_a_failure(response: JsonObject) -> Iterable[Input]:
    """Return the inputs of a response that its worker left behind: it began, and it failed."""
    error = response.get("error")
    if response["status"] != Status.FAILED.value or not isinstance(error, dict):
        return ()
    queued = [Enqueued()] if response.get("background") else []
    return [*queued, Started(), Failed(error), Ended(0)]
