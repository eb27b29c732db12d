"""`ResponseRun`: drives a `ResponseMachine`: does what it wants, and tells it what came of that.

A run belongs to the registry, never to a request or a socket. Its journal is all that transports see. Cancelling its
task ends it with status `cancelled`, keeping what was said; everything else that goes wrong ends it with `failed`.
"""

import asyncio
import logging
from contextlib import aclosing

from engine.backends.base import BaseEngine
from engine.errors import EngineError
from engine.types import FinishReason
from responses_app.protocol.chain import ChainLink
from responses_app.protocol.commands import CallTool, Command, Finish, Generate, Prefill, Seal
from responses_app.protocol.errors import ApiError
from responses_app.protocol.input_codec import decode
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
    TurnBegan,
)
from responses_app.protocol.resources import TERMINAL_STATUSES, ResponseObject, Status, as_failed
from responses_app.protocol.response import ResponseMachine
from responses_app.protocol.stream import Ending
from responses_app.runs.background import BackgroundQueue
from responses_app.runs.compaction import compacted, go_on
from responses_app.runs.delays import delayed
from responses_app.runs.failures import failure, server_stopped, unanswered, unanswered_by_stopped_server
from responses_app.runs.generating import prefill, request_for, unlogged_finish
from responses_app.runs.journal import EventJournal
from responses_app.runs.measuring import RunClock, report
from responses_app.runs.persistence import RunPersistence
from responses_app.runs.plan import CompactionPlan, RunPlan
from responses_app.runs.tool_calls import CUT_CALL, call_tool
from responses_app.stores.base import Claim, ClaimLost, ParentGone, StoreError

logger = logging.getLogger("respsite.runs")


class ResponseRun:
    """Runs a plan. `status`, `link` (for continuing it) and `problem` (why it failed) hold once `journal.closed`."""

    def __init__(
        self,
        plan: RunPlan,
        *,
        engine: BaseEngine,
        machine: ResponseMachine,
        journal: EventJournal,
        persistence: RunPersistence,
        queue: BackgroundQueue,
    ) -> None:
        self.plan = plan
        self.journal = journal
        self.link: ChainLink | None = None
        self.problem: ApiError | None = None
        self._given_back = False  # to whichever worker looks first
        self._log = persistence.log  # None for one that is not stored
        self.stopping = False  # a cancellation means that the server stops
        self.deleted = False  # a client has deleted the response while it ran
        self.lost = False  # another worker took it over: this one was taken for dead, and was not
        self.abandoned_reason = ""  # why the readers went away, for the log
        self._engine = engine
        self._machine = machine
        self._tools = plan.tools
        self._persistence = persistence
        self._queue = queue
        self._clock = RunClock()

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
        return self._given_back or self._machine.ending is not None or self._machine.status in TERMINAL_STATUSES

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

    def response(self) -> ResponseObject:
        """Return the response object as it stands."""
        return self._machine.stream.snapshot()

    def begin(self) -> None:
        """Say that it runs, if that is not said: so its reader, once it has one, has what to write at once."""
        if not self._machine.stream.has_begun:
            self._declare()
            self._tell(self._started())

    async def execute(self) -> None:
        """Run to the terminal event. Raises nothing; a cancellation becomes the status `cancelled`."""
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

        Raises `StoreError`; `ParentGone` where what it continues is gone. Else nobody knows whether one that raised is
        kept or will be: if so, it ends as failed, unless it is for another try.
        """
        status = Status.QUEUED if self.plan.background else Status.IN_PROGRESS
        status = self.status if self._machine.stream.has_begun else status
        try:
            await self._persistence.accept({**self.response(), "status": status.value}, again=again)
        except (ClaimLost, ParentGone):
            raise
        except StoreError:
            if not again:
                error = failure(None, self.plan.origin.request_id)
                self._persistence.refuse(as_failed(self.response(), error))
            raise

    def follow(self) -> None:
        """Keep its log while it runs: a reader on another worker follows it."""
        if self._log is not None:
            self._log.follow()

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
            await self._drive(self._machine.due)
            return
        if not self._machine.stream.has_begun:
            self._declare()
            self._tell(Enqueued())
        async with self._queue.turn():
            due = self._machine.due
            await self._drive(self._resumed(due) if due is not None else self._tell(self._started()))

    def _declare(self) -> None:
        if self.plan.late_tools:
            self._tell(Declared(self.plan.late_tools))

    def _resumed(self, due: Command) -> Command | None:
        """Return what is to be done first, behind the log of another worker."""
        logger.info("response %s goes on behind %d turns", self.response_id, len(self._machine.turns))
        if isinstance(due, CallTool) and not self._tools[due.name].idempotent:
            return self._tell(CUT_CALL)
        return due

    def _started(self) -> Started:
        compaction, budget = self.plan.compaction, self.plan.generation.sampling.max_output_tokens
        if self.plan.request.warm_up:
            return Started(Mode.WARM_UP)
        if compaction is None:
            return Started(Mode.ANSWER, budget)
        return Started(Mode.COMPACT if compaction.sampling is None else Mode.COMPACT_AND_ANSWER, budget)

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
            match command:
                case Generate():
                    command = await self._generate(command)
                case Prefill():
                    await prefill(self._engine, self.plan)
                    command = self._tell(Prefilled())
                case Seal(summary=summary):
                    command = await self._seal(summary)
                case CallTool():
                    command = self._tell(
                        await call_tool(self._tools[command.name], command.arguments, self.response_id)
                    )
                case Finish(ending=ending):
                    await self._finish(ending)
                    command = None

    async def _generate(self, wanted: Generate) -> Command | None:
        """Generate a turn; the engine's work ends with it, however that comes."""
        request = request_for(self.plan, wanted)
        if not wanted.has_begun:
            self._tell(TurnBegan(len(request.prompt_token_ids)))
        elif (finish := unlogged_finish(self.plan, wanted)) is not None:
            return self._tell(Sampled((), finish))
        async with aclosing(self._engine.generate(request)) as chunks:
            with delayed(self._tell, self._machine.only_adds, seconds=self.plan.delta_seconds) as tell:
                async for chunk in chunks:
                    if chunk.token_ids and not self.has_spoken:
                        await self._begin()
                    sampled = Sampled(chunk.token_ids, chunk.finish_reason, chunk.cached_tokens, chunk.logprobs)
                    command = tell(sampled)
                    if command is not None:
                        return command
        return self._tell(Sampled((), FinishReason.STOP))  # an engine that just ends has said all it had to say

    async def _begin(self) -> None:
        """Before the first thing is said: note that it begins. Raises `ClaimLost` where another worker has it."""
        self._clock.note_first_token()
        await self._persistence.begin()

    def _give_up(self) -> None:
        """Stop without a word to the store: another worker has decided what becomes of the response.

        It has let fail what could not be run again, and readers are told that; else it runs the response itself, and
        the stream here ends without an end.
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
            await self._drive(self._tell(Stopped(StopReason.CANCELLED)))
        elif not self.plan.background:
            self.problem = unanswered_by_stopped_server()
            await self._drive(self._tell(Stopped(StopReason.SERVER_STOPPED)))
        elif not self.finishing:
            self._given_back = True
            await self._give_back()

    async def _give_back(self) -> None:
        """Leave the response to others, with all that came to it: they go on from there."""
        assert self._log is not None, "background responses are stored"
        try:
            await self._log.flush()
            await self._persistence.give_back(self.response())
            logger.info("response %s goes to another worker: the server stops", self.response_id)
        except StoreError as problem:
            logger.error("response %s could not be given to another worker: %s", self.response_id, problem)
        self.journal.end()

    async def _fail(self, error: EngineError | None) -> None:
        """End as failed; None stands for an error of this server."""
        request_id = self.plan.origin.request_id
        self.problem = unanswered(error, request_id)
        await self._drive(self._tell(Failed(failure(error, request_id))))

    async def _finish(self, ending: Ending) -> None:
        """Keep the end, and then say it: a stored response is committed before its terminal event goes out."""
        measured = self._clock.measured()
        try:
            kept = await self._persistence.keep(self._machine, ending, measured)
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
        report(self.plan, self._machine, measured, self.abandoned_reason)
