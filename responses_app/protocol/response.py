"""`ResponseMachine`: a response as a pure machine. Inputs in, events and commands out; no I/O, no clock, no chance.

    inputs                        ┌─────────────────┐   events: what clients read, numbered
    (Started, Sampled, …) ───────>│ ResponseMachine │──> command: what the driver is to do next, and then to tell
                                  └─────────────────┘            (Generate, CallTool, Seal, …)

It is the only home of what happens between a response's first event and its last: turns, the budget of tokens, the
correction of a model that calls a tool which does not exist, compaction, tools that the server runs, and endings.

    ENQUEUED ─> STARTED ┬─> Prefill ──────────────────────────────────────────┐
                        ├─> Generate (a summary) ─> Seal ─┬───────────────────┤
                        │                                 v                   v
                        └────────────────────────────> Generate <──> CallTool ├─> Finish ─> ENDED
                                                          └───────────────────┘

A command stands until an input answers it, and there is never more than one. So a driver that has done nothing yet but
feed a machine the inputs of a log finds what is to be done next in `due`; for a generation that was cut, that is
`Generate` with the tokens that were sampled already. Example: `Started`, `TurnBegan(9)`, `Sampled([200005, 35644])`
and then a new driver: `due` is `Generate(turn=0, sampled=[200005, 35644])`, and the next events have the numbers and
ids that they would have had without the change.

Whatever comes once the end is decided is ignored: an end is kept before clients see it, and cannot be taken back.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from engine.formats.base import ItemEnded, ItemKind, ItemStarted, ModelFormat, RenderedMessage, TurnEvent
from engine.types import FinishReason
from responses_app.protocol.commands import CallTool, Command, Finish, Generate, Prefill, Seal
from responses_app.protocol.errors import SERVER_STOPPED, JsonObject
from responses_app.protocol.events import Event
from responses_app.protocol.inputs import (
    Declared,
    Ended,
    Enqueued,
    Failed,
    Input,
    Mode,
    Prefilled,
    Sampled,
    Sealed,
    Started,
    Stopped,
    StopReason,
    ToolReturned,
    TurnBegan,
)
from responses_app.protocol.resources import TERMINAL_STATUSES, ResponseObject, Status
from responses_app.protocol.stream import Ending, LocalProtocolError, ResponseStream
from responses_app.protocol.turns import Summary, Turn, merged
from responses_app.protocol.usage import TurnUsage, usage

MAX_CORRECTIONS = 1  # how often the model is told, in one response, that a tool does not exist
MAX_TURNS_BEHIND_CALLS = 16  # that run in the background: a model that calls on and on ends its response
RUNS_IN_BACKGROUND = (
    "This runs in the background now, and has no output yet; that will come in a later message. Go on without it: "
    "answer the user, or do something else."
)


class Step(NamedTuple):
    """What came of an input. A command ends what the one before it asked for: a generation that runs is aborted."""

    events: list[Event]
    command: Command | None = None


class ResponseMachine:
    """One response. `stream` is its own, and has said nothing yet.

    `functions` are the names that the request declared, None where it forbids calls; `one_call`: a turn ends with its
    first call.
    """

    def __init__(
        self,
        stream: ResponseStream,
        model_format: ModelFormat,
        *,
        functions: Collection[str] | None = (),
        one_call: bool = False,
    ) -> None:
        self._stream = stream
        self._format = model_format
        self._functions = functions
        self._one_call = one_call
        self._turn: Turn | None = None
        self._summary: Summary | None = None
        self._budget: int | None = None
        self._mode = Mode.ANSWER
        self._answering_since = 0  # number of the first turn that is not a summary
        self._corrections = 0
        self._turns_behind_calls = 0
        self._stop_at_boundary: StopReason | None = None
        self._due: Command | None = None
        self.turns: list[TurnUsage] = []
        self.repairs = 0  # how many items of all turns were malformed

    # What a driver asks.

    @property
    def status(self) -> Status:
        """The status as readers know it."""
        return self._stream.status

    @property
    def stream(self) -> ResponseStream:
        """The output so far."""
        return self._stream

    @property
    def ending(self) -> Ending | None:
        """How it will end; None until that is decided."""
        return self._due.ending if isinstance(self._due, Finish) else None

    @property
    def due(self) -> Command | None:
        """What is to be done now, for a driver that has only read the inputs so far; None before the start."""
        if isinstance(self._due, Generate) and self._turn is not None:
            return replace(self._due, sampled=self._turn.tokens, budget=self._left(), has_begun=True)
        return self._due

    def only_adds(self, token_ids: Sequence[int]) -> bool:
        """Whether tokens, sampled now, are nothing but more text of an item whose text has begun to be read."""
        turn = self._turn
        return turn is not None and self._stream.is_growing and not any(map(turn.parser.is_end, token_ids))

    @property
    def compacted(self) -> bool:
        """Whether a summary has taken the place of what came before."""
        return self._answering_since > 0

    def outcome(self, at: int, error: JsonObject | None = None) -> ResponseObject:
        """Return the response object as it will be once it has ended at `at` (Unix seconds), with `error` as failed."""
        assert isinstance(self._due, Finish), "the end is decided"
        return self._stream.outcome(self._ending(self._due.ending, at, error))

    # What happens.

    def receive(self, given: Input) -> Step:
        """Take the next input. Raises `LocalProtocolError` for one that cannot come now: a bug of the driver."""
        if isinstance(given, Sampled) and isinstance(self._due, Generate):  # nearly always
            return self._sampled(given)
        if isinstance(self._due, Finish):
            return self._ended(given) if isinstance(given, Ended) else Step([])
        if self.status in TERMINAL_STATUSES:
            return Step([])
        match given:
            case Sampled():
                return self._sampled(given)
            case TurnBegan():
                return self._began(given)
            case ToolReturned():
                return self._tool_returned(given)
            case Sealed():
                return self._sealed(given)
            case Failed() | Stopped():
                return self._cut(given)
        return self._begin(given)

    def _begin(self, given: Input) -> Step:
        match given:
            case Declared() if not self._stream.has_begun:
                names = self._stream.declare(given.tools)
                self._functions = None if self._functions is None else names
                return Step([])
            case Enqueued():
                return Step(self._stream.enqueue())
            case Started():
                return self._started(given)
            case Prefilled() if isinstance(self._due, Prefill):
                return self._finish(Status.COMPLETED)
        raise LocalProtocolError(f"{given!r} in a response that is {self.status.value}")

    def _cut(self, given: Failed | Stopped) -> Step:
        """End before the model does."""
        if isinstance(given, Failed):
            return self._finish(Status.FAILED, error=given.error)
        return self._stopped(given.reason)

    def _started(self, given: Started) -> Step:
        self._mode, self._budget = given.mode, given.budget
        warm_up = given.mode is Mode.WARM_UP
        queued = self._stream.has_begun
        events = self._stream.leave_queue() if queued else self._stream.start(warm_up=warm_up)
        if warm_up:
            return Step(events, self._now(Prefill()))
        if given.mode is not Mode.ANSWER:
            self._summary = Summary()
        return Step(events, self._generate())

    def _began(self, given: TurnBegan) -> Step:
        if not isinstance(self._due, Generate) or self._turn is not None:
            raise LocalProtocolError("a turn began that was not asked for")
        self._turn = Turn(self._format.parser(self._functions), TurnUsage(input_tokens=given.prompt_tokens))
        self.turns.append(self._turn.usage)
        return Step([])

    def _sampled(self, chunk: Sampled) -> Step:
        turn = self._turn
        if turn is None:
            raise LocalProtocolError("tokens came outside of a turn")
        if chunk.cached_tokens is not None and not turn.usage.cached_tokens:  # not of a turn that goes on elsewhere
            turn.usage.cached_tokens = min(chunk.cached_tokens, turn.usage.input_tokens)
        ends = self._ends_turn if self._may_cut else None
        said = turn.read(chunk.token_ids, chunk.logprobs, ends=ends, spelled=self._format.spelled)
        finish = FinishReason.STOP if turn.is_over else chunk.finish
        if finish is not None:
            said += turn.parser.close()
            self.repairs += turn.parser.repairs
        for each in said:
            if isinstance(each, ItemEnded):
                turn.usage.reasoning_tokens += each.reasoning_tokens
                turn.called = each.called
        said = merged(said)
        summary = self._summary
        events = self._stream.receive_all(said) if summary is None else self._sum_up(summary, said)
        return Step(events) if finish is None else self._then(events, self._turn_ended(turn, finish))

    @property
    def _may_cut(self) -> bool:
        """Whether a turn may have to end before the model ends it."""
        return self._one_call or self._stream.hosts or self._stop_at_boundary is not None

    def _ends_turn(self, started: ItemStarted, ended: ItemEnded) -> bool:
        """Whether nothing is to follow an item, whatever the model says: but a turn that waits for a call ends by
        itself."""
        if ended.called:
            return False
        one_call = self._one_call and started.kind is ItemKind.CALL
        hosted = started.kind is ItemKind.HOSTED_CALL and self._stream.can_call(started.name or "")
        return one_call or (hosted and not ended.truncated) or self._stop_at_boundary is not None

    def _turn_ended(self, turn: Turn, finish: FinishReason) -> Step:
        self._turn = None
        if self._stop_at_boundary is not None:
            return self._finish(Status.INCOMPLETE, reason=self._stop_at_boundary.value)
        if finish is FinishReason.ABORT:
            return self._finish(Status.CANCELLED)
        if self._summary is not None:
            return self._summed_up(self._summary)
        call = self._stream.hosted_call
        if call is not None:
            return Step([], self._now(CallTool(call.name, call.arguments)))
        correction = self._correction(turn)
        if correction is not None:
            self._corrections += 1
            self._stream.interject(correction)
            return Step([], self._generate())
        if self._goes_on(turn):
            return Step([], self._generate())
        if finish is FinishReason.LENGTH:
            return self._finish(Status.INCOMPLETE, reason="max_output_tokens")
        answered = len(self._stream.output) > self.compacted
        return self._finish(Status.COMPLETED if answered else Status.INCOMPLETE)

    def _goes_on(self, turn: Turn) -> bool:
        """Whether the model goes on behind calls that run in the background; it is told so, and that they do.

        Not where it has called something else, too: then the client's answer to that comes first.
        """
        called, stream = self._stream.background_calls, self._stream
        may = turn.called and called and not stream.waits_for_client and not self._one_call and self._left() != 0
        if not may or self._turns_behind_calls >= MAX_TURNS_BEHIND_CALLS:
            return False
        self._turns_behind_calls += 1
        for name in called:
            stream.interject(self._format.output(name, RUNS_IN_BACKGROUND))
        called.clear()
        return True

    def _correction(self, turn: Turn) -> RenderedMessage | None:
        """Return what to tell a model that has just called a tool which does not exist, if it is to be told."""
        unknown = self._stream.unknown_call
        if not turn.called or unknown is None or self._corrections >= MAX_CORRECTIONS or self._left() == 0:
            return None
        return self._format.no_such_tool(unknown, self._functions or ())

    # Compaction.

    def _sum_up(self, summary: Summary, said: Sequence[TurnEvent]) -> list[Event]:
        for each in said:
            summary.take(each)
        return self._stream.begin_compaction() if said and not self._stream.is_compacting else []

    def _summed_up(self, summary: Summary) -> Step:
        if not summary.text:
            return self._finish(Status.FAILED, error=_NO_SUMMARY)
        return Step([], self._now(Seal(summary.text)))

    def _sealed(self, given: Sealed) -> Step:
        if self._summary is None or not isinstance(self._due, Seal):
            raise LocalProtocolError("a seal that was not asked for")
        events = self._stream.end_compaction(given.text)
        self._summary, self._budget = None, given.budget
        self._answering_since = len(self.turns)
        if self._mode is Mode.COMPACT:
            return self._then(events, self._finish(Status.COMPLETED))
        return Step(events, self._generate())

    # Tools.

    def _tool_returned(self, given: ToolReturned) -> Step:
        call = self._stream.hosted_call
        if call is None or not isinstance(self._due, CallTool):
            raise LocalProtocolError("a tool returned that was not called")
        events = self._stream.end_call(given.text, failed=given.failed)
        self._stream.interject(self._format.output(call.name, given.text, hosted=True))
        if self._left() == 0:
            return self._then(events, self._finish(Status.INCOMPLETE, reason="max_output_tokens"))
        return Step(events, self._generate())

    # Turns and endings.

    def _generate(self) -> Command:
        said = tuple(self._stream.messages)
        summary, after_call = self._summary is not None, self._stream.has_called
        return self._now(Generate(len(self.turns), said, budget=self._left(), summary=summary, after_call=after_call))

    def _left(self) -> int | None:
        """How many tokens may still be sampled."""
        spent = sum(turn.output_tokens for turn in self.turns[self._answering_since :])
        return None if self._budget is None else max(0, self._budget - spent)

    def _stopped(self, reason: StopReason) -> Step:
        match reason:
            case StopReason.STEERED if self._turn is not None and self._stream.is_open:
                self._stop_at_boundary = reason
                return Step([])
            case StopReason.STEERED | StopReason.INTERRUPTED if self.status is not Status.QUEUED:
                return self._finish(Status.INCOMPLETE, reason=reason.value)
            case StopReason.SERVER_STOPPED:
                return self._finish(Status.FAILED, error=SERVER_STOPPED)
        return self._finish(Status.CANCELLED)

    def _finish(self, status: Status, *, error: JsonObject | None = None, reason: str | None = None) -> Step:
        """Decide the end. What is open is closed now, but for a failure: clients act on calls that are done."""
        events = [] if status is Status.FAILED else self._stream.close()
        self._turn = None
        return Step(events, self._now(Finish(Ending(status=status, error=error, reason=reason))))

    def _ended(self, given: Ended) -> Step:
        assert isinstance(self._due, Finish)
        ending = self._ending(self._due.ending, given.at, given.error)
        self._due = None
        return Step(self._stream.finish(ending))

    def _ending(self, ending: Ending, at: int, error: JsonObject | None) -> Ending:
        if error is not None:
            ending = Ending(status=Status.FAILED, error=error)
        messages = self._messages() if self._stream.shows_messages else None
        return replace(ending, completed_at=at, usage=usage(self.turns) if self.turns else None, messages=messages)

    def _messages(self) -> list[JsonObject]:
        return [message for said in self._stream.messages for message in self._format.messages_of(said.tokens)]

    def _now(self, command: Command) -> Command:
        self._due = command
        return command

    @staticmethod
    def _then(events: list[Event], step: Step) -> Step:
        return Step([*events, *step.events], step.command)


_NO_SUMMARY: JsonObject = {"code": "server_error", "message": "The model gave no summary. Send the request again."}
