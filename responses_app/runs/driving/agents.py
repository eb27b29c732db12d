"""`AgentTasks`: the agents below the root of one response, each at work in a task of its own.

    machine ── orders: {1: Generate, 2: Idle} ──> AgentTasks ─┬─> task of agent 1 ── OfAgent(1, Sampled …) ──> run
                                                              └─> task of agent 2, which ends

Their run owns them: it starts none before its first order, and leaves none behind. All that they tell goes into the one
machine and the one log of the run, in the order in which it happens. What an agent's step means for another one comes
back as an order: then what that one does is ended, as an interrupt ends what a response does (`Run.give`).
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from engine.errors import EngineError
from responses_app.kit.duty import end_tasks
from responses_app.kit.errors import StoreError
from responses_app.protocol.errors import ApiError
from responses_app.protocol.response.steps import CallTool, Command, Failed, Idle, Input, OfAgent, Sampled
from responses_app.runs.driving.hands import Hand, Work
from responses_app.runs.driving.tool_calls import cut_call
from responses_app.runs.plan.failures import failure
from responses_app.stores.base import ClaimLost

logger = logging.getLogger("respsite.runs")

Tell = Callable[[Input], Command | None]


class AgentTasks:
    """The agents of one run that work. `tell` gives the run's machine an input, `lost` says that the run is lost."""

    def __init__(
        self,
        make: Callable[[int, Tell], Hand],  # the number of an agent, and what tells its inputs → its hand
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
