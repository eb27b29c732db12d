"""Start and stop with the server: from the lifespan scope where it has one (uvicorn), else from daphne's reactor.

A signal that ends the server stops us first, while it still serves; then the server gets it. Both servers would cut
their connections at once, and with them what may yet end within SHUTDOWN_GRACE_SECONDS.
"""

import asyncio
import logging
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from types import FrameType
from typing import Any

from responses_app.web.servers.listening import stop_accepting

logger = logging.getLogger("respsite")

SETTLE_SECONDS = 0.3  # where nothing more is accepted: what has just been accepted is read, and served as usual

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
SendMessage = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Lifecycle:
    """Calls `start` once and `stop` once, whoever asks first.

    `hurry` tells `stop` not to wait: a person pressed Ctrl-C, while SIGTERM comes from a supervisor, or it is the
    second signal. As an ASGI application it serves the lifespan scope; `hook_daphne` ties it to daphne's reactor.
    """

    def __init__(
        self, start: Callable[[], Awaitable[None]], stop: Callable[[], Awaitable[None]], *, hurry: Callable[[], None]
    ) -> None:
        self._start = start
        self._stop = stop
        self._hurry = hurry
        self._started: asyncio.Task[None] | None = None
        self._stopped: asyncio.Task[None] | None = None

    def is_stopping(self) -> bool:
        """Whether the server stops."""
        return self._stopped is not None

    def start(self) -> "asyncio.Task[None]":
        """Begin to start, on the running loop."""
        if self._started is None:
            self._started = asyncio.ensure_future(self._logged(self._start, "start"))
            self._come_before_the_server()
        return self._started

    def stop(self) -> "asyncio.Task[None]":
        """Begin to stop, on the running loop, after a start that is under way."""
        if self._stopped is None:
            self._stopped = asyncio.ensure_future(self._stop_after_start(settle=stop_accepting()))
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
        reactor.addSystemEventTrigger("before", "shutdown", lambda: defer.Deferred.fromFuture(self.stop()))

    def _come_before_the_server(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # signals are another's business
        for number in (signal.SIGINT, signal.SIGTERM):
            servers = signal.getsignal(number)
            if callable(servers):
                signal.signal(number, partial(self._on_signal, servers))

    def _on_signal(self, servers: Callable[[int, FrameType | None], Any], number: int, frame: FrameType | None) -> None:
        """Called between any two steps of the program: no more than a word to the loop."""
        assert self._started is not None
        self._started.get_loop().call_soon_threadsafe(self._end, number, partial(servers, number, None))

    def _end(self, number: int, end_server: Callable[[], Any]) -> None:
        if number == signal.SIGINT or self._stopped is not None:
            self._hurry()
        self.stop().add_done_callback(lambda _: end_server())

    async def _stop_after_start(self, *, settle: bool) -> None:
        if self._started is not None:
            await asyncio.wait([self._started])
        if settle:
            await asyncio.sleep(SETTLE_SECONDS)
        await self._logged(self._stop, "stop")

    async def _logged(self, action: Callable[[], Awaitable[None]], name: str) -> None:
        try:
            await action()
        except Exception:
            logger.exception("the server did not %s cleanly", name)
            raise
