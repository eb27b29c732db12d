"""`EngineKeeper`: the process that owns the engine core which all workers share, started again whenever it ends.

That process is `respsite manage serve_engine`: the supervisor itself never imports vLLM. How the workers and that
process find each other is their affair (`engine/backends/vllm/lease.py`); here it only lives.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from contextlib import suppress

from engine.restarts import restart_pause
from responses_app.management.supervisor.processes import READY, ChildProcess

logger = logging.getLogger("respsite.supervisor")

REFUSED = os.EX_CONFIG  # the exit status of one that its settings keep from starting
ENGINE_STOP_SECONDS = 15.0  # an engine core takes 4 to 5 s to stop, and is killed after 8


class EngineKeeper:
    """Keeps the process running, from `start` to `stop`.

    `loads` is called when one is started, `up` when its engine core is there, and `refused` where it cannot be started:
    an engine that was there once is tried again for ever.
    """

    def __init__(
        self, lifeline: int, *, loads: Callable[[], None], up: Callable[[], None], refused: Callable[[], None]
    ) -> None:
        self._lifeline = lifeline
        self._loads = loads
        self._up = up
        self._refused = refused
        self._child: ChildProcess | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._failed = 0  # in a row
        self._was_up = False
        self._stopping = False

    def start(self) -> None:
        """Start it."""
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    async def stop(self) -> None:
        """End it, with all that it has started."""
        self._stopping = True
        if self._keeping is None:
            return
        if self._child is None:
            self._keeping.cancel()
        else:
            self._child.send(signal.SIGTERM)
        await asyncio.wait([self._keeping], timeout=ENGINE_STOP_SECONDS)
        if self._child is not None:
            _kill_group(self._child.pid)
            await asyncio.wait([self._keeping])

    async def _keep(self) -> None:
        while True:
            self._loads()
            status = await self._live()
            if self._stopping:
                return
            if status == REFUSED and not self._was_up:
                self._refused()
                return
            pause = restart_pause(self._failed)
            self._failed += 1
            logger.error("the engine core is gone (status %d); it is started again in %d s", status, pause)
            await asyncio.sleep(pause)

    async def _live(self) -> int:
        self._child = ChildProcess("engine", hears=self._hear)
        try:
            return await self._child.live(["serve_engine", "--lifeline", str(self._lifeline)], [self._lifeline])
        except OSError as problem:  # no memory, no process, no descriptor is left, for now
            logger.error("the engine core's process cannot be started: %s", problem)
            return os.EX_OSERR
        finally:
            _kill_group(self._child.pid)  # one that was killed has left its engine core behind
            self._child = None

    def _hear(self, word: bytes) -> None:
        if word == READY:
            self._was_up, self._failed = True, 0
            logger.info("the engine core is there")
            self._up()


def _kill_group(pid: int) -> None:
    if pid:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
