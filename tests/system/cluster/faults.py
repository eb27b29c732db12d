"""Faults of a cluster, one after the other, as a seed says."""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.kit.served import is_gone
from tests.system.cluster.cluster import Cluster

PAUSE = (5.0, 30.0)  # seconds between two faults
DOWN = (0.5, 8.0)  # for which what is killed is away
STOPPED = (2.0, 15.0)  # for which what is stopped stands still: up to three leases
ROLL_SECONDS = 600.0  # bound of a roll of all workers


class Faults:
    """Breaks one part after the other, as the seed says."""

    def __init__(self, cluster: Cluster, seed: int, *, pause: tuple[float, float] = PAUSE) -> None:
        self._pause = pause
        self._cluster = cluster
        self._chance = random.Random(seed)
        self.done: Counter[str] = Counter()
        self._kinds: dict[str, Callable[[float, float], None]] = {
            "worker killed": self._worker_killed,
            "worker stopped": self._worker_stopped,
            "PostgreSQL killed": lambda down, _: self._killed(cluster.postgres, down),
            "PostgreSQL stopped": self._postgres_stopped,
            "Redis killed": lambda down, _: self._killed(cluster.redis, down),
            "engine killed": lambda down, _: self._killed(self._chance.choice(cluster.engines), down),
            "engine stopped": lambda _, stopped: self._engine_stopped(stopped),
            "workers replaced": lambda *_: self._replaced(),
        }

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Go on for as long as this lasts; all parts run again behind it."""
        enough = asyncio.Event()

        async def go_on() -> None:
            while not enough.is_set():
                kind, pause = self._chance.choice(list(self._kinds)), self._chance.uniform(*self._pause)
                down, stopped = self._chance.uniform(*DOWN), self._chance.uniform(*STOPPED)
                try:
                    async with asyncio.timeout(pause):
                        await enough.wait()
                except TimeoutError:
                    print(f"{time.strftime('%H:%M:%S')} {kind}", flush=True)
                    await asyncio.to_thread(self._kinds[kind], down, stopped)
                    self.done[kind] += 1

        task = asyncio.create_task(go_on())
        try:
            yield
        finally:
            enough.set()
            await task

    def _killed(self, part: Any, down: float) -> None:
        part.kill()
        time.sleep(down)
        part.start()

    def _worker_killed(self, down: float, stopped: float) -> None:
        server = self._cluster.server
        ready = server.output.count(" serves\n")
        os.kill(self._chance.choice(server.pids()), signal.SIGKILL)
        server.wait_for_line(" serves\n", count=ready + 1, seconds=120)

    def _worker_stopped(self, down: float, stopped: float) -> None:
        self._stood_still(self._chance.choice(self._cluster.server.pids()), stopped)

    def _engine_stopped(self, stopped: float) -> None:
        process = self._chance.choice(self._cluster.engines).process
        assert process is not None
        self._stood_still(process.pid, stopped)

    def _stood_still(self, pid: int, seconds: float) -> None:
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            os.kill(pid, signal.SIGCONT)

    def _postgres_stopped(self, down: float, stopped: float) -> None:
        with self._cluster.postgres.hanging():
            time.sleep(stopped)

    def _replaced(self) -> None:
        server = self._cluster.server
        before, told = server.pids(), server.output.count("all workers are replaced")
        server.hup()
        server.wait_for_line("all workers are replaced", count=told + 1, seconds=ROLL_SECONDS)
        server.wait_for(lambda: all(map(is_gone, before)), ROLL_SECONDS)
