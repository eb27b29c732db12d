"""`ResponseRun`: drives a `ResponseMachine`: does what it wants, and tells it what came of that.

A run belongs to the registry, never to a request or a socket. Its journal is all that transports see. What comes while
it works (an output of a tool, an interrupt) goes in by `give`, and what is to be done then takes the place of what is
being done. Cancelling its task ends it with status `cancelled`, keeping what was said; what goes wrong, with `failed`.
"""

import asyncio
import logging

from engine.errors import EngineError
from responses_app.limits.rates import FREE
from responses_app.protocol.chain import ChainLink
from responses_app.protocol.commands import Await, CallTool, Command, Generate, Prefill, Seal
from responses_app.protocol.endings import Ending
from responses_app.protocol.errors import ApiError
from responses_app.protocol.input_codec import decode
from responses_app.protocol.inputs import (
    Declared,
    Ended,
    Enqueued,
    Failed,
    Input,
    OutputGiven,
    Prefilled,
    Sealed,
    Stopped,
    StopReason,
)
from responses_app.protocol.rate_limits import Amount
from responses_app.protocol.resources import TERMINAL_STATUSES, ResponseObject, Status
from responses_app.protocol.response import ResponseMachine
from responses_app.protocol.tool_outputs import answered_already, call_not_found, not_waiting
from responses_app.runs.background import BackgroundQueue
from responses_app.runs.compaction import compacted, go_on
from responses_app.runs.failures import failure, server_stopped, unanswered, unanswered_by_stopped_server
from responses_app.runs.generating import Generating, prefill
from responses_app.runs.interruption import Interruption
from responses_app.runs.journal import EventJournal
from responses_app.runs.measuring import RunClock, outcome, report
from responses_app.runs.persistence import RunPersistence
from responses_app.runs.plan import CompactionPlan, RunPlan
from responses_app.runs.served import ServedModel
from responses_app.runs.tool_calls import CUT_CALL, call_tool, wait_for_outputs
from responses_app.stores.base import Claim, ClaimLost, StoreError

logger = logging.getLogger("respsite.runs")


class ResponseRun:
    """Runs a plan. `status`, `link` (for continuing it) and `problem` (why it failed) hold once `journal.closed`.

    `place` is what it has of the engine.
    """

    def __init__(
        self,
        plan: RunPlan,
        *,
        model: ServedModel,
        machine: ResponseMachine,
        journal: EventJournal,
        persistence: RunPersistence,
        queue: BackgroundQueue,
    ) -> None:
        self.plan = plan
        self.journal = journal
        self.link: ChainLink | None = None
        self.problem: ApiError | None = None
        self.ticket = FREE  # what it takes of its key's and its project's limits
        self.given_back = False  # to whichever worker looks first
        self._log = persistence.log  # None for one that is not stored
        self.stopping = False  # a cancellation means that the server stops
        self.deleted = False  # a client has deleted the response while it ran
        self.lost = False  # another worker took it over: this one was taken for dead, and was not
        self.abandoned_reason = ""  # why the readers went away, for the log
        self._interruption = Interruption()
        self._engine = model.engine
        self._meter = model.meter
        self._machine = machine
        self._tools = plan.tools
        self._persistence = persistence
        self._queue = queue
        self.place = model.turns.place(plan.origin.project, plan.tier, plan.priority)
        self._clock = RunClock()
        self._generating = Generating(model, machine, tell=self._tell, begin=self._begin, place=self.place)

    @property
    def response_id(self) -> str:
        """The id of the response."""
        return self.plan.response_id

    @property
    def status(self) -> Status:
        """The status as far as readers know it."""
        return self._machine.status

    @property
    def finishing(self) -> bool:
        """Whether its end is decided, so that a cancellation changes nothing any more."""
        return self.given_back or self._machine.ending is not None or self._machine.status in TERMINAL_STATUSES

    @property
    def has_spoken(self) -> bool:
        """Whether the model has said anything."""
        return self._clock.first_token is not None

    def is_behind(self, number: int | None) -> bool:
        """Whether a client may have had an event elsewhere that readers here have not: only its log tells that.

        What is kept of a background response is told by others at once; and another worker may have gone on with it.
        """
        known = number is None or number <= self.journal.last_number
        return self.plan.background and not self.journal.closed and not known

    @property
    def known_as(self) -> str:
        """The id by which clients know the response."""
        return self._machine.stream.known_as

    def response(self) -> ResponseObject:
        """Return the response object as it stands."""
        return self._machine.stream.snapshot()

    def begin(self) -> None:
        """Say that it runs, or waits for the engine, if that is not said: so its reader has what to write at once.

        A warm-up says nothing of waiting: clients expect `created` of it, and its end.
        """
        if not self._machine.stream.has_begun:
            self._declare()
            if self.plan.request.warm_up or self.place.ask():
                self._start()
            else:
                self._tell(Enqueued())

    async def execute(self) -> None:
        """Run to the terminal event. Raises nothing; a cancellation becomes the status `cancelled`."""
        self._interruption.attach()
        try:
            await self._answer()
        except asyncio.CancelledError:
            await self._stop()
        except ClaimLost:
            self._give_up()
        except StoreError as problem:
            logger.error("response %s could not begin: %s", self.response_id, problem)
            await self._fail(None)
        except EngineError as error:
            logger.warning("response %s: the engine failed: %s: %s", self.response_id, type(error).__name__, error)
            await self._fail(error)
        except Exception:
            logger.exception("response %s broke", self.response_id)
            await self._fail(None)

    async def accept(self, *, again: bool = False) -> None:
        """Keep the response before it runs; `again`: another worker has kept it already.

        Raises `StoreError`; `ParentGone` where what it continues is gone, `NameTaken`.
        """
        waits = self.plan.background or (self.place.would_wait and not self.plan.request.warm_up)
        status = self.status if self._machine.stream.has_begun else (Status.QUEUED if waits else Status.IN_PROGRESS)
        await self._persistence.accept({**self._machine.stream.kept(), "status": status.value}, again=again)

    def settle(self) -> None:
        """It runs no more, or never will: count what it used, unless another worker goes on with it and will do so."""
        self._persistence.leave()
        self.place.leave()
        if self.given_back or (self.lost and self.plan.background):
            self.ticket.hand_over()
            return
        turns = self._machine.turns
        used = sum(turn.input_tokens for turn in turns), sum(turn.output_tokens for turn in turns)
        self.ticket.settle(Amount(1, *used))

    def give(self, given: Input) -> None:
        """Take what comes from outside; where something else is to be done now, what is being done ends."""
        command = self._tell(given)
        if command is not None:
            self._interruption.put(command)

    def stop(self, reason: StopReason) -> bool:
        """End it before the model does; return whether its end was not decided yet."""
        if self.finishing or self.lost:
            return False
        self.give(Stopped(reason))
        return True

    def take_output(self, given: OutputGiven) -> None:
        """Take what the client says came of a call. Raises `ApiError` where nobody waits for that."""
        if self.finishing or self.lost or not self._machine.takes_outputs:
            raise not_waiting(self.response_id)
        match self._machine.calls.state(given.call_id):
            case "unknown":
                raise call_not_found(given.call_id)
            case "answered":
                raise answered_already(given.call_id)
        self.give(given)

    @property
    def waits(self) -> bool:
        """Whether it does nothing but wait for its client."""
        return isinstance(self._machine.due, Await)

    async def keep_inputs(self) -> None:
        """Return once all that came so far is kept, where it is kept at all. Raises `StoreError`."""
        if self._log is not None and self._persistence.accepted:
            await self._log.keep()

    def follow(self) -> None:
        """Keep its log while it runs: a reader on another worker follows it."""
        if self._log is not None:
            self._log.follow()

    @property
    def is_followed(self) -> bool:
        """Whether a reader on another worker follows it, as far as is known here."""
        return self._log is not None and self._log.is_followed

    @property
    def claim(self) -> Claim | None:
        """By what right it runs here; None for one that no other worker knows of."""
        return self._persistence.claim if self._persistence.accepted else None

    def go_on_behind(self, log: bytes) -> None:
        """Take what came to the response on another worker: it is told again, and then this one goes on.

        Raises `BrokenLog`, and `PromptTooLong` where there was a compaction that does not fit here.
        """
        assert self._log is not None, "only a stored response has a log"
        for given in decode(log):
            seal = self._machine.due
            self.journal.extend(self._machine.receive(given).events)
            if isinstance(given, Sealed) and isinstance(seal, Seal):
                self._replan(go_on(self.plan, self._compaction, compacted(self._compaction, seal.summary)))
        self._log.go_on_behind(log)

    async def _answer(self) -> None:
        if not self.plan.background:
            self.begin()
            await self._drive(self._machine.due or await self._start_in_turn())
            return
        if not self._machine.stream.has_begun:
            self._declare()
            self._tell(Enqueued())
        async with self._queue.turn(self.plan.origin.project, self.plan.tier, self.plan.priority):
            due = self._machine.due
            await self._drive(self._resumed(due) if due is not None else await self._start_in_turn())

    async def _start_in_turn(self) -> Command | None:
        """Start once the engine has a turn for it, which is that of its first generation."""
        await self.place.wait()
        return self._start()

    def _declare(self) -> None:
        if self.plan.late_tools:
            self._tell(Declared(self.plan.late_tools))

    def _resumed(self, due: Command) -> Command | None:
        """Return what is to be done first, behind the log of another worker."""
        logger.info("response %s goes on behind %d turns", self.response_id, len(self._machine.turns))
        if isinstance(due, CallTool) and not self._tools[due.name].idempotent:
            return self._tell(CUT_CALL)
        return due

    def _start(self) -> Command | None:
        self._persistence.note_start()
        if self.plan.asked != self._machine.asked:
            self._tell(self.plan.asked)
        return self._tell(self.plan.started)

    def _tell(self, given: Input) -> Command | None:
        """Give the machine an input, publish what came of it, and return what is to be done next."""
        events, command = self._machine.receive(given)
        if self._log is not None:
            self._log.take(given, events)
        else:
            self.journal.extend(events)
        return command

    async def _drive(self, command: Command | None) -> None:
        """Do what the machine wants, until it wants nothing any more."""
        while command is not None:
            try:
                command = await self._do(command)
            except asyncio.CancelledError:
                command = self._interruption.take()
                if command is None:
                    raise

    async def _do(self, command: Command) -> Command | None:
        """Do one thing; return what is to be done next."""
        match command:
            case Generate():
                return await self._generating.generate(self.plan, command)
            case Prefill():
                await prefill(self._engine, self.plan, self.place)
                return self._tell(Prefilled())
            case Seal(summary=summary):
                return await self._seal(summary)
            case CallTool():
                tool, span = self._tools[command.name], self.plan.origin.span
                return self._tell(await call_tool(tool, command.arguments, self.response_id, span=span))
            case Await():
                now, seconds = self._persistence.now(), self.plan.tool_seconds
                return self._tell(await wait_for_outputs(command, seconds, now=now, tell=self._tell))
        await self._finish(command.ending)
        return None

    async def _begin(self) -> None:
        """Before anything is said: note that it begins. Raises `ClaimLost` where another worker has it."""
        if not self.has_spoken:
            self._clock.note_first_token()
            await self._persistence.begin(may_wait=self._may_wait)

    def _may_wait(self) -> bool:
        return not (self.stopping or self.lost)

    def _give_up(self) -> None:
        """Stop without a word to the store: another worker has decided what becomes of the response.

        It has let fail what cannot be run again, and readers are told that; else the stream here ends without an end.
        """
        self.lost = True
        logger.warning("response %s: another worker took it over, so it stops here", self.response_id)
        self.problem = unanswered_by_stopped_server()
        if self.plan.background:
            self.journal.end()  # what was held back is not told: it is not kept
        else:
            error = server_stopped()
            if self._log is not None:
                self._log.end()  # it is another worker's to keep
            self._tell(Failed(error))
            self._tell(Ended(0, error))

    async def _seal(self, summary: str) -> Command | None:
        """Go on from a summary: with a plan whose chain begins anew. Raises `PromptTooLong`."""
        compaction = self._compaction
        now = compacted(compaction, summary)
        plan = await asyncio.to_thread(go_on, self.plan, compaction, now)  # a summary may be long
        sealed = Sealed(compaction.seal(now.as_bytes()), plan.generation.sampling.max_output_tokens)
        command = self._tell(sealed)
        self._replan(plan)
        return command

    @property
    def _compaction(self) -> CompactionPlan:
        assert self.plan.compaction is not None, "only a plan with a compaction asks for a seal"
        return self.plan.compaction

    def _replan(self, plan: RunPlan) -> None:
        """Go on with a plan whose chain begins with the summary that was just sealed."""
        self.plan = plan
        self._persistence.replan(plan)
        self._machine.stream.note_sampled(plan.input_messages[0])

    async def _stop(self) -> None:
        """End as cancelled; where the server stops, as failed, or leave it to another worker in the background."""
        if self.lost:
            self._give_up()
        elif not self.stopping:
            await self._end(Stopped(StopReason.CANCELLED))
        elif not self.plan.background:
            self.problem = unanswered_by_stopped_server()
            await self._end(Stopped(StopReason.SERVER_STOPPED))
        elif not self.finishing:
            self.given_back = True
            await self._persistence.give_back(self._machine.stream.kept())
            self.journal.end()

    async def _fail(self, error: EngineError | None) -> None:
        """End as failed; None stands for an error of this server."""
        request_id = self.plan.origin.request_id
        self.problem = unanswered(error, request_id)
        await self._end(Failed(failure(error, request_id)))

    async def _end(self, given: Input) -> None:
        """End by this input, or as it was decided before by one from outside."""
        decided = self._interruption.forget()
        await self._drive(self._tell(given) or decided)

    async def _finish(self, ending: Ending) -> None:
        """Keep the end, and then say it: a stored response is committed before its terminal event goes out."""
        self.place.leave()  # nothing more is generated
        measured = self._clock.measured()
        try:
            kept = await self._persistence.keep(self._machine, ending, measured, may_wait=self._may_wait)
        except ClaimLost:
            self._give_up()
            return
        self.link = kept.link
        failed = ending.status is Status.FAILED or kept.ended.error is not None
        if failed and (self.problem is None or kept.ended.error is not None):  # of the machine's own, or of the store
            self.problem = unanswered(None, self.plan.origin.request_id)
        if self._log is not None:
            self._log.end()
        self._tell(kept.ended)
        error = kept.ended.error or ending.error
        self._meter.ended(outcome(self.plan, self._machine, measured, error, self.journal.appended_bytes))
        report(self.plan, self._machine, measured, self.abandoned_reason)
