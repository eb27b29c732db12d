"""Looks at one vLLM server for as long as it belongs to the pool: whether it is there, and whether it is back.

One that is used is asked for `/health` every `look` seconds, and at once when a generation on it broke. It is used no
more when it says that it is not well, when it cannot be reached, or when it hangs: when it leaves MISSED_LOOKS looks in
a row without an answer, and sends no byte of any generation meanwhile (a busy one may answer late, but it works). Then
what runs on it is ended, so that it goes on on another server, as soon as another one is used.

Example with a look a second: a server is stopped (SIGSTOP) at 10.4. The looks at 11 and at 12 have no answer after a
second each; at 13 what ran there is ended, and its runs go on on another server.
"""

import asyncio
import logging
from contextlib import suppress

from engine.backends.vllm.client import OutOfReach
from engine.backends.vllm.replica import Replica
from engine.errors import EngineError, EngineUnavailable

logger = logging.getLogger("respsite.engine")

MISSED_LOOKS = 2
MAX_LATE = 0.5  # of a look's time: where this process is later than that to the end of it, nothing is missed


class Watcher:
    """Of one server."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._seconds = replica.client.timeouts.look
        self._loop = asyncio.get_running_loop()
        self._asked = 0.0  # when the last look began
        self._missed = 0
        self._since = 0.0  # when the first of the missed looks began

    async def run(self) -> None:
        """Look at it, until cancelled."""
        while True:
            await self._wait()
            self._replica.doubted.clear()
            try:
                await self._look()
            except EngineError as error:
                self._replica.lose(str(error))
            except Exception:
                logger.exception("%s could not be looked at", self._replica)

    async def _wait(self) -> None:
        """Wait until it is time to look."""
        circuit = self._replica.circuit
        if circuit.is_closed and self._missed:
            await asyncio.sleep(max(0.0, self._asked + self._seconds - self._loop.time()))
        elif circuit.is_closed:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds):
                    await self._replica.doubted.wait()
        if not circuit.is_closed:
            await asyncio.sleep(circuit.next_wait())

    async def _look(self) -> None:
        """Ask how it is, and draw the consequences. Raises `EngineError` where it cannot be used."""
        replica, self._asked = self._replica, self._loop.time()
        try:
            status, _ = await replica.client.get("/health", seconds=self._seconds)
        except OutOfReach:
            raise
        except EngineUnavailable:
            self._miss()
            return
        self._missed = 0
        if status >= 500:
            raise EngineUnavailable(f"{replica} says it is not well: {status}.")
        if not replica.circuit.is_closed:
            service = await replica.inspect()
            replica.use(service)
            logger.info("%s is there, over %s", replica, service.wire.path)

    def _miss(self) -> None:
        """It did not answer in time."""
        replica, now = self._replica, self._loop.time()
        if now - self._asked > (1 + MAX_LATE) * self._seconds:
            return
        if not self._missed or replica.client.heard_at > self._since:
            self._missed, self._since = 0, self._asked
        self._missed += 1
        if self._missed < MISSED_LOOKS:
            return
        problem = f"{replica} hangs: it leaves {MISSED_LOOKS} looks without an answer, and sends nothing."
        replica.lose(problem)
        if replica.others_serve:
            replica.client.end_streams(EngineUnavailable(problem))
