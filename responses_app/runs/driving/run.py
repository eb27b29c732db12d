"""`Run`: drives a `ResponseMachine`: does what it wants, and tells it what came of that.

    machine ── a command ──> run ── generates, calls a tool, waits, seals, … ──┐
       ^                                                                       │
       └────────────────────────── an input, by `_tell` ───────────────────────┘

Example: a request with the code interpreter, whose model calls it once and then answers.

    command of the machine     what the run does                           what it tells the machine
    –                          waits for its turn at the engine            Started
    Generate(turn 0)           has the engine generate                     TurnBegan, Sampled … Sampled
    CallTool                   keeps that it is asked for, and calls it    ToolProgressed …, ToolReturned
    Generate(turn 1)           has the engine generate                     TurnBegan, Sampled … Sampled
    Finish(completed)          keeps the end, and only then tells it       Ended

Each input is noted in the run's log, and the events that come of it go into its journal, which is all that transports
see. A run belongs to the registry, never to a request or a socket. What must hold, whatever happens:

- Nothing goes out to the world before its fenced line is in the log: a call that must not be made twice waits for its
  permit (`Effects`), and a stored response is committed before its terminal event goes out.
- What comes from outside while it works (an output of a tool, an interrupt) goes in by `give`. Where something else is
  to be done then, the run's task is cancelled, finds in `_instead` why, and goes on with that.
- Cancelling its task without that ends it with status `cancelled`, keeping what was said; what goes wrong, with
  `failed`. Where the server stops, a durable response goes to another worker instead.
- Every reader gets an end: the one that is kept, or that the response has failed, or a stream that just ends.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from engine.errors import EngineError
from responses_app.kit.errors import StoreError
from responses_app.limits.rates import FREE
from responses_app.protocol.errors import ApiError
from responses_app.protocol.items.items import Exact
from responses_app.protocol.requests.resources import CONTINUABLE, TERMINAL_STATUSES, Ending, ResponseObject, Status
from responses_app.protocol.response.input_codec import decode_timed
from responses_app.protocol.response.response import ResponseMachine
from responses_app.protocol.response.steps import (
    CallTool,
    Command,
    Ended,
    Enqueued,
    Failed,
    Finish,
    Idle,
    Input,
    OfAgent,
    OutputGiven,
    Prefill,
    Prefilled,
    Sampled,
    Seal,
    Sealed,
    Stopped,
    StopReason,
    ToolsFound,
    ToolsListed,
    input_of,
)
from responses_app.protocol.rollouts.generations import RecordedResponse
from responses_app.protocol.session.tool_outputs import answered_already, call_not_found, not_waiting
from responses_app.runs.driving.early import EarlyCalls
from responses_app.runs.driving.generating import asked_again, prefill
from responses_app.runs.driving.hands import AgentTasks, Hand, Shared
from responses_app.runs.driving.persistence import KeptEnd, RunPersistence
from responses_app.runs.driving.spans import RunMeasure
from responses_app.runs.driving.tool_calls import Effects, cut_call
from responses_app.runs.log.journal import EventJournal, EventSource
from responses_app.runs.plan.failures import Cause, failure, server_stopped, unanswered, unanswered_by_stopped_server
from responses_app.runs.plan.plan import CompactionPlan, RunPlan
from responses_app.runs.plan.replanning import compacted, go_on, learnt_elsewhere
from responses_app.runs.plan.served import ServedModel
from responses_app.runs.plan.settings import RunSettings
from responses_app.runs.plan.turns import BackgroundQueue
from responses_app.stores.base import Claim, ClaimLost, StoredLog

logger = logging.getLogger("respsite.runs")


class Run(EventSource):
    """One response that runs here, from its acceptance to its end."""

    def __init__(  # noqa: PLR0913 - all that it is made of
        self,
        plan: RunPlan,
        settings: RunSettings,
        *,
        model: ServedModel,
        machine: ResponseMachine,
        journal: EventJournal,
        persistence: RunPersistence,
        queue: BackgroundQueue,
    ) -> None:
        super().__init__(plan.response_id, journal, machine)
        # What was decided before it started; a summary, or what a server lists of its tools, makes another one of it.
        self.plan = plan
        self.effects = Effects(plan.response_id, persistence.keep_inputs, EarlyCalls(model), may_wait=self._may_wait)
        self.ticket = FREE  # what it takes of its key's and its project's limits
        self.settled: Callable[[], None] = lambda: None  # called once it runs no more, and goes on nowhere
        # Awaited before a whole answer is told: its client may go on at once. It raises nothing.
        self.remember: Callable[[], Awaitable[None]] | None = None
        self.stopping = False  # a cancellation means that the server stops
        self.has_spoken = False  # the model has said anything
        self.lost = False  # another worker took it over: this one was taken for dead, and was not
        self.given_back = False  # to whichever worker looks first
        self.abandoned_reason = ""  # why the readers went away, for the log
        self._model = model
        self._persistence = persistence
        self.log = persistence.log  # None for one that is not stored
        self._queue = queue
        self.measure = RunMeasure(plan, machine, model.meter)
        self._settings = settings
        self._kept: KeptEnd | None = None  # its end, once that is kept
        self._is_settled = False  # it runs no more, and has what it ran with
        shared = Shared(
            plan=lambda: self.plan,
            use=self._use,
            model=model,
            settings=settings,
            effects=self.effects,
            now=persistence.now,
            note_speech=self._note_speech,
            note_wait=persistence.tell_wait,
        )
        self._hand = Hand(machine, self._tell, shared)
        self.place = self._hand.place  # what it has of the engine
        self._agents = None if plan.agents is None else self._agent_tasks(shared)  # those that its model starts
        self._task: asyncio.Task[None] | None = None  # that it runs in
        self._instead: Command | None = None  # what is to be done in place of what that task does

    def _agent_tasks(self, shared: Shared) -> AgentTasks:
        return AgentTasks(
            lambda number, tell: Hand(self._machine.machine_of(number), tell, shared),
            self.give,
            lost=self._lose,
            request_id=self.plan.origin.request_id,
        )

    def _lose(self) -> None:
        """Another worker has it, as one of its agents was told."""
        self.lost = True
        if self._task is not None:
            self._task.cancel()

    # What others see of it.

    @property
    def finishing(self) -> bool:
        """Whether its end is decided, so that a cancellation changes nothing any more."""
        return self.given_back or self._machine.ending is not None or self._machine.status in TERMINAL_STATUSES

    @property
    def said(self) -> Exact | None:
        stops = self._machine.reader.stops
        if stops is not None and stops.has_cut:  # more was sampled than is said
            return None
        return Exact(self.plan.format.name, tuple(self._machine.stream.messages))

    def response(self) -> ResponseObject:
        response, recorder = super().response(), self.plan.recorder
        if recorder is None or not self.plan.request.wants_tokens:
            return response
        return {**response, "output": recorder.with_tokens(response["output"])}

    @property
    def waits(self) -> bool:
        """Whether it does nothing but wait for its client."""
        return self._machine.waits

    @property
    def claim(self) -> Claim | None:
        """By what right it runs here; None for one that no other worker knows of."""
        return self._persistence.claim if self._persistence.accepted else None

    def is_behind(self, number: int | None) -> bool:
        """Whether a client may have had an event elsewhere that readers here have not: only its log tells that.

        What is kept of a durable response is told by others at once; and another worker may have gone on with it.
        """
        known = number is None or number <= self.journal.last_number
        return self.plan.durable and not self.journal.closed and not known

    def recorded(self) -> StoredLog:
        """Return the response, which is stored, and all that came to it so far."""
        assert self.log is not None, "only a stored response has a log"
        return StoredLog(self._machine.stream.kept(), self.log.so_far())

    # How it begins.

    async def accept(self, *, again: bool = False) -> None:
        """Keep the response before it runs; `again`: another worker has kept it already.

        Raises `StoreError`; `ParentGone` where what it continues is gone, `NameTaken`.
        """
        waits = self.plan.background or (self.place.would_wait and not self.plan.request.warm_up)
        stream = self._machine.stream
        status = self.status if stream.has_begun else (Status.QUEUED if waits else Status.IN_PROGRESS)
        await self._persistence.accept({**stream.kept(), "status": status.value}, again=again)

    def go_on_behind(self, log: bytes) -> None:
        """Take what came to the response on another worker: it is told again, and then this one goes on.

        Raises `BrokenLog`, and `PromptTooLong` where there was a compaction that does not fit here.
        """
        assert self.log is not None, "only a stored response has a log"
        # The plan changes where it did on the worker that wrote the log, so that the same inputs mean the same.
        for input_, at in decode_timed(log):
            # Read before the input goes in: `receive` replaces what is due.
            seal = self._machine.due
            asked_again(self.plan, self._machine, input_)
            self.journal.extend(self._machine.receive(input_).events)
            if self.plan.recorder is not None:
                self.plan.recorder.take_logged(input_, self._machine.machine_of, at=at)
            told = input_of(input_)
            if isinstance(input_, Sealed) and isinstance(seal, Seal):
                compaction = self._compaction
                self._go_on_with_summary(go_on(self.plan, compaction, compacted(compaction, seal.summary)))
            elif isinstance(told, ToolsListed | ToolsFound):
                self._use(learnt_elsewhere(self.plan, told))
        self._machine.take_orders()  # of another worker; what is due of them is done once this one runs
        self.log.go_on_behind(log)

    def recorded_so_far(self) -> RecordedResponse | None:
        """Return what it adds to its roll-out, if it is part of one."""
        return self._persistence.recorded()

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

    def _declare(self) -> None:
        for input_ in self.plan.declarations:
            self._tell(input_)

    def _start(self) -> Command | None:
        self._persistence.note_start()
        if self.plan.asked != self._machine.asked:
            self._tell(self.plan.asked)
        return self._tell(self.plan.started)

    # How it runs.

    async def execute(self) -> None:
        """Run to the terminal event; a cancellation becomes the status `cancelled`. Raises nothing."""
        self._task = asyncio.current_task()
        try:
            await self._answer_or_fail()
        except Exception:
            logger.exception("response %s: its end broke", self.response_id)
        finally:
            if self._agents is not None:
                await self._agents.aclose()
            await self.effects.early.aclose()
            self.end_anyway()
            if self.plan.unkept:
                await asyncio.gather(*(entry.tool.forget_response(entry.use) for entry in self.plan.tools.entries))

    async def _answer_or_fail(self) -> None:
        try:
            await self._answer()
        except asyncio.CancelledError:
            if self._agents is not None:
                self._agents.cancel()
            await self._stop()
        except ClaimLost:
            self._give_up()
        except StoreError as problem:
            logger.error("response %s could not begin: %s", self.response_id, problem)
            await self._fail(problem)
        except (EngineError, ApiError) as error:  # an `ApiError`: what is known only now of the request
            logger.warning("response %s failed: %s: %s", self.response_id, type(error).__name__, error)
            await self._fail(error)
        except Exception:
            logger.exception("response %s broke", self.response_id)
            await self._fail(None)

    async def _answer(self) -> None:
        if not self.plan.background:
            self.begin()
            await self._drive(self._due() or await self._start_in_turn())
            return
        if not self._machine.stream.has_begun:
            self._declare()
            self._tell(Enqueued())
        queue, now = self._queue, self._persistence.now()
        async with queue.turn(*self.plan.in_queue(now), of_rollout=self.plan.origin.rollout is not None):
            await self._drive(self._due() or await self._start_in_turn())

    async def _start_in_turn(self) -> Command | None:
        """Start once the engine has a turn for it, which is that of its first generation."""
        await self.place.wait()
        return self._start()

    def _due(self) -> Command | None:
        """Return what is due; behind the log of another worker what that one began is not done twice, unless it may."""
        due = self._machine.due
        if due is None or self.log is None or not self.log.goes_on:
            return due
        logger.info("response %s goes on behind %d turns", self.response_id, len(self._machine.all_turns))
        if self._agents is not None:
            self._agents.go_on(self._machine.dues())
        if isinstance(due, CallTool) and not due.repeatable:
            return self._tell(cut_call(due))
        return due

    async def _drive(self, command: Command | None) -> None:
        """Do what the machine wants, until it wants nothing any more. Raises whatever that raises."""
        while command is not None:
            try:
                command = await self._do(command)
            except asyncio.CancelledError:
                command = self._interruption()
                if command is None:
                    raise

    async def _do(self, command: Command) -> Command | None:
        """Do one thing; return what is to be done next."""
        match command:
            case Prefill():
                await prefill(self._model.engine, self.plan, self.place)
                return self._tell(Prefilled())
            case Seal(summary=summary):
                return await self._seal(summary)
            case Finish(ending=ending):
                await self._finish(ending)
                return None
            case Idle():
                raise AssertionError("the root does not rest: it ends")
        return await self._hand.do(command)

    def _tell(self, input_: Input) -> Command | None:
        """Give the machine an input, publish what came of it, and return what is to be done next."""
        events, command = self._machine.receive(input_)
        # Tokens that ask for nothing end no turn; an agent's turn may end without asking anything of the root.
        if self.plan.recorder is not None and (command is not None or not isinstance(input_, Sampled)):
            self.plan.recorder.take(input_, self._machine.machine_of)
        # With a log, the log decides when readers get the events: those of a durable response once they are kept.
        if self.log is None:
            self.journal.extend(events)
        else:
            self.log.take(input_, events)
        if self._agents is None:
            return command
        self._agents.follow(self._machine.take_orders())
        # All agents together have sampled what the response may, in the middle of the root's turn.
        if isinstance(command, Finish) and isinstance(input_, Sampled) and input_.finish is None:
            self._redirect(command)
            return None
        return command

    def _may_wait(self) -> bool:
        """Whether it may wait for the store: not where the server stops, or another worker has the response."""
        return not (self.stopping or self.lost)

    # What it does.

    async def _note_speech(self) -> None:
        """Before anything is said: note that it begins. Raises `ClaimLost` where another worker has it."""
        if not self.has_spoken:
            self.has_spoken = True
            self.measure.note_first_token()
            await self._persistence.begin(may_wait=self._may_wait)

    async def _seal(self, summary: str) -> Command | None:
        """Seal a summary, and go on with the plan that begins with it. Raises `PromptTooLong`."""
        compaction = self._compaction
        now = compacted(compaction, summary)
        plan = await asyncio.to_thread(go_on, self.plan, compaction, now)  # a summary may be long
        # The input goes in before the plan changes: whoever replays the log meets them in the same order.
        command = self._tell(Sealed(compaction.seal(now.as_bytes()), plan.generation.sampling.max_output_tokens))
        self._go_on_with_summary(plan)
        return command

    @property
    def _compaction(self) -> CompactionPlan:
        assert self.plan.compaction is not None, "only a plan with a compaction asks for a seal"
        return self.plan.compaction

    def _use(self, plan: RunPlan) -> None:
        """Go on with another plan."""
        self.plan = plan
        self._persistence.replan(plan)

    def _go_on_with_summary(self, plan: RunPlan) -> None:
        """Go on with a plan whose chain begins with the summary that was just sealed."""
        self._use(plan)
        self._machine.stream.note_sampled(plan.input_messages[0])

    # What comes from outside.

    def give(self, input_: Input) -> None:
        """Take what comes from outside; where something else is to be done now, what is being done ends."""
        if (command := self._tell(input_)) is not None:
            self._redirect(command)
        self._hand.hear()

    def _redirect(self, command: Command) -> None:
        """End what is being done, and do this."""
        if self._task is None:  # one that has not begun begins with it by itself
            return
        # `_drive` tells this cancellation from one of the run itself by `_instead`; two of them are one.
        if self._instead is None:
            self._task.cancel()
        self._instead = command

    def _interruption(self) -> Command | None:
        """Return what is to be done in place of what was cancelled; None where the run itself was cancelled, too.

        An end that is decided is kept in any case.
        """
        instead = self._forget_interruption()
        if instead is None or self._task is None:
            return None
        # `uncancel` takes back the cancellation of `give`. What remains was asked for by somebody else.
        cancelled_too = self._task.uncancel() > 0
        return None if cancelled_too and not isinstance(instead, Finish) else instead

    def _forget_interruption(self) -> Command | None:
        """Return what was to be done, which is not done any more."""
        instead, self._instead = self._instead, None
        return instead

    def stop(self, reason: StopReason) -> bool:
        # The end is decided, or is another worker's to decide: nothing can stop it here.
        if self.finishing or self.lost:
            return False
        self.give(Stopped(reason))
        return True

    def take_outputs(self, inputs: Sequence[OutputGiven], *, at: str = "tool_call_id") -> None:
        """Take what the client says came of calls, all of it or none. Raises `ApiError` where nobody waits for it.

        `at` is the field that names a call; the place of an output stands in it as `{}`.
        """
        if self.finishing or self.lost or not self._machine.takes_outputs:
            raise not_waiting(self.response_id)
        machines = [self._machine.agent_of_call(input_.call_id) for input_ in inputs]
        taken: set[str] = set()
        for place, (machine, input_) in enumerate(zip(machines, inputs, strict=True)):
            state = machine.calls.state(input_.call_id)
            if state == "unknown":
                raise call_not_found(input_.call_id, at.format(place))
            if state == "answered" or input_.call_id in taken:
                raise answered_already(input_.call_id, at.format(place))
            taken.add(input_.call_id)
        self.effects.early.drop()  # what its client has done may have changed what was read
        for machine, input_ in zip(machines, inputs, strict=True):
            self.give(OfAgent(machine.number, input_) if machine.number else input_)

    async def keep_inputs(self) -> None:
        """Return once all that came so far is kept, where it is kept at all. Raises `StoreError`."""
        # Before its acceptance there is no row in the store to append to.
        if self.log is not None and self._persistence.accepted:
            await self.log.keep()

    def follow(self) -> None:
        """Keep its log while it runs: a reader on another worker follows it."""
        if self.log is not None:
            self.log.follow()

    # How it ends: decided ──> kept ──> told, or failed, where that cannot be kept.

    async def _stop(self) -> None:
        """End as cancelled; where the server stops, as failed, or leave a durable one to another worker."""
        if self.lost:
            self._give_up()
        elif not self.stopping:
            await self._end(Stopped(StopReason.CANCELLED))
        elif self.plan.durable and not self.finishing:
            await self._give_back()
        else:
            self.problem = unanswered_by_stopped_server()
            await self._end(Stopped(StopReason.SERVER_STOPPED))

    async def _fail(self, error: Cause) -> None:
        """End as failed, unless it has ended."""
        # Its end is stored, and cannot become another one.
        if self._kept is not None:  # what breaks behind its end is not its own
            return
        request_id = self.plan.origin.request_id
        self.problem = unanswered(error, request_id)
        await self._end(Failed(failure(error, request_id)))

    async def _end(self, input_: Input) -> None:
        """End by this input, or as it was decided before by one from outside."""
        decided = self._forget_interruption()
        await self._drive(self._tell(input_) or decided)

    async def _finish(self, ending: Ending) -> None:
        """Keep the end, and then say it: a stored response is committed before its terminal event goes out."""
        # At once, and not when the store has answered: others wait for the place.
        self.place.leave()  # nothing more is generated
        self.effects.early.drop()
        try:
            measured = self.measure.measured()
            self._kept = await self._persistence.keep(self._machine, ending, measured, may_wait=self._may_wait)
        except ClaimLost:
            self._give_up()
            return
        if ending.error is not None and self.problem is None:  # of the machine's own
            self.problem = unanswered(ending.error, self.plan.origin.request_id)
        if self._kept is None:
            await self._give_back()
            return
        if self.remember is not None and ending.status in CONTINUABLE:
            await self.remember()
        self._say_end(self._kept)

    def _say_end(self, kept: KeptEnd) -> None:
        """Say the end that is kept."""
        self.link = kept.link
        if kept.problem is not None:  # it could not be kept as it was decided
            self.problem = kept.problem
        if self.log is not None:
            # Before the end is told: `end` publishes the events that are held back, and they come first.
            self.log.end()
        self._persistence.note_usage(self._model.name, self.measure.tokens)
        self._tell(kept.ended)
        self.measure.report(self.journal.appended_bytes, self.abandoned_reason)

    def _give_up(self) -> None:
        """Stop without a word to the store: another worker has decided what becomes of the response.

        It has let fail what cannot be run again, and readers are told that; else the stream here ends without an end.
        """
        self.lost = True
        logger.warning("response %s: another worker took it over, so it stops here", self.response_id)
        self.problem = unanswered_by_stopped_server()
        if self.plan.durable:
            self.journal.end()  # what was held back is not told: it is not kept
        else:
            error = server_stopped()
            if self.log is not None:
                self.log.end()  # it is another worker's to keep
            self._tell(Failed(error))
            self._tell(Ended(0, error))

    async def _give_back(self) -> None:
        """Leave it to another worker, since the server stops; the stream here ends without an end."""
        self.given_back = True
        self.problem = unanswered_by_stopped_server()
        await self._persistence.give_back(self._machine.stream.kept())
        self.journal.end()

    def end_anyway(self) -> None:
        """Tell readers an end if they have none yet, since something broke: the one that is kept, or a failure.

        Where even that cannot be told, the stream ends without an end, and `problem` says so.
        """
        if self.journal.closed:
            return
        if self.given_back or (self.lost and self.plan.durable):  # it ends elsewhere
            self.journal.end()
            return
        try:
            self._tell(Failed(failure(None, self.plan.origin.request_id)))  # does nothing where an end was decided
            self._kept = self._kept or self._persistence.fail(self._machine, self.measure.measured())
            self._say_end(self._kept)
        except Exception:
            logger.exception("response %s: its end cannot be told", self.response_id)
        if not self.journal.is_whole:
            self.problem = unanswered(None, self.plan.origin.request_id)
            self.journal.end()

    def let_go(self) -> None:
        """Keep only what may still be asked: nobody reads it, and its stream may be kept for long."""
        if self._is_settled:
            self._is_settled = False
            self._use(self.plan.ended())
            self.link = self._kept = None

    def settle(self) -> None:
        """It runs no more, or never will: count what it used, unless another worker goes on with it and will do so."""
        self._is_settled = True
        self._persistence.leave()
        self.plan.pictures.release()
        self.place.leave()
        self._hand.leave_run()  # they refer to each other: its request would stay until the collector comes by
        self.remember = self._agents = self._task = None
        if self.given_back or (self.lost and self._persistence.goes_on_elsewhere):
            self.ticket.hand_over()
            return
        self.settled()
        self._persistence.count(self.ticket, self.measure.used())
