"""`ResponseMachine`: a response as a pure machine. Inputs in, events and commands out; no I/O, no clock, no chance.

    inputs                        ┌─────────────────┐   events: what clients read, numbered
    (RunStarted, Sampled, …) ────>│ ResponseMachine │──> command: what the driver is to do next, and then to tell
                                  └─────────────────┘            (Generate, CallTool, Seal, …)

It is the only home of what happens between a response's first event and its last: turns, the budget of tokens, tools
that the server runs, and endings. It leaves these to parts of its own: what tokens say and where a turn ends
(`TurnReader`), the calls that the client answers (`ClientCalls`) and those that this server does (`ServerCalls`),
summaries of what the model thinks (`SummaryTurns`), and one of all that came before (`Compacting`).

    ENQUEUED ─> STARTED ┬─> Prefill ──────────────────────────────────────────┐
                        ├─> Generate (a summary) ─> Seal ─┬───────────────────┤
                        │                                 v                   v
                        ├─> ListTools ────────> Generate <──> CallTool or Await ├─> Finish ─> ENDED
                        └─> CallTool (approved) ──^       └ SearchTools, RunProgram

A command stands until an input answers it, and there is never more than one. So a driver that has done nothing yet but
feed a machine the inputs of a log finds what is to be done next in `due`; for a generation that was cut, that is
`Generate` with the tokens that were sampled already. Example: `RunStarted`, `TurnBegan(9)`, `Sampled([200005, 35644])`
and then a new driver: `due` is `Generate(turn=0, sampled=[200005, 35644])`, and the next events have the numbers and
ids that they would have had without the change.

Whatever comes once the end is decided is ignored: an end is kept before clients see it, and cannot be taken back.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from engine.formats.base import ModelFormat
from engine.types import FinishReason
from responses_app.protocol.errors import SERVER_STOPPED, JsonObject, ResponseError
from responses_app.protocol.events.events import Event
from responses_app.protocol.output.stream import LocalProtocolError, ResponseStream
from responses_app.protocol.requests.resources import CONTINUABLE, TERMINAL_STATUSES, Ending, ResponseObject, Status
from responses_app.protocol.response.calls import ClientCalls, ServerCalls, awaited, no_output
from responses_app.protocol.response.steps import (
    Await,
    CallTool,
    Command,
    Declared,
    Ended,
    Enqueued,
    Failed,
    Finish,
    Generate,
    Input,
    ListTools,
    Mode,
    Offered,
    OfServer,
    OutputGiven,
    OutputOptions,
    Prefill,
    Prefilled,
    ProgramCalled,
    ProgramEnded,
    ProgramPaused,
    RunProgram,
    RunStarted,
    Sampled,
    Seal,
    Sealed,
    SearchTools,
    Step,
    Stopped,
    StopReason,
    Summaries,
    TimedOut,
    ToolProgressed,
    ToolReturned,
    ToolsFound,
    ToolsListed,
    TurnBegan,
    WaitBegan,
)
from responses_app.protocol.response.turns import AnswerStops, Budget, Compacting, SummaryTurns, Turn, TurnReader
from responses_app.protocol.usage import TurnUsage, usage


class ResponseMachine:
    """One response. `stream` is its own, and has said nothing yet."""

    number = 0  # of the agent whose machine it is, where there are several

    def __init__(  # noqa: PLR0913 - all that a request says of its turns
        self,
        stream: ResponseStream,
        model_format: ModelFormat,
        *,
        functions: Collection[str] | None = (),  # names that the request declared; None: calls are forbidden
        one_call: bool = False,  # a turn ends with its first call
        summary_style: str = "auto",  # its `reasoning.summary`
        # How many of this server's tools it may call; None: as many as the model wants.
        max_tool_calls: int | None = None,
        budget: Budget | None = None,  # of tokens, which it shares with other agents; None: it has its own
    ) -> None:
        self.stream = stream
        self._format = model_format
        self.turns: list[TurnUsage] = []  # shared with the budget and the reader, which adds to it
        self._asides = SummaryTurns(model_format, summary_style)
        self._budget = budget or Budget(self.turns)
        self._compacting = Compacting(self._budget)
        self._mode = Mode.ANSWER
        self.server = ServerCalls(stream, model_format, max_calls=max_tool_calls, one_call=one_call)
        self._due: Command | None = None  # the command that stands; None before the start and after the end
        self.asked = OutputOptions()  # what the request wants of its items
        self.calls = ClientCalls(stream, model_format)
        self.reader = TurnReader(
            stream=stream,
            format=model_format,
            budget=self._budget,
            asides=self._asides,
            compacting=self._compacting,
            functions=functions,
            one_call=one_call,
            turns=self.turns,
        )

    # What a driver asks.

    @property
    def status(self) -> Status:
        """The status as readers know it."""
        return self.stream.status

    @property
    def ending(self) -> Ending | None:
        """How it will end; None until that is decided."""
        return self._due.ending if isinstance(self._due, Finish) else None

    @property
    def due(self) -> Command | None:
        """What is to be done now, for a driver that has only read the inputs so far; None before the start."""
        turn = self.reader.turn
        if isinstance(self._due, Generate) and turn is not None:
            # None stays None, and 0 stays 0: neither has anything to be taken from.
            left = self._due.budget and max(0, self._due.budget - turn.usage.output_tokens)
            return replace(self._due, sampled=turn.tokens, budget=left, has_begun=True)
        return self._due

    def only_adds(self, token_ids: Sequence[int]) -> bool:
        """Whether tokens, sampled now, are nothing but more text of an item whose text has begun to be read."""
        return self.reader.only_adds(token_ids)

    @property
    def compacted(self) -> bool:
        """Whether a summary has taken the place of what came before."""
        return self._budget.since > 0

    @property
    def all_turns(self) -> Sequence[TurnUsage]:
        """The turns of all agents, where there are several."""
        return self.turns

    @property
    def all_output(self) -> Sequence[JsonObject]:
        """The items of all agents that are done, where there are several."""
        return self.stream.output

    @property
    def waits(self) -> bool:
        """Whether it does nothing but wait for its client."""
        return isinstance(self.due, Await)

    def take_orders(self) -> dict[int, Command]:
        """Return what is to be done next for agents below the root, by their numbers, since the last time."""
        return {}

    def dues(self) -> dict[int, Command]:
        """Return what is to be done for agents below the root, for a driver that has only read the inputs so far."""
        return {}

    def machine_of(self, number: int) -> "ResponseMachine":
        """Return the machine of an agent."""
        return self

    def agent_of_call(self, call_id: str) -> "ResponseMachine":
        """Return the machine of the agent that has called this; the response's own where nobody has."""
        return self

    @property
    def takes_outputs(self) -> bool:
        """Whether it goes on with what the client says came of calls, now or once the model has said them all."""
        return self.calls.awaited and self.status is Status.IN_PROGRESS and not isinstance(self._due, Finish)

    def outcome(self, at: int, error: ResponseError | None = None) -> ResponseObject:
        """Return the response object as it will be once it has ended at `at` (Unix seconds), with `error` as failed."""
        assert isinstance(self._due, Finish), "the end is decided"
        return self.stream.outcome(self._ending(self._due.ending, at, error))

    # What happens.

    def receive(self, input: Input) -> Step:
        """Take the next input. Raises `LocalProtocolError` for one that cannot come now: a bug of the driver."""
        if isinstance(input, Sampled) and isinstance(self._due, Generate):  # nearly always
            events, finish = self.reader.read(input)
            return Step(events) if finish is None else self._turn_ended(self.reader.end(), finish).behind(events)
        # The end is decided: late tokens, outputs and stops of a driver that has not heard of it are dropped.
        if isinstance(self._due, Finish):
            return self._ended(input) if isinstance(input, Ended) else Step([])
        if self.status in TERMINAL_STATUSES:
            return Step([])
        match input:
            case TurnBegan():
                return self._began(input)
            case ToolsListed() | ToolsFound() | ProgramCalled() | ProgramPaused() | ProgramEnded():
                return self._of_server(input)
            case ToolProgressed() | ToolReturned():
                return self._of_server(input)
            case Sealed():
                return self._sealed(input)
            case WaitBegan() | OutputGiven() | TimedOut():
                return self._of_wait(input)
        return self._begin_or_end(input)

    def _begin_or_end(self, input: Input) -> Step:
        match input:
            # Both change what the model may call, so they are only for a response that has said nothing.
            case Declared() if not self.stream.has_begun:
                names = self.stream.called.declare(input.tools)
                # None forbids calls, whatever is declared later.
                self.reader.functions = None if self.reader.functions is None else names
                return Step([])
            case Offered() if not self.stream.has_begun:
                self.server.offer(input)
                return Step([])
            case Enqueued():
                return Step(self.stream.enqueue())
            case OutputOptions():
                self.asked = input
                if input.stops or input.stop_tokens:
                    self.reader.stops = AnswerStops(input.stops, input.stop_tokens)
                self._asides.by_model = input.summaries is Summaries.MODEL
                self.stream.wants(sealed=input.sealed, summarised=input.summaries is not None, objects=input.objects)
                return Step([])
            case RunStarted():
                return self._started(input)
            case Prefilled() if isinstance(self._due, Prefill):
                return self._finish(Status.COMPLETED)
            case Failed(error=error):
                return self._finish(Status.FAILED, error=error)
            case Stopped(reason=reason):
                return self._stopped(reason)
        raise LocalProtocolError(f"{input!r} in a response that is {self.status.value}")

    def _started(self, input: RunStarted) -> Step:
        self._mode, self._budget.limit, self.calls.awaited = input.mode, input.budget, input.waits
        warm_up = input.mode is Mode.WARM_UP
        events = self.stream.leave_queue() if self.stream.has_begun else self.stream.start(warm_up=warm_up)
        if warm_up:
            return Step(events, self._now(Prefill()))
        if input.mode is not Mode.ANSWER:
            self._compacting.begin()
            return Step(events, self._generate())
        return self._prepare().behind(events)

    def _prepare(self) -> Step:
        """Do what is to be done before the model goes on, or let it."""
        step = self.server.next()
        if step is None or step.command is None:
            return Step([], self._generate())
        return Step(step.events, self._now(step.command))

    def _began(self, input: TurnBegan) -> Step:
        if not isinstance(self._due, Generate) or self.reader.turn is not None:
            raise LocalProtocolError("a turn began that was not asked for")
        self.reader.begin(input, self._due)
        return Step([])

    def _turn_ended(self, turn: Turn, finish: FinishReason) -> Step:
        # First what the turn was for: an aside ends here however it went, and a thought that is to be summed up comes
        # before any reason to stop.
        if self._asides.running:
            self._asides.end()
            return self._go_on(self.stream.end_reasoning())
        if turn.sums_up:
            return Step([], self._now(self._asides.begin(len(self.turns), self.stream.messages)))
        unanswered = self.calls.unanswered
        # One that is to end with open calls is not cut here: it ends, or waits, as any other with calls does.
        if self.reader.stop is not None and not unanswered:
            return self._stop_here(self.reader.stop)
        if finish is FinishReason.ABORT:
            return self._finish(Status.CANCELLED)
        if self._compacting.running:
            seal = self._compacting.due()
            return self._finish(Status.FAILED, error=_NO_SUMMARY) if seal is None else Step([], self._now(seal))
        return self._after_turn(turn, finish, unanswered)

    def _after_turn(self, turn: Turn, finish: FinishReason, unanswered: tuple[str, ...]) -> Step:
        """Go on behind what the model has said, or end there."""
        call = self.server.due()
        if call is not None:
            events = self.server.begin_program(call) if isinstance(call, RunProgram) else []
            return Step(events, self._now(call))
        if self.stream.called.asks:
            return self._finish(Status.COMPLETED)
        # Notes let the model go on in the same response, which takes tokens: with none left the turn is the last.
        if turn.called and self._budget.left != 0 and self.server.add_notes(self.reader.functions or ()):
            return Step([], self._generate())
        if finish is FinishReason.LENGTH:
            return self._finish(Status.INCOMPLETE, reason="max_output_tokens")
        if self.calls.awaited and unanswered:
            return Step([], self._now(Await(unanswered)))
        if self.calls.have_news:
            return self._all_given()
        # An item beside the compaction, which is the first one where there is any. A model that said nothing has not
        # completed.
        answered = len(self.stream.output) > self.compacted
        return self._finish(Status.COMPLETED if answered else Status.INCOMPLETE)

    def _go_on(self, events: list[Event]) -> Step:
        """Begin the next turn, unless somebody has ended the response meanwhile."""
        step = Step([], self._generate()) if self.reader.stop is None else self._stop_here(self.reader.stop)
        return step.behind(events)

    # Compaction.

    def _sealed(self, input: Sealed) -> Step:
        if not isinstance(self._due, Seal):
            raise LocalProtocolError("a seal that was not asked for")
        events = self.stream.end_compaction(input.text)
        self._compacting.end(input.budget)
        if self._mode is Mode.COMPACT:
            return self._finish(Status.COMPLETED).behind(events)
        return self._prepare().behind(events)

    # Tools of this server.

    def _of_server(self, input: OfServer) -> Step:
        if not isinstance(self._due, _ASKED_BY.get(type(input), CallTool)):
            raise LocalProtocolError(f"{input!r} of a tool that was not asked for")
        match input:
            case ToolProgressed(fields=fields):
                return Step(self.stream.progress_call(fields))
            case ToolsListed():
                events = self.server.listed(input)
                return self._prepare().behind(events)
            case ToolsFound():
                events = self.server.found(input)
            case ProgramCalled() | ProgramPaused():
                return self._of_program(input)
            case ProgramEnded():
                events = self.server.program_ended(input)
            case ToolReturned():
                of_program = self.server.returned_to_program(input)
                if of_program is not None and of_program.command is not None:
                    return Step(of_program.events, self._now(of_program.command))
                events = self.server.returned(input)
        # What the tool gave back stands in the output, but no token is left to answer it.
        if self._budget.left == 0:
            return self._finish(Status.INCOMPLETE, reason="max_output_tokens").behind(events)
        return self._prepare().behind(events)

    def _of_program(self, input: ProgramCalled | ProgramPaused) -> Step:
        if isinstance(input, ProgramCalled):
            step = self.server.called_by_program(input)
            return Step(step.events, self._now(step.command or RunProgram("")))
        events = self.server.program_paused(input)
        # As behind a turn: the client answers in this response, or in the next one.
        if not self.calls.awaited:
            return self._finish(Status.COMPLETED).behind(events)
        return Step(events, self._now(Await(self.calls.unanswered)))

    # Tools of the client.

    def _of_wait(self, input: WaitBegan | OutputGiven | TimedOut) -> Step:
        if isinstance(input, TimedOut):
            return self._finish(Status.FAILED, error=no_output(awaited(input, self._due).call_ids, input.seconds))
        if isinstance(input, OutputGiven) and not self.takes_outputs:
            raise LocalProtocolError(f"{input!r} in a response that waits for nothing")
        self._due = self.calls.take(input, self._due)
        return Step([]) if self._due is not None else self._all_given()

    def _all_given(self) -> Step:
        """Go on: every call has its output."""
        if self.reader.stop is None and self._budget.left == 0:
            return self._finish(Status.INCOMPLETE, reason="max_output_tokens")
        if self.reader.stop is not None:
            return self._go_on([])
        events = self.calls.add_outputs()
        program = self.server.answered_to_program(self.calls.to_programs)
        return self._go_on(events) if program is None else Step(events, self._now(program))

    # Turns and endings.

    def _generate(self) -> Command:
        messages = tuple(self.stream.messages)
        summary, after_call, left = self._compacting.running, self.stream.called.anything, self._budget.left
        hosted = self.stream.called.may_host
        return self._now(
            Generate(
                len(self.turns),
                messages,
                budget=left,
                summary=summary,
                after_call=after_call,
                hosted=hosted,
                agent=self.number,
            )
        )

    def _stopped(self, reason: StopReason) -> Step:
        if reason is StopReason.SERVER_STOPPED:
            return self._finish(Status.FAILED, error=SERVER_STOPPED)
        if reason is StopReason.CANCELLED:
            return self._finish(Status.CANCELLED)
        if self.status is Status.QUEUED:  # it can be continued as one can that has begun and said nothing
            return self._stop_here(_AT_ONCE.get(reason, reason)).behind(self.stream.leave_queue())
        # Not now: what is being said, or asked of the client, comes to its end first. The reader looks at `stop` then.
        if reason is StopReason.STEERED and (isinstance(self._due, Await) or self.reader.is_inside):
            self.reader.stop = reason
            return Step([])
        # The item that the model was saying is kept as far as it came, unless it is to be dropped.
        events = self.stream.discard() if reason is StopReason.DISCARDED else self.reader.cut()
        return self._stop_here(_AT_ONCE.get(reason, reason)).behind(events)

    def _stop_here(self, reason: StopReason) -> Step:
        return self._finish(Status.INCOMPLETE, reason=reason.value)

    def _finish(self, status: Status, *, error: ResponseError | None = None, reason: str | None = None) -> Step:
        """Decide the end. What is open is closed now, but for a failure: clients act on calls that are done."""
        # Outputs that the model has not read are added, too: the client gave them, and what continues this needs them.
        events = [] if status is Status.FAILED else [*self.stream.close(), *self.calls.add_outputs()]
        # Behind all other items, since it carries what those do not show.
        if status in CONTINUABLE:
            events += self.stream.seal_others()
        self.reader.turn = None
        return Step(events, self._now(Finish(Ending(status=status, error=error, reason=reason))))

    def _ended(self, input: Ended) -> Step:
        assert isinstance(self._due, Finish)
        ending = self._ending(self._due.ending, input.at, input.error)
        self._due = None
        return Step(self.stream.finish(ending))

    def _ending(self, ending: Ending, at: int, error: ResponseError | None) -> Ending:
        # It could not be kept, so clients must not read that it succeeded.
        if error is not None:
            ending = Ending(status=Status.FAILED, error=error)
        messages, turns = None, self.all_turns
        if self.stream.shows_messages:
            messages = [each for said in self.stream.messages for each in self._format.messages_of(said.tokens)]
        return replace(ending, completed_at=at, usage=usage(turns) if turns else None, messages=messages)

    def _now(self, command: Command) -> Command:
        self._due = command
        return command


# By the type of an input of this server's tools, the command that it answers; of the others it is `CallTool`.
_ASKED_BY: dict[type[Input], type[Command]] = {
    ToolsListed: ListTools,
    ToolsFound: SearchTools,
    ProgramCalled: RunProgram,
    ProgramPaused: RunProgram,
    ProgramEnded: RunProgram,
}
_AT_ONCE = {StopReason.DISCARDED: StopReason.INTERRUPTED}  # as clients are told
_NO_SUMMARY: ResponseError = {"code": "server_error", "message": "The model gave no summary. Send the request again."}
