"""A finished response's stream, made again of its log: the same events, with the same ids and numbers.

Nothing of the stream itself is kept but its inputs (about 4 bytes a token). The response's body tells how it began:
what it was asked is echoed there, and what became of it is made anew from the inputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from responses_app.protocol.errors import ApiError, ResponseError
from responses_app.protocol.prompt.chain import ChainLink
from responses_app.protocol.requests.resources import TERMINAL_STATUSES, ResponseObject, Status, as_failed
from responses_app.protocol.response.input_codec import decode, encode
from responses_app.protocol.response.inputs import Ended, Enqueued, Failed, Input, Started
from responses_app.protocol.response.response import ResponseMachine
from responses_app.runs.log.journal import EventJournal
from responses_app.stores.base import StoredLog


@dataclass(frozen=True, slots=True)
class Replay:
    """A response that has ended, with all its events; an `EventSource` as a run is."""

    response_id: str
    journal: EventJournal
    status: Status
    body: ResponseObject
    link: ChainLink | None = None
    problem: ApiError | None = None
    has_spoken: bool = True

    @property
    def known_as(self) -> str:
        """The id by which clients know the response."""
        return self.body["id"]

    def response(self) -> ResponseObject:
        """Return the response object of its terminal event."""
        return self.body


def replay(stored: StoredLog, machine: ResponseMachine) -> Replay | None:
    """Make a finished response's stream again; None where its log was not kept.

    `machine` is that of the response as it began. Pure computation, 5 µs an event: in a thread where it is long. Raises
    `BrokenLog`.
    """
    response = stored.response
    journal = EventJournal(max_lag_bytes=0, kept=True)  # nothing is appended while somebody reads
    for given in decode(stored.data):
        journal.extend(machine.receive(given).events)
    if not journal.closed:
        for given in end_of_failure(response, has_begun=machine.stream.has_begun):
            journal.extend(machine.receive(given).events)
    if not journal.closed:
        return None
    return Replay(response["id"], journal, machine.status, machine.stream.snapshot())


def last_number(stored: StoredLog, machine: ResponseMachine) -> int | None:
    """Return the number of a log's last event; None where the log does not tell how the response ended.

    `machine` is that of the response as it began. Pure computation, 3 µs an event. Raises `BrokenLog`.
    """
    last = -1
    for given in decode(stored.data):
        for event in machine.receive(given).events[-1:]:
            last = event.sequence_number
    return last if machine.status in TERMINAL_STATUSES else None


def so_far(stored: StoredLog, machine: ResponseMachine) -> ResponseObject:
    """Return a response that another worker runs, with what of its output is kept.

    `machine` is that of the response as it began. Pure computation, 3 µs an event. Raises `BrokenLog`.
    """
    for given in decode(stored.data):
        machine.receive(given)
    return machine.stream.snapshot() if machine.stream.has_begun else stored.response


def as_begun(response: ResponseObject) -> ResponseObject:
    """Return a response object as it was when it began."""
    status = Status.QUEUED if response["background"] else Status.IN_PROGRESS
    begun: ResponseObject = {
        **response,
        "status": status.value,
        "output": [],
        "completed_at": None,
        "usage": None,
        "error": None,
        "incomplete_details": None,
    }
    if "output_messages" in begun:
        begun["output_messages"] = []
    return begun


def end_of_failure(response: ResponseObject, *, has_begun: bool) -> Sequence[Input]:
    """Return the last inputs of a response that its worker left behind, behind those its log has; none if it ended.

    None either for one that has usage and no log: an older version ran it, which kept none. So nobody knows its events.

    `Failed` is ignored where the log decides how it ends (the model had ended, and its worker died before that was
    kept), so `Ended` has the error, too: what continues such a response was not kept, so it is not completed.
    """
    error = response["error"]
    if response["status"] != Status.FAILED.value or error is None:
        return ()
    end: list[Input] = [Failed(error), Ended(0, error)]
    if has_begun:
        return end
    if response["usage"] is not None:
        return ()
    return [*([Enqueued()] if response["background"] else []), Started(), *end]


def failed(stored: StoredLog, machine: ResponseMachine, error: ResponseError) -> StoredLog:
    """Return a response, and its whole log, as they are once it has failed behind the log that it has.

    It fails even where that log decides another end, since that was never kept, nor what can be continued.
    `machine` is that of the response as it began. Raises `BrokenLog`.
    """
    for given in decode(stored.data):
        machine.receive(given)
    *before, end = end_of_failure(as_failed(stored.response, error), has_begun=machine.stream.has_begun)
    for given in before:
        machine.receive(given)
    return StoredLog(machine.outcome(0, error), stored.data + encode([*before, end]))
