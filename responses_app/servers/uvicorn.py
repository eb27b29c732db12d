"""What plain uvicorn lacks: a time limit for a request's headers, and an end to reading from a peer that does not read.

uvicorn calls the application when a request's headers are complete, so it is asked earlier: the lifespan scope's
`receive` is a method of an object that has uvicorn's configuration, and that names the classes of the protocols that
its listeners will build. Each gets a subclass. Where `receive` is anything else, nothing happens.
"""

import asyncio
import logging
from typing import Any

from responses_app.bodies import Application, BodyRules, Message, Receive, SendMessage

logger = logging.getLogger("respsite.transport")

READ_AT_ONCE = 64 * 1024  # bytes: up to 10,000 chunks or frames, each 10 µs of work; asyncio would take 256 KiB
NO_HANDSHAKE = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class UvicornHook:
    """ASGI application of the lifespan scope: looks for uvicorn's configuration, then hands on."""

    def __init__(self, app: Application, rules: BodyRules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Message, receive: Receive, send: SendMessage) -> None:
        """Serve the lifespan scope."""
        config = getattr(getattr(receive, "__self__", None), "config", None)
        http = getattr(config, "http_protocol_class", None)
        websocket = getattr(config, "ws_protocol_class", None)
        if isinstance(http, type) and hasattr(http, "data_received"):
            config.http_protocol_class = type("TimedHttp", (_TimedHttp, http), {"rules": self._rules})
        if isinstance(websocket, type) and hasattr(websocket, "handle_ping"):
            config.ws_protocol_class = type("FairWebSocket", (_FairWebSocket, websocket), {})
        await self._app(scope, receive, send)


class _TimedHttp:
    """Beside a class of uvicorn's for HTTP: cuts a connection whose next request does not come to be.

    It is timed from the connection's first moment, and later from the first byte after an answer, so that what is left
    of a refused body is bounded, too. A body that is wanted is timed by `Bodies`.
    """

    rules: BodyRules
    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    cycle: Any
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)  # type: ignore[misc]
        if hasattr(transport, "max_size"):  # asyncio's own; uvloop has none
            transport.max_size = READ_AT_ONCE
        self._expect_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)  # type: ignore[misc]
        if self._is_served:
            self._cancel()
        elif self._deadline is None:
            self._expect_request()

    def connection_lost(self, error: Exception | None) -> None:
        self._cancel()
        super().connection_lost(error)  # type: ignore[misc]

    @property
    def _is_served(self) -> bool:
        """Whether the application has the request, or the connection became a WebSocket."""
        if self.transport.get_protocol() is not self:
            return True
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_request(self) -> None:
        self._deadline = self.loop.call_later(self.rules.seconds(0), self._overdue)

    def _overdue(self) -> None:
        self._deadline = None
        if not self._is_served:
            self.transport.abort()

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class _FairWebSocket:
    """Beside a class of uvicorn's for WebSockets: reads from a peer only while it takes what it is sent, pongs too.

    What cannot be a handshake (a POST, one with a body) is refused; uvicorn says nothing and keeps it open for ever, or
    breaks, and waits for it when it is to stop.
    """

    transport: asyncio.Transport
    handshake_initiated = handshake_complete = True  # where uvicorn's class does not say so
    read_paused: bool
    writable: asyncio.Event

    def data_received(self, data: bytes) -> None:
        if self.handshake_initiated and not self.handshake_complete:
            self.transport.abort()  # it talks before it was let in: uvicorn drops a part, and breaks on the rest
            return
        try:
            super().data_received(data)  # type: ignore[misc]
        except UnicodeError:  # a header that is not ASCII: websockets cannot write what is wrong with it
            if self.handshake_initiated:
                raise
        if not self.handshake_initiated:  # the first data are the whole handshake
            self.transport.write(NO_HANDSHAKE)
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()  # type: ignore[misc]
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()  # type: ignore[misc]
        if not self.read_paused:
            self.transport.resume_reading()

    async def receive(self) -> Any:
        message = await super().receive()  # type: ignore[misc]
        if not self.writable.is_set():
            self.transport.pause_reading()  # uvicorn has just resumed it
        return message
