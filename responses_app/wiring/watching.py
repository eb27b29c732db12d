"""`Watch`: what `/metrics` says: it looks at what there is, measures the loop's lag, and adds up the workers."""

import asyncio
import logging
import resource
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from engine import orjson
from responses_app.limits.rates import ConnectionLimit
from responses_app.observing.metrics import TRANSPORTS, Metrics
from responses_app.observing.sharing import SharedFolder
from responses_app.protocol.tiers import PRIORITIES
from responses_app.runs.service import ResponseService
from responses_app.settings.conf import Settings
from responses_app.wiring.engines import Engines

logger = logging.getLogger("respsite")

LAG_SECONDS = 0.25  # between two looks at the loop's lag
SHARE_SECONDS = 1.0  # between two writes of this worker's numbers


class Socket(Protocol):
    """An open WebSocket."""

    @property
    def load(self) -> tuple[int, int]:
        """How many of its lanes have a response that runs, and how many creates wait."""


class Watch:
    """The numbers of one process. In METRICS_DIR it shares them with the other workers behind the same address."""

    def __init__(
        self,
        metrics: Metrics,
        settings: Settings,
        *,
        service: ResponseService,
        connections: ConnectionLimit,
        engines: Engines,
        hears_store: Callable[[], bool],
    ) -> None:
        self.metrics = metrics
        self._service = service
        self._connections = connections
        self._engines = engines
        self._hears_store = hears_store  # whether the last beats got through
        self._has_redis = bool(settings.redis_url)
        self._cpu = 0.0  # seconds of processor time that are counted so far
        self._folder = SharedFolder(Path(settings.metrics_dir)) if settings.metrics_dir else None
        self._is_away = False  # the folder, and it was said
        self._sockets: set[Socket] = set()
        self._tasks: list[asyncio.Task[None]] = []

    def opened(self, socket: Socket) -> None:
        """Look after a WebSocket, until it is `closed`."""
        self._sockets.add(socket)

    def closed(self, socket: Socket) -> None:
        """Look after it no longer."""
        self._sockets.discard(socket)

    def refused(self, frame: str) -> None:
        """Count an error that a WebSocket's client is told, by its frame."""
        message = orjson.loads(frame)
        error = message["error"]
        self.metrics.error("websocket", message.get("status"), str(error.get("code") or error.get("type")))

    async def start(self) -> None:
        """Begin."""
        if not self.metrics.enabled:
            return
        self._tasks.append(asyncio.create_task(self._measure_lag(), name="loop lag"))
        if self._folder is not None:
            self._tasks.append(asyncio.create_task(self._keep_sharing(self._folder), name="shared metrics"))

    async def aclose(self) -> None:
        """Stop; what was counted stays where others find it."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._folder is not None and self._tasks:
            await self._share(self._folder)
            self._folder.leave()

    async def whole(self) -> Metrics:
        """Return the numbers of all workers behind this address, as they are now.

        What is told is written before: so no counter goes back after that, even if this worker is killed.
        """
        if self._folder is None:
            await self._look()
            return self.metrics
        await self._share(self._folder)
        whole = Metrics()
        whole.add(self.metrics.dump(), gauges=True)
        try:
            for numbers, lives in await asyncio.to_thread(self._folder.others):
                whole.add(_read(numbers), gauges=lives)
        except OSError as problem:
            self._say(problem)
        return whole

    async def _keep_sharing(self, folder: SharedFolder) -> None:
        while True:
            await self._share(folder)
            await asyncio.sleep(SHARE_SECONDS)

    async def _share(self, folder: SharedFolder) -> None:
        await self._look()
        try:
            # Also after the folder was away. The numbers of the worker before are added once, when the place is
            # taken.
            if not folder.has_place:
                self.metrics.add(_read(await asyncio.to_thread(folder.enter)), gauges=False)
            await asyncio.to_thread(folder.write, orjson.dumps(self.metrics.dump()))
            self._is_away = False
        except OSError as problem:
            self._say(problem)

    def _say(self, problem: OSError) -> None:
        if not self._is_away:
            logger.warning("the metrics of the workers cannot be shared in METRICS_DIR: %s", problem)
        self._is_away = True

    async def _measure_lag(self) -> None:
        loop = asyncio.get_running_loop()
        lag = self.metrics.lag.at()
        while True:
            # What the sleep takes longer than it should is how long the loop was busy with something else.
            due = loop.time() + LAG_SECONDS
            await asyncio.sleep(LAG_SECONDS)
            lag.note(max(0.0, loop.time() - due))

    async def _look(self) -> None:
        """Set all gauges: what there is now, in this worker."""
        metrics, registry = self.metrics, self._service.registry
        loads = [socket.load for socket in self._sockets]
        metrics.connections.set(self._connections.open_connections)
        metrics.lanes.set(sum(lanes for lanes, _ in loads))
        metrics.waiting_creates.set(sum(waiting for _, waiting in loads))
        transports = [run.plan.origin.transport for run in registry.running]
        for transport in TRANSPORTS:
            metrics.in_flight.set(transports.count(transport), transport)
        metrics.background_waiting.set(registry.queue.waiting)
        for model in self._service.models:
            waiting = model.turns.waiting
            for tier in PRIORITIES:
                metrics.engine_waiting.set(waiting[tier], model.name, tier)
            for state, count in model.engine.replicas().items():
                metrics.replicas.set(count, model.name, state)
        metrics.streams_kept.set(len(registry.resumable))
        metrics.streams_kept_bytes.set(registry.resumable.kept_bytes)
        metrics.unsaved.set(len(self._service.unsaved))
        await self._look_around()

    async def _look_around(self) -> None:
        metrics = self.metrics
        metrics.workers.set(1)
        metrics.reaching.set(self._hears_store(), "database")
        troubles = await self._engines.troubles()
        metrics.reaching.set(not troubles, "engine")
        for name in self._engines:
            metrics.reaching_model.set(name not in troubles, name)
        if self._has_redis:
            metrics.reaching.set(not self._connections.degraded, "redis")
        metrics.memory.set(_memory_bytes())
        cpu = time.process_time()
        # A counter only grows: what was counted before is left out.
        metrics.cpu_seconds.count(by=cpu - self._cpu)
        self._cpu = cpu


def _read(numbers: bytes) -> Mapping[str, Any]:
    """Return what a worker wrote, nothing where that cannot be read."""
    try:
        read = orjson.loads(numbers)
    except orjson.JSONDecodeError:
        return {}
    return read if isinstance(read, dict) else {}


def _memory_bytes() -> int:
    """Return the memory that this process holds: now where the system tells, else the most there ever was."""
    try:
        # The second number is the resident set, in pages.
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        # Kilobytes on Linux.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
