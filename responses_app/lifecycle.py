"""Start and stop with the server: from the lifespan scope where it has one (uvicorn), else from daphne's reactor."""

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from types import FrameType
from typing import Any

logger = logging.getLogger("respsite")

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
SendMessage = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Lifecycle:
    """Calls `start` once and `stop` once, whoever asks first.

    `stop` is told whether it is to hurry: a person pressed Ctrl-C and waits, while SIGTERM comes from a supervisor.
    As an ASGI application it serves the lifespan scope; `hook_daphne` ties it to daphne's reactor.
    """

    def __init__(self, start: Callable[[], Awaitable[None]], stop: Callable[[bool], Awaitable[None]]) -> None:
        self._start = start
        self._stop = stop
        self._hurried = False
        self._started: asyncio.Task[None] | None = None
        self._stopped: asyncio.Task[None] | None = None

    def start(self) -> "asyncio.Task[None]":
        """Begin to start, on the running loop."""
        if self._started is None:
            self._started = asyncio.ensure_future(self._logged(self._start, "start"))
        return self._started

    def stop(self) -> "asyncio.Task[None]":
        """Begin to stop, on the running loop, after a start that is under way."""
        if self._stopped is None:
            self._stopped = asyncio.ensure_future(self._stop_after_start())
        return self._stopped

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: SendMessage) -> None:
        """Serve the lifespan scope."""
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self.start()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    def hook_daphne(self) -> None:
        """Tie start and stop to daphne's reactor, if this process runs one (daphne has no lifespan)."""
        if "daphne.server" not in sys.modules:
            return
        from twisted.internet import defer, reactor

        reactor.callWhenRunning(self.start)
        reactor.callWhenRunning(self._heed_interrupts)
        reactor.addSystemEventTrigger("before", "shutdown", lambda: defer.Deferred.fromFuture(self.stop()))

    def _heed_interrupts(self) -> None:
        """Note Ctrl-C before the server's own handler ends it."""
        handle = signal.getsignal(signal.SIGINT)

        def interrupted(number: int, frame: FrameType | None) -> None:
            self._hurried = True
            if callable(handle):
                handle(number, frame)

        signal.signal(signal.SIGINT, interrupted)

    async def _stop_after_start(self) -> None:
        if self._started is not None:
            await asyncio.wait([self._started])
        await self._logged(lambda: self._stop(self._hurried), "stop")

    async def _logged(self, action: Callable[[], Awaitable[None]], name: str) -> None:
        try:
            await action()
        except Exception:
            logger.exception("the server did not %s cleanly", name)
            raise
