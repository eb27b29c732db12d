"""`KeptCalls`: a call of a container is made once, whoever asks for it again.

A worker that dies asks no more, and the one that takes its response over asks for the same call. It gets what came of
it: the code did not run twice. What nobody wants any more is stopped, and is not begun again either.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
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


class KeptCalls:
    """The calls of one container, the oldest first."""

    def __init__(self) -> None:
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
            call.task.add_done_callback(_noted)
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
        for call in self._calls.values():
            await _stop(call.task)

    def _forget_old(self) -> None:
        ended = [key for key, call in self._calls.items() if call.task.done()]
        for key in ended[:-MOST]:
            del self._calls[key]


def _noted(task: "asyncio.Task[CellRun]") -> None:
    if not task.cancelled():
        task.exception()  # where nobody waits any more, nobody is told


async def _stop(task: "asyncio.Task[CellRun]") -> None:
    task.cancel()
    while not task.done():
        # Cancelled again, it still waits: the container is not free before.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({task})
