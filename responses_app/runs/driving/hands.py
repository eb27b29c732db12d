"""`Hand`: does for one machine what it wants of the engine, of tools and of its client, and tells it what came of that.

A response has one. Where its model has started agents, each of them has one of its own: they work at the same time, and
share nothing but the plan and what was permitted.

`AgentTasks`: the agents below the root of one response, each at work in a task of its own.

    machine ── orders: {1: Generate, 2: Idle} ──> AgentTasks ─┬─> task of agent 1 ── OfAgent(1, Sampled …) ──> run
                                                              └─> task of agent 2, which ends

Their run owns them: it starts none before its first order, and leaves none behind. All that they tell goes into the one
machine and the one log of the run, in the order in which it happens. What an agent's step means for another one comes
back as an order: then what that one does is ended, as an interrupt ends what a response does (`Run.give`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from engine.errors import EngineError, GenerationCut, PromptTooLong
from engine.types import NO_SESSION, FinishReason, GenerationRequest
from responses_app.kit.duty import end_tasks
from responses_app.kit.errors import StoreError
from responses_app.observing.metrics import TurnMeter
from responses_app.observing.traces import Span
from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.protocol.items.offers import SEARCH_OUTPUT, Offer, found_on_servers, not_listed
from responses_app.protocol.items.tool_search import ToolQuery, find, groups_of, shown
from responses_app.protocol.prompt.rendering import rendered_item
from responses_app.protocol.response.calls import ClientCalls
from responses_app.protocol.response.response import ResponseMachine
from responses_app.protocol.response.steps import (
    Await,
    AwaitAgents,
    CallTool,
    Command,
    Failed,
    Finish,
    Generate,
    Idle,
    Input,
    ListTools,
    OfAgent,
    RunProgram,
    Sampled,
    SearchTools,
    TimedOut,
    ToolsFound,
    ToolsListed,
    TurnBegan,
)
from responses_app.runs.driving.generating import (
    Continuing,
    Guess,
    Tell,
    as_sampled,
    delayed,
    generated,
    hold_to_rule,
    prefill_ahead,
    request_of,
    unlogged_finish,
)
from responses_app.runs.driving.programs import run_tool
from responses_app.runs.driving.spans import agent_span, turn_span
from responses_app.runs.driving.tool_calls import Effects, cut_call, room_behind, wait_until
from responses_app.runs.plan.failures import failure
from responses_app.runs.plan.plan import RunPlan, ToolEntry
from responses_app.runs.plan.replanning import check_callable, learnt_elsewhere, with_found, with_tools
from responses_app.runs.plan.served import ServedModel, ToolWaits
from responses_app.runs.plan.settings import RunSettings
from responses_app.stores.base import ClaimLost
from responses_app.tools.base import ToolFailed

logger = logging.getLogger("respsite.runs")


async def learn_tools(
    plan: RunPlan, command: ListTools | SearchTools, *, said: int
) -> tuple[ToolsListed | ToolsFound, RunPlan]:
    """Return what a server has listed or a search has found, and the plan to go on with. Raises `PromptTooLong`.

    `said` tokens stand behind the prompt. The search looks through what the request and its servers have deferred. It
    is pure and changes nothing outside: so another worker that takes the response over repeats it.
    """
    if isinstance(command, SearchTools):
        return await asyncio.to_thread(_searched, plan, command.arguments, said)
    entry = plan.tools.server(command.server)
    listed, offer = await list_tools(entry)
    listed = replace(listed, offered=[tool for tool in listed.offered if plan.tools.may_call(entry, tool)])
    # The prompt is written anew, which takes long for a long conversation.
    return listed, await asyncio.to_thread(with_tools, plan, command.server, offer)


async def list_tools(entry: ToolEntry) -> tuple[ToolsListed, Offer]:
    """Ask a server which tools it has; nothing is raised but a cancellation. An offer with a `problem` has failed.

    Listing reports no progress, so it may take as long as a call without a report.
    """
    tool, use = entry.tool, entry.use
    seconds = min(tool.max_seconds, tool.idle_seconds)
    try:
        async with asyncio.timeout(seconds) as time_left:
            tools, left_out = await tool.list_tools(use)
        offer = tool.offer_listed(use, tools)
        return ToolsListed(entry.server, tools, offer.tools, left_out), replace(offer, problem=left_out or "")
    except TimeoutError:
        problem = f"it did not answer within {seconds:g} s" if time_left.expired() else "it broke"
    except ToolFailed as failed:
        problem = str(failed)
    except Exception:
        logger.exception("response %s: the server %s could not be listed", use.response_id, entry.server)
        problem = "it broke"
    error = f"The tools of '{entry.server}' could not be listed: {problem}"
    return ToolsListed(entry.server, error=error), not_listed(entry.server, error)


def _searched(plan: RunPlan, arguments: str, said: int) -> tuple[ToolsFound, RunPlan]:
    choice, deferred = plan.request.tool_choice, plan.tools.deferred
    served = {tool.name: tool for offer in deferred.values() for tool in offer.tools}
    groups = groups_of(plan.request.tools_json, deferred)
    names = [
        name
        for name in find(ToolQuery.of(arguments), groups)
        if (choice.allows(served[name]) if name in served else choice.allowed is None or name in choice.allowed)
    ]
    room = room_behind(len(plan.generation.prompt_token_ids) + said, plan.writer.max_model_len)
    tools = shown(names, groups)
    while tools and _tokens(plan, tools) > room:
        names = names[: len(names) // 2]  # the best come first
        tools = shown(names, groups)
    callable_ = {tool.name for tool, _ in with_found(plan, ToolsFound(tools)).tools.rules()}
    found = ToolsFound(tools, [served[name] for name in found_on_servers(tools) if name in callable_])
    return found, with_found(plan, found)


def _tokens(plan: RunPlan, tools: list[JsonObject]) -> int:
    item: JsonObject = {"type": SEARCH_OUTPUT, "execution": "server", "tools": tools}
    return sum(len(message.tokens) for message in rendered_item(plan.format, item))


EVICTED_SECONDS = 2.0  # of a wait: before that, hardly anything is evicted, and reading it again would be for nothing
SOON_SECONDS = 10.0  # until the rest of the outputs is expected: what is read now is still there by then


class ClientWait:
    """A wait of a response for outputs of its client's calls, whose time is used.

    It learns how long each call takes (`ToolWaits`). And where some outputs are there and the rest is expected soon, it
    has the engine read the prompt again up to the calls: its blocks may have been evicted meanwhile. Then only the
    outputs are left to be read once all are there, and a router before the engine has heard that the session is coming
    back.

    Example: a model calls `tests` and `lint` at once. `lint` answers after 20 s, and `tests` mostly takes 25: the
    prompt is read now. If `tests` mostly took 10 minutes it would not be: it would be evicted again by then.

    `prefill` has the engine read the prompt, and is called once at most; the wait owns what it does.
    """

    def __init__(
        self,
        calls: ClientCalls,
        *,
        waits: ToolWaits,
        project: str,
        now: Callable[[], float],  # of a monotonic clock, in seconds
        prefill: Callable[[], Coroutine[Any, Any, None]],
        elapsed: float = 0.0,  # seconds of it that another worker has waited
    ) -> None:
        self._calls = calls
        self._open: dict[str, str] = dict(calls.open_tools)  # ids of calls that have no output yet, with their tools
        self._waits = waits
        self._project = project
        self._now = now
        self._began = now() - elapsed
        self._prefill = prefill
        self._task: asyncio.Task[None] | None = None

    def hear(self) -> None:
        """Take notice of the outputs that have come."""
        came = [call_id for call_id in self._open if self._calls.state(call_id) == "answered"]
        elapsed = self._now() - self._began
        for call_id in came:
            self._waits.note(self._project, self._open.pop(call_id), elapsed)
        if came and self._open and self._task is None and self._is_worth_it(elapsed):
            self._task = asyncio.create_task(self._prefill(), name="prefill ahead")

    async def aclose(self) -> None:
        """End what it does; return when it has ended."""
        await end_tasks((self._task,))

    def _is_worth_it(self, elapsed: float) -> bool:
        if elapsed < EVICTED_SECONDS:
            return False
        expected = self._waits.expected(self._project, self._open.values())
        return expected is None or expected - elapsed <= SOON_SECONDS


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
                plan, said, tell = self._plan(), self.machine.stream.said_tokens, self.tell
                if self.span is not None:
                    plan = replace(plan, origin=replace(plan.origin, span=self.span))
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

    def _begin_turn(self, plan: RunPlan, generate: Generate, request: GenerationRequest) -> None:
        if plan.recorder is not None:
            plan.recorder.ask(generate, request)
        self.tell(TurnBegan(len(request.prompt_token_ids)))

    def _come_back(self, plan: RunPlan, request: GenerationRequest) -> GenerationRequest:
        """Return a turn's request with what is known of when the next one will come: behind a tool, if it calls one."""
        self._session, now = request.session, asyncio.get_running_loop().time()
        back_in = self._served.waits.come_back(self._session, plan.origin.project, now)
        if back_in is None or not (len(plan.client_tools) or plan.tools.entries):
            return request
        return replace(request, session=replace(self._session, back_in=back_in))

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


class AgentTasks:
    """The agents of one run that work. `tell` gives the run's machine an input, `lost` says that the run is lost."""

    def __init__(
        self,
        # The number of an agent, and what tells its inputs → its hand
        make: Callable[[int, Callable[[Input], Command | None]], Hand],
        tell: Callable[[Input], object],
        *,
        lost: Callable[[], None],
        request_id: str,
    ) -> None:
        self._make = make
        self._tell_run = tell
        self._lost = lost
        self._request_id = request_id
        self._tasks: dict[int, asyncio.Task[None]] = {}  # by the numbers of agents; also of those that have ended
        self._instead: dict[int, Command] = {}  # what is to be done in place of what a task does
        self._telling = 0  # the agent whose input goes in now
        self._next: Command | None = None  # what is to be done next for that one
        self._is_over = False  # nothing is done for any agent any more

    def follow(self, orders: Mapping[int, Command]) -> None:
        """Do what the machine wants for agents."""
        for number, command in orders.items():
            if number == self._telling:
                self._next = command
            else:
                self._order(number, command)

    def go_on(self, dues: Mapping[int, Command]) -> None:
        """Go on behind the log of another worker. What that one had under way is not done twice, unless it may be."""
        for number, due in dues.items():
            if isinstance(due, CallTool) and not due.repeatable:
                command = self._tell(number, cut_call(due))
                self._order(number, Idle() if command is None else command)
            else:
                self._order(number, due)

    def cancel(self) -> None:
        """End what all do, soon: nothing more is told."""
        self._is_over = True
        for task in self._tasks.values():
            task.cancel()

    async def aclose(self) -> None:
        """End what all do; return when it has ended."""
        self._is_over = True
        await end_tasks(self._tasks.values())

    def _order(self, number: int, command: Command) -> None:
        if self._is_over:
            return
        task = self._tasks.get(number)
        if task is None or task.done():
            if not isinstance(command, Idle):
                name = f"agent {number}"
                self._tasks[number] = asyncio.create_task(self._drive(number, command), name=name)
        else:
            # Where a cancellation is under way already, it finds the latest order.
            if number not in self._instead:
                task.cancel()
            self._instead[number] = command

    def _tell(self, number: int, input_: Input) -> Command | None:
        """Tell what came to an agent; return what is to be done next for it."""
        if self._is_over:
            return Idle()
        self._telling = number
        self._forget_next()
        try:
            self._tell_run(OfAgent(number, input_))
        finally:
            self._telling = 0
        command = self._next
        # It was ended by what all have sampled, in the middle of its turn.
        if isinstance(command, Idle) and isinstance(input_, Sampled) and input_.finish is None:
            self._order(number, command)
            return None
        return command

    def _forget_next(self) -> None:
        self._next = None

    async def _drive(self, number: int, command: Command | None) -> None:
        """Do what one agent wants, until it rests."""
        hand = self._make(number, lambda input_: self._tell(number, input_))
        try:
            with hand.as_agent(number):
                while command is not None and not isinstance(command, Idle):
                    try:
                        command = await self._done(hand, command)
                    except asyncio.CancelledError:
                        command = self._interruption(number)
                        if command is None:
                            raise
        except ClaimLost:
            self._lost()
        finally:
            hand.place.leave()

    async def _done(self, hand: Hand, command: Command) -> Command | None:
        """Do one thing; return what is to be done next. What breaks ends the agent's task, and its parent reads why."""
        try:
            assert isinstance(command, Work), "all else is the root's"
            return await hand.do(command)
        except ClaimLost:
            raise
        except (EngineError, StoreError, ApiError) as error:
            logger.warning("an agent failed: %s: %s", type(error).__name__, error)
            return hand.tell(Failed(failure(error, self._request_id)))
        except Exception:
            logger.exception("an agent broke")
            return hand.tell(Failed(failure(None, self._request_id)))

    def _interruption(self, number: int) -> Command | None:
        """Return what is to be done in place of what was cancelled; None where all ends."""
        instead, task = self._instead.pop(number, None), asyncio.current_task()
        assert task is not None
        return None if self._is_over or instead is None or task.uncancel() > 0 else instead
