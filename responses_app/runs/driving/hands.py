"""`Hand`: does for one machine what it wants of the engine, of tools and of its client, and tells it what came of that.

A response has one. Where its model has started agents, each of them has one of its own: they work at the same time, and
share nothing but the plan and what was permitted.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import NoReturn

from engine.errors import EngineError, GenerationCut, PromptTooLong
from engine.types import NO_SESSION, FinishReason, GenerationRequest
from responses_app.observing.metrics import TurnMeter
from responses_app.observing.traces import Span
from responses_app.protocol.response.response import ResponseMachine
from responses_app.protocol.response.steps import (
    Await,
    AwaitAgents,
    CallTool,
    Command,
    Finish,
    Generate,
    Input,
    ListTools,
    RunProgram,
    Sampled,
    SearchTools,
    TimedOut,
    TurnBegan,
)
from responses_app.runs.driving.generating import (
    Continuing,
    Tell,
    as_sampled,
    delayed,
    generated,
    hold_to_rule,
    prefill_ahead,
    request_of,
    unlogged_finish,
)
from responses_app.runs.driving.learning import learn_tools
from responses_app.runs.driving.predicting import Guess
from responses_app.runs.driving.programs import run_tool
from responses_app.runs.driving.spans import agent_span, turn_span
from responses_app.runs.driving.tool_calls import Effects, wait_until
from responses_app.runs.driving.waiting import ClientWait
from responses_app.runs.plan.plan import RunPlan
from responses_app.runs.plan.replanning import check_callable, learnt_elsewhere
from responses_app.runs.plan.served import ServedModel
from responses_app.runs.plan.settings import RunSettings

logger = logging.getLogger("respsite.runs")

Work = Generate | ListTools | SearchTools | CallTool | RunProgram | Await | AwaitAgents


@dataclass(frozen=True, slots=True)
class Shared:
    """What all hands of one response share."""

    plan: Callable[[], RunPlan]  # the present one
    use: Callable[[RunPlan], None]  # go on with another plan
    model: ServedModel
    settings: RunSettings
    effects: Effects  # what was permitted
    now: Callable[[], float]  # Unix seconds
    note_speech: Callable[[], Awaitable[None]]  # awaited before the first token of a turn is told
    note_wait: Callable[[ResponseMachine, Await], None]  # called where a machine begins to wait for its client


class Hand:
    """What works for one machine. `tell` gives the machine an input, and returns what is to be done next."""

    def __init__(self, machine: ResponseMachine, tell: Callable[[Input], Command | None], shared: Shared) -> None:
        self.machine = machine
        self.tell = tell
        self._plan = shared.plan
        self._use = shared.use
        self._served = shared.model
        self._settings = shared.settings
        self._effects = shared.effects
        self._now = shared.now
        self._note_speech = shared.note_speech
        self._note_wait = shared.note_wait
        self.span: Span | None = None  # of its agent, below which all that it does is traced; None: the response's
        self._session = NO_SESSION  # of its last turn
        self._waiting: ClientWait | None = None  # while it waits for its client
        # What it has of the engine. Roll-outs have a share of its turns beside people.
        plan = shared.plan()
        self.place = shared.model.turns.place(*plan.in_queue(shared.now()), of_rollout=plan.origin.rollout is not None)

    async def do(self, command: Work) -> Command | None:
        """Do one thing; return what is to be done next."""
        match command:
            case Generate():
                due = await self._generate(command)
                self._leave(due)
                return due
            case ListTools() | SearchTools():
                return await self._learn(command)
            case CallTool() | RunProgram():
                plan, said, tell = self._traced(self._plan()), self.machine.stream.said_tokens, self.tell
                if self.machine.calls.unanswered:  # what its client does now may change what was read
                    self._effects.early.drop()
                return tell(await run_tool(plan, command, self._effects, self._settings, tell=tell, said=said))
            case Await():
                return await self._wait_for_client(command)
        return self.tell(await self._waited(command, command.seconds))

    def leave_run(self) -> None:
        """Forget the run, which is over: nothing is done for it any more."""
        self._effects.leave_run()
        self.tell = self._plan = self._use = self._note_speech = self._note_wait = _is_over

    def hear(self) -> None:
        """Take notice of what has come from outside."""
        if self._waiting is not None:
            self._waiting.hear()

    async def _wait_for_client(self, command: Await) -> Command | None:
        self._note_wait(self.machine, command)
        plan, engine, seconds = self._plan(), self._served.engine, self._settings.responses_tool_timeout
        self._waiting = ClientWait(
            self.machine.calls,
            waits=self._served.waits,
            project=plan.origin.project,
            now=asyncio.get_running_loop().time,
            prefill=lambda: prefill_ahead(engine, plan, self.machine, self.place),
            elapsed=0.0 if command.until is None else max(0.0, seconds - (command.until - self._now())),
        )
        try:
            return self.tell(await self._waited(command, seconds))
        finally:
            waiting, self._waiting = self._waiting, None
            await waiting.aclose()

    async def _waited(self, command: Await | AwaitAgents, seconds: float) -> TimedOut:
        # Unix time, not a monotonic clock: the log keeps the deadline, and another worker may have to go by it.
        return await wait_until(command.until, seconds, now=self._now(), tell=self.tell)

    def _leave(self, due: Command | None) -> None:
        """Note how a turn has ended: what it called, or with an answer."""
        tools: Sequence[str]
        match due:
            case CallTool(name=name):
                tools = (name,)
            case Await() | Finish():
                tools = tuple(self.machine.calls.open_tools.values())
            case _:
                return
        # What the root waits for is measured while it waits.
        at = None if isinstance(due, Await) and not self.machine.number else asyncio.get_running_loop().time()
        self._served.waits.leave(self._session, self._plan().origin.project, tools, at)

    def as_agent(self, number: int) -> Span:
        """Begin the span of the agent that it works for."""
        self.span = agent_span(self._plan(), number, self.machine)
        return self.span

    def _traced(self, plan: RunPlan) -> RunPlan:
        return plan if self.span is None else replace(plan, origin=replace(plan.origin, span=self.span))

    async def _generate(self, generate: Generate) -> Command | None:
        """Wait for the engine and generate a turn. The engine's work ends with it, however that comes."""
        # Asking the engine for no tokens, or for tokens behind a stop token, would be an error.
        if generate.has_begun and (finish := unlogged_finish(self._plan(), generate)) is not None:
            return self.tell(Sampled((), finish))
        if not (generate.after_call or generate.agent or generate.summary):
            check_callable(self._plan())
        if (recorder := self._plan().recorder) is not None:
            recorder.queue(generate.agent)
        async with self.place.turn():
            try:
                return await self._generate_on(generate)
            except EngineError as error:
                # A summary of reasoning is not worth failing for: without it the response goes on.
                if not generate.aside:
                    raise
                logger.warning("response %s: no summary: %s: %s", self._plan().response_id, type(error).__name__, error)
                return self.tell(Sampled((), FinishReason.STOP))

    async def _generate_on(self, generate: Generate) -> Command | None:
        """Generate a turn, as often as it is cut and can go on."""
        continuing = Continuing(self._served.engine, is_cut=generate.has_begun)
        meter = self._served.meter.turn()
        while True:
            try:
                return await self._sample(generate, meter, continuing)
            except EngineError as error:
                await continuing.wait(error)
                if isinstance(error, GenerationCut):
                    logger.warning("response %s: its turn was cut and goes on: %s", self._plan().response_id, error)
                    self._served.meter.continued()
            # The machine has counted what was sampled before the cut: what is due now is the rest of the turn.
            due = self.machine.due
            assert isinstance(due, Generate), "a turn that is cut stands until something ends it, and this task with it"
            generate = due
            if (finish := unlogged_finish(self._plan(), generate)) is not None:
                return self.tell(Sampled((), finish))

    async def _sample(self, generate: Generate, meter: TurnMeter | None, continuing: Continuing) -> Command | None:
        """Ask the engine once, and tell what it samples."""
        plan, has_begun = self._plan(), False
        tells = self._guessing(plan, generate)
        request = await request_of(plan, generate, cuts=continuing.cuts, avoid=continuing.avoid)
        request = self._come_back(plan, request)
        # Told once a turn: a turn that goes on behind a cut has begun before.
        if not generate.has_begun:
            self._begin_turn(plan, generate, request)
        try:
            with turn_span(request, below=self.span or plan.origin.span, turn=generate.turn) as span:
                async with aclosing(generated(self._served.engine, plan, generate, request, span)) as chunks:
                    with delayed(tells, self.machine.only_adds, seconds=self._settings.delta_seconds) as tell:
                        async for chunk in chunks:
                            hold_to_rule(plan.recorder, chunk, generate, tell)
                            if plan.details is not None:
                                plan.details.take(chunk)
                            if chunk.token_ids:
                                if meter is not None:
                                    meter.note(len(chunk.token_ids))
                                if not has_begun:
                                    has_begun = True
                                    # Before the first token is told: nothing is said for a response that another
                                    # worker has.
                                    await self._note_speech()
                            command = tell(as_sampled(chunk, generate, plan.recorder))
                            if command is not None:
                                return command
                # An engine that just ends has said all it had to say.
                return self.tell(Sampled((), FinishReason.STOP))
        except PromptTooLong:
            if not (generate.sampled or generate.said):
                raise
            # What this response has said and read fills the context.
            return self.tell(Sampled((), FinishReason.LENGTH))

    def _guessing(self, plan: RunPlan, generate: Generate) -> Tell:
        """Return what tells a turn's tokens, and begins to guess what follows where that is wanted."""
        early = self._effects.early
        # What was guessed before is waited for first; a turn that sums something up calls nothing.
        if self._settings.server_tool_early != "predicted" or not early.is_idle or generate.summary:
            return self.tell
        return Guess(plan, generate, self.machine, self._served.engine, self.place, early).telling(self.tell)

    def _come_back(self, plan: RunPlan, request: GenerationRequest) -> GenerationRequest:
        """Return a turn's request with what is known of when the next one will come: behind a tool, if it calls one."""
        self._session, now = request.session, asyncio.get_running_loop().time()
        back_in = self._served.waits.come_back(self._session, plan.origin.project, now)
        if back_in is None or not (len(plan.client_tools) or plan.tools.entries):
            return request
        return replace(request, session=replace(self._session, back_in=back_in))

    def _begin_turn(self, plan: RunPlan, generate: Generate, request: GenerationRequest) -> None:
        if plan.recorder is not None:
            plan.recorder.ask(generate, request)
        self.tell(TurnBegan(len(request.prompt_token_ids)))

    async def _learn(self, command: ListTools | SearchTools) -> Command | None:
        """Ask a server which tools it has, or search those that are deferred, and plan anew with them."""
        before = self._plan()
        told, plan = await learn_tools(before, command, said=self.machine.stream.said_tokens)
        # Another agent of the response has learnt something at the same time: both hold.
        if self._plan() is not before:
            plan = learnt_elsewhere(self._plan(), told)
        self._use(plan)
        return self.tell(told)


def _is_over(*_: object) -> NoReturn:
    raise RuntimeError("the run of this hand is over")
