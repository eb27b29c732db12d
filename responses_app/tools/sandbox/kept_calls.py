"""`KeptCalls`: a call of a container is made once, whoever asks for it again.

A worker that dies asks no more, and the one that takes its response over asks for the same call. It gets what came of
it: the code did not run twice. What nobody wants any more is stopped, and is not begun again either.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from responses_app.tools.sandbox.base import SandboxError
from responses_app.tools.sandbox.records import CellRun

MOST = 4  # calls of a container that are kept, besides those that run
_STOPPED = "the code was stopped; what it has done by then is not known"


@dataclass(slots=True)
class _Call:
    """A call that runs, or has run."""

    task: "asyncio.Task[CellRun]"
    askers: int = 0  # who wait for it now


def still_wanted() -> bool:
    """Say that whoever asks is still there: a cancellation means that it is not wanted any more."""
    return False


class KeptBytes:
    """What came of the calls of all containers: at most `most` bytes, of which images are nearly all.

    The largest is forgotten first: so whoever shows many images takes nobody else's place.
    """

    def __init__(self, most: int) -> None:
        self.used = 0  # bytes that are kept now
        self._most = most
        self._sizes: dict[asyncio.Task[CellRun], int] = {}
        self._forgets: dict[asyncio.Task[CellRun], Callable[[], object]] = {}

    def keep(self, call: "asyncio.Task[CellRun]", run: CellRun, forget: Callable[[], object]) -> None:
        """Count what came of a call; `forget` is called once there is no room for it."""
        self._sizes[call], self._forgets[call] = _size(run), forget
        self.used += self._sizes[call]
        while self.used > self._most:
            largest = max(self._sizes, key=self._sizes.__getitem__)
            self._forgets[largest]()
            self.drop(largest)

    def drop(self, call: "asyncio.Task[CellRun]") -> None:
        """Count it no more."""
        self.used -= self._sizes.pop(call, 0)
        self._forgets.pop(call, None)


def _size(run: CellRun) -> int:
    images = sum(len(each.content) for each in run.execution.images)
    return images + len(run.execution.output) + sum(len(each.path) for each in run.files)


class KeptCalls:
    """The calls of one container, the oldest first; `kept` counts what came of them."""

    def __init__(self, kept: KeptBytes) -> None:
        self._kept = kept
        self._calls: OrderedDict[str, _Call] = OrderedDict()

    async def once(
        self,
        key: str,
        begin: Callable[[], Coroutine[Any, Any, CellRun]],
        *,
        is_dropped: Callable[[], bool] = still_wanted,
    ) -> CellRun:
        """Return what came of a call; `begin` it where it is new. With no `key` each call is new.

        A cancellation stops it, unless others wait for it, too, or it only dropped who asked. Raises `SandboxError`.
        """
        if not key:
            return await begin()
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = _Call(asyncio.create_task(begin()))
            call.task.add_done_callback(partial(self._note_end, key))
            self._forget_old()
        call.askers += 1
        try:
            return await asyncio.shield(call.task)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if call.task.done() and (current is None or not current.cancelling()):
                raise SandboxError(_STOPPED) from None
            if call.askers == 1 and not is_dropped():
                await _stop(call.task)
            raise
        finally:
            call.askers -= 1

    async def aclose(self) -> None:
        """Stop all that run."""
        for call in list(self._calls.values()):
            await _stop(call.task)
        for key in list(self._calls):
            self._forget(key)

    def _forget_old(self) -> None:
        ended = [key for key, call in self._calls.items() if call.task.done()]
        for key in ended[:-MOST]:
            self._forget(key)

    def _forget(self, key: str) -> None:
        self._kept.drop(self._calls.pop(key).task)

    def _note_end(self, key: str, task: "asyncio.Task[CellRun]") -> None:
        # Where nobody waits any more, nobody is told of an error.
        is_done = not task.cancelled() and task.exception() is None
        call = self._calls.get(key)
        if is_done and call is not None and call.task is task:
            self._kept.keep(task, task.result(), partial(self._calls.pop, key, None))


async def _stop(task: "asyncio.Task[CellRun]") -> None:
    task.cancel()
    while not task.done():
        # Cancelled again, it still waits: the container is not free before.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({task})
