"""`Machines`: the machine of any response, of which its worker, its followers and a replay make the same events.

A finished response's stream is made again of its log: the same events, with the same ids and numbers. Nothing of the
stream itself is kept but its inputs (about 4 bytes a token). The response's body tells how it began: what it was asked
is echoed there, and what became of it is made anew from the inputs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from engine.formats.base import ModelFormat
from responses_app.protocol.errors import ResponseError
from responses_app.protocol.ids import DerivedIds, milliseconds_of
from responses_app.protocol.items.client_tools import ClientTools, read_tools
from responses_app.protocol.output.stream import ResponseStream
from responses_app.protocol.prompt.sealed_items import PURPOSE, ItemSeals
from responses_app.protocol.requests.resources import TERMINAL_STATUSES, ResponseObject, Status, as_failed
from responses_app.protocol.response.input_codec import decode, encode
from responses_app.protocol.response.response import ResponseMachine
from responses_app.protocol.response.root import root_machine
from responses_app.protocol.response.steps import Ended, Enqueued, Failed, Input, RunStarted
from responses_app.protocol.response.summaries import Budget
from responses_app.protocol.sealing import Sealer
from responses_app.runs.log.journal import EventJournal
from responses_app.runs.log.reader import EventSource
from responses_app.runs.plan.served import ServedModels
from responses_app.stores.base import AcceptedResponse, StoredLog

Machine = TypeVar("Machine", bound=ResponseMachine)


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
    return [*([Enqueued()] if response["background"] else []), RunStarted(), *end]


def machine_of(
    response: ResponseObject,
    model_format: ModelFormat,
    *,
    key: bytes,
    seal: Callable[[str, bytes], str],
    tools: ClientTools | None = None,
) -> ResponseMachine:
    """Return the machine of a response that has said nothing yet.

    `key` makes its ids, and is the same on all workers. `seal` seals for its project what stands in a place, such as an
    item: the same for the same. `tools` are the client's, where they have been read already. Which tools of this server
    it may call comes with its inputs.
    """
    response_id = response["id"]
    client_tools = ClientTools(read_tools(response["tools"])) if tools is None else tools
    created_ms = milliseconds_of(response_id) or response["created_at"] * 1000
    new_id, forbids = DerivedIds(response_id, created_ms=created_ms, key=key), response["tool_choice"] == "none"

    def make(stream: type[ResponseStream], machine: type[Machine], budget: Budget | None) -> Machine:
        return machine(
            stream(response, new_id=new_id, tools=client_tools, seals=ItemSeals(model_format, seal=seal)),
            model_format,
            functions=None if forbids else client_tools.names,
            one_call=response["parallel_tool_calls"] is False,
            summary_style=str(response["reasoning"].get("summary") or "auto"),
            max_tool_calls=response["max_tool_calls"],
            budget=budget,
        )

    if response.get("multi_agent"):
        return root_machine(make)
    return make(ResponseStream, ResponseMachine, None)


@dataclass(frozen=True, slots=True)
class Machines:
    """Makes machines, the same ones on every worker."""

    models: ServedModels  # those of this server
    id_key: bytes  # makes the ids inside responses: the same on all workers
    sealer: Sealer  # with the same secrets on all workers

    def of(self, project: str, response: ResponseObject, tools: ClientTools | None = None) -> ResponseMachine:
        """Return the machine of a project's response, which is as it began; `tools`: see `machine_of`."""

        def seal(place: str, data: bytes) -> str:
            return self.sealer.seal_again(PURPOSE, project, data, place=f"{response['id']} {place}")

        model = self.models.named(response["model"]) or self.models.first  # its own may be served no more
        model_format = model.format.at_effort(response["reasoning"].get("effort"))
        return machine_of(response, model_format, key=self.id_key, seal=seal, tools=tools)

    def begun(self, project: str, response: ResponseObject) -> ResponseMachine:
        """Return the machine of a project's response that has gone on, as it was when it began."""
        return self.of(project, as_begun(response))

    # What follows is pure computation, 3 to 6 µs an event: in a thread where a log is long. All of it raises
    # `BrokenLog`.

    def replay(self, project: str, stored: StoredLog) -> EventSource | None:
        """Make a finished response's stream again, as a run here would have made it; None where its log was not kept.

        None, too, where its model is served no more, and no served one reads its tokens as it did.
        """
        response, machine = stored.response, self.begun(project, stored.response)
        journal = EventJournal(max_lag_bytes=0, kept=True)  # nothing is appended while somebody reads
        journal.fill(event for input_ in decode(stored.data) for event in machine.receive(input_).events)
        if not journal.closed:
            end = end_of_failure(response, has_begun=machine.stream.has_begun)
            journal.fill(event for input_ in end for event in machine.receive(input_).events)
        if not journal.closed:
            return None
        # Another model may read the same tokens as other text: then the replay would not be what clients have seen.
        is_served = self.models.named(response["model"]) is not None
        if not (is_served or machine.stream.snapshot()["output"] == response["output"]):
            return None
        return EventSource(response["id"], journal, machine)

    def last_number(self, project: str, stored: StoredLog) -> int | None:
        """Return the number of a log's last event; None where the log does not tell how the response ended."""
        machine, last = self.begun(project, stored.response), -1
        for input_ in decode(stored.data):
            # Only the last one's number is wanted, so no event is written as JSON.
            for event in machine.receive(input_).events[-1:]:
                last = event.sequence_number
        return last if machine.status in TERMINAL_STATUSES else None

    def so_far(self, project: str, stored: StoredLog) -> ResponseObject:
        """Return a response that another worker runs, with what of its output is kept."""
        machine = self.begun(project, stored.response)
        for input_ in decode(stored.data):
            machine.receive(input_)
        return machine.stream.snapshot() if machine.stream.has_begun else stored.response

    def failed(self, accepted: AcceptedResponse, error: ResponseError) -> StoredLog:
        """Return a response that was taken over, and its log, as they are once it has failed behind the log it has.

        It fails even where that log decides another end, since that was never kept, nor what can be continued.
        """
        machine = self.begun(accepted.project, accepted.response)
        for input_ in decode(accepted.log):
            machine.receive(input_)
        # `Ended` is written into the log, and not given to the machine: `outcome` tells how the response is with it.
        *before, end = end_of_failure(as_failed(accepted.response, error), has_begun=machine.stream.has_begun)
        for input_ in before:
            machine.receive(input_)
        return StoredLog(machine.outcome(0, error), accepted.log + encode([*before, end]))
