"""`ResponseRun`: drives a `ResponseMachine`: does what it wants, and tells it what came of that.

A run belongs to the registry, never to a request or a socket. Its journal is all that transports see. What comes while
it works (an output of a tool, an interrupt) goes in by `give`, and what is to be done then takes the place of what is
being done. Cancelling its task ends it with status `cancelled`, keeping what was said; what goes wrong, with `failed`.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from engine.errors import EngineError
from responses_app.limits.rates import FREE
from responses_app.observing.traces import Span
from responses_app.protocol.errors import ApiError
from responses_app.protocol.items.items import Exact
from responses_app.protocol.output.endings import Ending
from responses_app.protocol.prompt.chain import ChainLink
from responses_app.protocol.rate_limits import Amount
from responses_app.protocol.requests.resources import TERMINAL_STATUSES, ResponseObject, Status
from responses_app.protocol.response.commands import Await, CallTool, Command, ListTools, Seal
from responses_app.protocol.response.input_codec import decode
from responses_app.protocol.response.inputs import (
    Ended,
    Enqueued,
    Failed,
    Input,
    OutputGiven,
    Sealed,
    Stopped,
    StopReason,
    ToolsListed,
)
from responses_app.protocol.response.response import ResponseMachine
from responses_app.protocol.session.tool_outputs import answered_already, call_not_found, not_waiting
from responses_app.runs.driving.driving import CommandDriver
from responses_app.runs.driving.effects import Effects
from responses_app.runs.driving.generating import Generating
from responses_app.runs.driving.measuring import RunMeasure
from responses_app.runs.driving.persistence import RunPersistence
from responses_app.runs.driving.run_ending import RunEnding
from responses_app.runs.driving.serving_tools import listed_elsewhere
from responses_app.runs.log.journal import EventJournal
from responses_app.runs.plan.failures import failure, server_stopped, unanswered, unanswered_by_stopped_server
from responses_app.runs.plan.plan import RunPlan
from responses_app.runs.plan.served import ServedModel
from responses_app.runs.queues.background import BackgroundQueue
from responses_app.stores.base import Claim, ClaimLost, StoredLog, StoreError

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
        self.journal = journal
        self.ticket = FREE  # what it takes of its key's and its project's limits
        self.settled: Callable[[], None] = lambda: None  # called once it runs no more, and goes on nowhere
        self.given_back = False  # to whichever worker looks first
        self._log = persistence.log  # None for one that is not stored
        self.stopping = False  # a cancellation means that the server stops
        self.deleted = False  # a client has deleted the response while it ran
        self.lost = False  # another worker took it over: this one was taken for dead, and was not
        self.abandoned_reason = ""  # why the readers went away, for the log
        self._machine = machine
        self._persistence = persistence
        self._queue = queue
        self.place = model.turns.place(plan.origin.project, plan.tier, plan.priority)
        self._measure = RunMeasure(plan, machine, model.meter)
        request_id = plan.origin.request_id
        self._ending = RunEnding(machine, journal, persistence, self._measure, request_id=request_id, tell=self._tell)
        generating = Generating(model, machine, tell=self._tell, begin=self._begin, place=self.place)
        self.effects = Effects(persistence, may_wait=self._may_wait)
        self._driver = CommandDriver(plan, machine, generating, self.effects, tell=self._tell, finish=self._finish)

    @property
    def plan(self) -> RunPlan:
        """What was decided before it started; a compaction makes another one of it."""
        return self._driver.plan

    def trace_below(self, span: Span) -> None:
        """Trace its turns and tool calls below its own span."""
        plan = self.plan
        self._driver.plan = replace(plan, origin=replace(plan.origin, span=span))

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
        return self._measure.has_spoken

    @property
    def link(self) -> ChainLink | None:
        """What continues it in a connection; None for what cannot be continued."""
        return self._ending.link

    @property
    def problem(self) -> ApiError | None:
        """Why it failed, as an error."""
        return self._ending.problem

    @property
    def said(self) -> Exact:
        """What the model has sampled so far, as it reads it in a later turn."""
        return Exact(self.plan.format.name, tuple(self._machine.stream.messages))

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
        """Run to the terminal event; a cancellation becomes the status `cancelled`. Raises nothing."""
        self._driver.interruption.attach()
        try:
            await self._answer_or_fail()
        except Exception:
            logger.exception("response %s: its end broke", self.response_id)
        finally:
            self.end_anyway()

    async def _answer_or_fail(self) -> None:
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

    def end_anyway(self) -> None:
        """Tell readers an end if they have none yet, since something broke."""
        if self.journal.closed:
            return
        if self.given_back or (self.lost and self.plan.background):  # it ends elsewhere
            self.journal.end()
        else:
            self._ending.tell_anyway(remark=self.abandoned_reason)

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
        if self.given_back or (self.lost and self._persistence.goes_on_elsewhere):
            self.ticket.hand_over()
            return
        self.settled()
        turns = self._machine.turns
        used = Amount(1, sum(turn.input_tokens for turn in turns), sum(turn.output_tokens for turn in turns))
        if self._persistence.unsaved is not None:
            self._persistence.unsaved.count(self.ticket, used, elsewhere=self._persistence.goes_on_elsewhere)
        else:
            self.ticket.settle(used)

    def give(self, given: Input) -> None:
        """Take what comes from outside; where something else is to be done now, what is being done ends."""
        command = self._tell(given)
        if command is not None:
            self._driver.interruption.put(command)

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

    def recorded(self) -> StoredLog:
        """Return the response, which is stored, and all that came to it so far."""
        assert self._log is not None, "only a stored response has a log"
        return StoredLog(self._machine.stream.kept(), self._log.so_far())

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
                self._driver.go_on_from(seal.summary)
            elif isinstance(given, ToolsListed):
                self._driver.use(listed_elsewhere(self.plan, given))
        self._log.go_on_behind(log)

    async def _answer(self) -> None:
        if not self.plan.background:
            self.begin()
            await self._driver.drive(self._machine.due or await self._start_in_turn())
            return
        if not self._machine.stream.has_begun:
            self._declare()
            self._tell(Enqueued())
        async with self._queue.turn(self.plan.origin.project, self.plan.tier, self.plan.priority):
            due = self._machine.due
            await self._driver.drive(self._resumed(due) if due is not None else await self._start_in_turn())

    async def _start_in_turn(self) -> Command | None:
        """Start once the engine has a turn for it, which is that of its first generation."""
        await self.place.wait()
        return self._start()

    def _declare(self) -> None:
        for given in self.plan.declarations:
            self._tell(given)

    def _resumed(self, due: Command) -> Command | None:
        """Return what is to be done first, behind the log of another worker."""
        logger.info("response %s goes on behind %d turns", self.response_id, len(self._machine.turns))
        return self._driver.tools.go_on(due) if isinstance(due, ListTools | CallTool) else due

    def _start(self) -> Command | None:
        self._persistence.note_start()
        if self.plan.asked != self._machine.asked:
            self._tell(self.plan.asked)
        return self._tell(self.plan.started)

    def _tell(self, given: Input) -> Command | None:
        """Give the machine an input, publish what came of it, and return what is to be done next."""
        events, command = self._machine.receive(given)
        if self._log is None:
            self.journal.extend(events)
        else:
            self._log.take(given, events)
        return command

    async def _begin(self) -> None:
        """Before anything is said: note that it begins. Raises `ClaimLost` where another worker has it."""
        if not self.has_spoken:
            self._measure.note_first_token()
            await self._persistence.begin(may_wait=self._may_wait)

    def _may_wait(self) -> bool:
        return not (self.stopping or self.lost)

    def _give_up(self) -> None:
        """Stop without a word to the store: another worker has decided what becomes of the response.

        It has let fail what cannot be run again, and readers are told that; else the stream here ends without an end.
        """
        self.lost = True
        logger.warning("response %s: another worker took it over, so it stops here", self.response_id)
        self._ending.problem = unanswered_by_stopped_server()
        if self.plan.background:
            self.journal.end()  # what was held back is not told: it is not kept
        else:
            error = server_stopped()
            if self._log is not None:
                self._log.end()  # it is another worker's to keep
            self._tell(Failed(error))
            self._tell(Ended(0, error))

    async def _stop(self) -> None:
        """End as cancelled; where the server stops, as failed, or leave it to another worker in the background."""
        if self.lost:
            self._give_up()
        elif not self.stopping:
            await self._end(Stopped(StopReason.CANCELLED))
        elif self.plan.background and not self.finishing:
            await self._give_back()
        else:
            self._ending.problem = unanswered_by_stopped_server()
            await self._end(Stopped(StopReason.SERVER_STOPPED))

    async def _give_back(self) -> None:
        """Leave it to another worker, since the server stops; the stream here ends without an end."""
        self.given_back = True
        await self._persistence.give_back(self._machine.stream.kept())
        self.journal.end()

    async def _fail(self, error: EngineError | None) -> None:
        """End as failed, unless it has ended; None stands for an error of this server."""
        if self._ending.kept is not None:  # what breaks behind its end is not its own
            return
        request_id = self.plan.origin.request_id
        self._ending.problem = unanswered(error, request_id)
        await self._end(Failed(failure(error, request_id)))

    async def _end(self, given: Input) -> None:
        """End by this input, or as it was decided before by one from outside."""
        decided = self._driver.interruption.forget()
        await self._driver.drive(self._tell(given) or decided)

    async def _finish(self, ending: Ending) -> None:
        """Keep the end, and then say it: a stored response is committed before its terminal event goes out."""
        self.place.leave()  # nothing more is generated
        try:
            is_kept = await self._ending.keep(ending, may_wait=self._may_wait)
        except ClaimLost:
            self._give_up()
            return
        if is_kept:
            self._ending.tell(remark=self.abandoned_reason)
        else:
            await self._give_back()
