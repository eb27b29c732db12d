"""`EarlyCalls`: calls of tools that only read, begun before the response asks for them.

    what is known to come ──> begin() ── the tool works ──┐
    the machine asks, and it is this worker's to do ──────┴─> make() ──> the result goes into the machine, as any does

Nothing of this is in the machine or in its log: the same inputs come in the same order, only sooner. What is known to
come are the calls that a program makes together (`programs`), and what the model would have written behind the call
that ended its turn (`generating.Guess`).

A call that is never asked for is cancelled, and nobody hears of it. So only tools begin early that say that they
change nothing (`OfferedTool.reads`), and never where the user is to approve the call. A result may not be older than
what the response has done since:

    read a, write b, read b        `read b` does not begin while `write b` is ahead of it or runs, and what was begun
                                   before a write is dropped (`writes`)
    30 s                           what was not asked for by then is dropped: the world may have changed by itself

What failed before it was asked for, or cannot be used any more, is made then as if nothing had begun.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from responses_app.kit.duty import end_tasks
from responses_app.observing.metrics import ModelMeter
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.response.steps import CallTool
from responses_app.runs.plan.plan import RunPlan, ToolEntry
from responses_app.runs.plan.served import ServedModel
from responses_app.tools.base import Finish, ToolCall, ToolFailed, ToolResult

logger = logging.getLogger("respsite.runs")

MAX_EARLY = 8  # calls of one response at once; those of a worker are bounded by `ServedModel.early`
MAX_REPORTS = 64  # of one call before it is asked for; a tool that says more is called again then
FRESH_SECONDS = 30.0  # how old a result may be when it is asked for

Key = tuple[str, str]  # the name that the model calls, and the arguments as it wrote them
Make = Callable[[ToolCall], Awaitable[ToolResult]]


@dataclass(slots=True, eq=False)
class _Begun:
    """A call that was begun, and not asked for yet."""

    entry: ToolEntry  # whose tool works
    meter: ModelMeter
    reports: list[JsonObject] = field(default_factory=list)  # what the tool has said of its progress so far
    asked: ToolCall | None = None  # how it was asked for; None before
    task: "asyncio.Task[Finish | None] | None" = None  # None comes of a call that failed
    timer: asyncio.TimerHandle | None = None  # drops it when it is too old

    def report(self, fields: JsonObject) -> None:
        """Take what the tool says before it returns: readers hear it once the call is asked for."""
        if self.asked is not None:
            self.asked.report(fields)
        else:
            self.reports.append(fields)
            if len(self.reports) > MAX_REPORTS and self.task is not None:
                self.task.cancel()

    async def make(self, asked: ToolCall) -> ToolResult:
        """Return what came of it, for the call as it is asked for now. Raises as `BaseTool.call` does."""
        assert self.task is not None, "it was begun"
        reports, self.reports = self.reports, []
        had_failed = self.task.done() and (self.task.cancelled() or self.task.result() is None)
        if not had_failed and len(reports) <= MAX_REPORTS:
            for fields in reports:
                asked.report(fields)
            self.asked = asked
            finish = await self.task  # cancelled with whoever waits here
            if finish is not None:
                self.meter.early("used")
                return await finish(asked)
        self.meter.early("failed")
        return await self.entry.tool.call(asked)


class EarlyCalls:
    """The calls of one run that were begun early. Their tasks end with it."""

    def __init__(self, model: ServedModel) -> None:
        self._room, self._meter = model.early, model.meter
        self._begun: dict[Key, _Begun] = {}
        self._tasks: set[asyncio.Task[Any]] = set()  # those of all calls, and of what predicts them, until they end
        self._predicting: asyncio.Task[None] | None = None
        self._writes = 0  # calls that run now and may change something

    @property
    def is_idle(self) -> bool:
        """Whether nothing was begun, or is predicted, that was not asked for yet."""
        return not self._begun and self._predicting is None

    def begin(self, plan: RunPlan, name: str, arguments: str) -> bool:
        """Begin a call, if it may begin; return whether one behind it may."""
        reading, key = plan.tools.reading(name), (name, arguments)
        if reading is None or self._writes or len(self._begun) >= MAX_EARLY:
            return False
        # The same call twice is two calls: the second one is made when it is asked for.
        if key in self._begun:
            return True
        if not self._room.take(project := plan.origin.project):
            return False
        entry, tool = reading
        begun = _Begun(entry, self._meter)
        call = ToolCall(use=entry.use, name=name, arguments=arguments, item_id="", tool=tool.tool, report=begun.report)
        begun.task = self._own(_early(entry, call), f"early {name}")
        # Not in the task itself: one that is cancelled at once never runs.
        begun.task.add_done_callback(lambda _: self._room.give_back(project))
        begun.timer = asyncio.get_running_loop().call_later(FRESH_SECONDS, self._drop, key, begun)
        self._begun[key] = begun
        return True

    def predict(self, predicting: Coroutine[Any, Any, None]) -> None:
        """Own what finds out which calls come next; there is one at a time."""
        assert self._predicting is None, "one at a time"
        self._predicting = task = self._own(predicting, "early calls")
        task.add_done_callback(lambda _: self._end_prediction(task))

    def make(self, entry: ToolEntry, command: CallTool) -> Make:
        """Return what makes a call that is asked for now: what was begun of it, or the tool."""
        key = command.name, command.arguments
        begun = self._begun.get(key)
        # What another offer of the same name began is not this call.
        if begun is None or begun.entry.tool is not entry.tool or begun.entry.use is not entry.use:
            return entry.tool.call
        self._forget(key, begun)
        return begun.make

    @contextmanager
    def around(self, *, reads: bool) -> Iterator[None]:
        """Make a call inside: beside one that may change something nothing is read early."""
        if reads:
            yield
            return
        self.drop()
        self._writes += 1
        try:
            yield
        finally:
            self._writes -= 1

    def drop(self) -> None:
        """End all that was begun: nobody will ask for it, or it may be out of date."""
        if self._predicting is not None:
            self._predicting.cancel()
        for key, begun in [*self._begun.items()]:
            self._drop(key, begun)

    async def aclose(self) -> None:
        """End everything; return when it has ended."""
        self.drop()
        await end_tasks([*self._tasks])

    def _drop(self, key: Key, begun: _Begun) -> None:
        assert begun.task is not None, "it was begun"
        self._forget(key, begun)
        begun.task.cancel()
        begun.meter.early("unused")

    def _forget(self, key: Key, begun: _Begun) -> None:
        del self._begun[key]
        if begun.timer is not None:
            begun.timer.cancel()

    def _own(self, work: Coroutine[Any, Any, Any], name: str) -> "asyncio.Task[Any]":
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _end_prediction(self, task: "asyncio.Task[None]") -> None:
        if self._predicting is task:
            self._predicting = None


async def _early(entry: ToolEntry, call: ToolCall) -> Finish | None:
    """Do what can be done of a call before it is asked for; None where it failed, which is tried again then."""
    try:
        return await entry.tool.begin(call)
    except ToolFailed as problem:
        logger.debug("response %s: a call that began early failed: %s", call.use.response_id, problem)
    except Exception:
        logger.exception("response %s: the tool %s broke in a call that began early", call.use.response_id, call.name)
    return None
