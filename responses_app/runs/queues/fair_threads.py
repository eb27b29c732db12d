"""`FairThreads`: threads for what takes long to render or to tokenise; projects have them in equal shares.

Short and long work have threads of their own, so short work never waits for long work, whoever sends that. Of either
kind the project that has the fewest threads is next, as with the engine's turns (`FairTurns`). Work that waits for
another process (a vLLM server that renders) costs no time here and has more threads.

Whoever is cancelled leaves: where the work waits, at once; where it runs, its thread is free at its next step
(`engine.giving_up`). How much work can wait is bounded by the requests that the server takes at once.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from threading import Event
from typing import ParamSpec, TypeVar

from engine.giving_up import until
from responses_app.runs.queues.fair_turns import FairTurns

LONG = 128 * 1024  # bytes; up to that a text takes 0.25 s at most
TIER = "default"  # that all work waits in
SHORT_THREADS = 2
LONG_THREADS = 2
WAITING_THREADS = 16

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class FairThreads:
    """The shared threads of one process. They are started when they are first needed."""

    def __init__(self) -> None:
        self._short = FairTurns(max_running=SHORT_THREADS)
        self._long = FairTurns(max_running=LONG_THREADS)
        self._waiting = FairTurns(max_running=WAITING_THREADS)
        self._threads = ThreadPoolExecutor(SHORT_THREADS + LONG_THREADS + WAITING_THREADS, thread_name_prefix="fair")

    async def run(
        self,
        project: str,
        size: int,
        work: Callable[Arguments, Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """Return what `work` makes of something of `size` bytes, which it does on a thread."""
        return await self._run(self._long if size > LONG else self._short, project, partial(work, *args, **kwargs))

    async def wait(
        self, project: str, work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Return what comes of `work`, which waits for another process on a thread."""
        return await self._run(self._waiting, project, partial(work, *args, **kwargs))

    async def _run(self, turns: FairTurns, project: str, work: Callable[[], Result]) -> Result:
        async with turns.place(project, TIER, 0).turn():
            given_up = Event()
            running = asyncio.get_running_loop().run_in_executor(
                self._threads, copy_context().run, _until, given_up, work
            )
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                given_up.set()
                await asyncio.wait({running})  # until then the turn is taken
                if not running.cancelled():
                    running.exception()  # it is nobody's any more
                raise
            finally:
                # An exception that it raised has this frame in its traceback: with the frame it would be a cycle, and
                # keep all that the work had in its hands (a body of 30 MB) until the garbage collector comes by.
                del running


def _until(given_up: Event, work: Callable[[], Result]) -> Result:
    with until(given_up):
        return work()
