"""What plain uvicorn lacks: bounds of what is parsed and of how long a request takes, and an end to reading from a
peer that does not read.

uvicorn calls the application when a request's headers are complete, so it is asked earlier: the lifespan scope's
`receive` is a method of an object that has uvicorn's configuration, and that names the classes of the protocols that
its listeners will build. Each gets a subclass. Where `receive` is anything else, nothing happens.
"""

import asyncio
import logging
import sys
from contextlib import suppress
from typing import Any

from responses_app.observing.logs import Seldom
from responses_app.protocol.errors import ApiError
from responses_app.protocol.transport import (
    AnswerHeaders,
    chunks_too_small,
    head_too_large,
    request_too_slow,
    target_too_long,
    unreadable,
)
from responses_app.web.bodies import LINGER_SECONDS, Application, BodyRules, Message, Receive, SendMessage, refusal
from responses_app.web.servers import inflow
from responses_app.web.servers.heads import MAX_HEAD_BYTES, NotesPeer, check_size, handshake_problem, target_of
from responses_app.web.servers.inflow import AVERAGE_BYTES, FrameRules, Frames, Framing, Inflow, lines_end
from responses_app.web.servers.listening import BACKLOG

LAST_SECONDS = 15  # behind the grace of a stop: for clients that still read, which uvicorn waits for without a bound
INVALID_PAYLOAD = 1007  # the close code
WEBSOCKET_LINE_BYTES, WEBSOCKET_HEADERS = 8192, 128  # that websockets takes in a handshake
READ_AT_ONCE = 64 * 1024  # bytes; asyncio would take 256 KiB
_SELDOM = Seldom()  # one for all listeners of a process


class UvicornHook:
    """ASGI application of the lifespan scope: looks for uvicorn's configuration, then hands on."""

    def __init__(
        self, app: Application, rules: BodyRules, frame_rules: FrameRules, headers: AnswerHeaders, *, grace: float
    ) -> None:
        """Take what is served. `grace` is how many seconds a stop gives what runs."""
        self._app = app
        self._grace = grace
        self._rules = rules
        self._frame_rules = frame_rules
        self._headers = headers

    async def __call__(self, scope: Message, receive: Receive, send: SendMessage) -> None:
        """Serve the lifespan scope."""
        config: Any = getattr(getattr(receive, "__self__", None), "config", None)
        http = getattr(config, "http_protocol_class", None)
        websocket = getattr(config, "ws_protocol_class", None)
        if isinstance(http, type) and hasattr(http, "data_received"):
            # Its lines about requests do not come to the handler of this server, which bounds them.
            logging.getLogger("uvicorn.error").addFilter(_SELDOM)
            own = {"rules": self._rules, "standing": self._headers}
            if getattr(config, "h11_max_incomplete_event_size", 0) is None:
                # More than is taken, so that most of what is too long is answered as its client can read it.
                config.h11_max_incomplete_event_size = 4 * MAX_HEAD_BYTES
            # Ours comes first, so its methods are called, and go on to uvicorn's by `super()`.
            config.http_protocol_class = type("BoundedHttp", (_BoundedHttp, http), own)
        if isinstance(websocket, type) and hasattr(websocket, "handle_ping"):
            own = {"rules": self._frame_rules, "standing": self._headers}
            config.ws_protocol_class = type("FairWebSocket", (_FairWebSocket, websocket), own)
            # Above the limit, which `Frames` looks after: it says why, and names the setting.
            config.ws_max_size = max(config.ws_max_size, 2 * self._frame_rules.max_message_bytes)
        if getattr(config, "loaded_app", None) is not None:
            config.loaded_app = NotesPeer(config.loaded_app)  # before uvicorn reads proxy headers
        if isinstance(getattr(config, "backlog", None), int):
            config.backlog = BACKLOG  # uvicorn listens when this scope has started
        if getattr(config, "timeout_graceful_shutdown", 0) is None:
            config.timeout_graceful_shutdown = self._grace + LAST_SECONDS
        await self._app(scope, receive, send)


class _BoundedHttp:
    """Beside a class of uvicorn's for HTTP: ends a connection whose next request does not come to be, refuses a body in
    tiny chunks, and says in the API's words what uvicorn refuses.

    A request is timed from the connection's first moment, and later from the first byte after an answer, so that what
    is left of a refused body is bounded, too. A body that is wanted is timed by `Bodies`.
    """

    rules: BodyRules
    standing: AnswerHeaders
    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    flow: Any
    conn: Any  # h11's
    cycle: Any
    scope: Any  # of the request that comes
    _deadline: asyncio.TimerHandle | None = None
    _framing: Framing  # of the body that comes
    _is_refused = False
    _has_begun = False  # a part of a request is here that is not served yet

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)  # type: ignore[misc]
        self._inflow = Inflow(lines_end, self._parse, self._read_or_not, transport.abort, self._has_length)
        if hasattr(transport, "max_size"):  # asyncio's own; uvloop has none
            transport.max_size = READ_AT_ONCE
        self._expect_request()

    def data_received(self, data: bytes) -> None:
        self._inflow.take(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._inflow.end()
        self._cancel()
        super().connection_lost(error)  # type: ignore[misc]

    def shutdown(self) -> None:
        if self._is_refused:
            self.transport.abort()
        else:
            super().shutdown()  # type: ignore[misc]

    def _parse(self, data: bytes) -> None:
        is_first = not self._has_begun and not self._is_served and (self.cycle is None or not self.cycle.more_body)
        if is_first:
            data = data.lstrip(b"\r\n")  # RFC 9112 section 2.2
            if not data:
                return
        cycle = self.cycle
        # What of the body the application has not taken; the difference is the content of these data.
        kept = 0 if cycle is None else len(cycle.body)
        self._has_begun = True
        super().data_received(data)  # type: ignore[misc]
        if self._is_refused:
            return
        if self._is_websocket:  # uvicorn drops what came behind its head
            self._inflow.end()
            # Its new protocol reads from now on; nothing of ours holds it up.
            self.transport.resume_reading()
        elif self.cycle is not cycle:
            self._framing = Framing()
        elif cycle is not None and cycle.more_body and not self._has_length():
            content = len(cycle.body) - kept  # none where the answer is out: no more is taken than anybody's framing
            if not self._framing.take(len(data) - content, content):
                self._refuse(chunks_too_small(AVERAGE_BYTES))
                return
        if self._is_served:
            self._has_begun = False
            self._cancel()
        elif self._deadline is None:
            self._expect_request()

    def _read_or_not(self) -> None:
        if self._inflow.waits:
            self.transport.pause_reading()
        elif not self.flow.read_paused:
            self.transport.resume_reading()

    def _has_length(self) -> bool:
        """Whether what comes is a body with a declared length, into which nobody looks."""
        cycle = self.cycle
        return (
            cycle is not None
            and cycle.more_body
            and not any(name == b"transfer-encoding" for name, _ in cycle.scope["headers"])
        )

    def send_400_response(self, msg: str) -> None:
        """Answer what uvicorn's parser does not take; it calls this where it has caught the reason."""
        problem = sys.exc_info()[1]
        # Behind the colon h11 repeats the bytes, as Python writes them.
        error = unreadable(str(problem or msg).partition(":")[0])
        if getattr(problem, "error_status_hint", 0) == 431:  # as h11 says it, of a URL, too
            error = self._too_long()
        self._refuse(error)

    def _too_long(self) -> ApiError:
        """Return which part of a request is longer than h11 takes."""
        if self.cycle is not None and self.cycle.more_body:
            return unreadable("the line before a chunk of its body, or what stands behind the last one, is too long")
        is_target = b"\n" not in self.conn.trailing_data[0]
        return (target_too_long if is_target else head_too_large)(MAX_HEAD_BYTES)

    def _refuse(self, error: ApiError) -> None:
        """Answer at once, if nothing has yet; what still comes is thrown away until the client has its answer."""
        self._is_refused = True
        self._inflow.end()
        self._cancel()
        cycle = self.cycle if self._is_served or (self.cycle is not None and self.cycle.more_body) else None
        if cycle is not None and cycle.response_started and not cycle.response_complete:
            self.transport.abort()
            return
        if cycle is None or not cycle.response_started:
            self.rules.refused(error)
            headers, path = ((), "") if cycle is None else (cycle.scope["headers"], cycle.scope["path"])
            self.transport.write(refusal(error, headers, self.standing, path=path))
        if cycle is not None and not cycle.response_started:
            cycle.disconnected = True  # so the application is told, and uvicorn sends nothing of it
            # Wakes the application where it waits for more of the body.
            cycle.message_event.set()
        self._deadline = self.loop.call_later(min(LINGER_SECONDS, self.rules.seconds(0)), self.transport.abort)
        self.transport.resume_reading()
        if self.transport.can_write_eof():  # not under TLS
            with suppress(OSError):  # the client is gone, which is found out when it is read from
                self.transport.write_eof()

    def _should_upgrade(self) -> bool:
        # uvicorn would go on as if it were HTTP/1.1, and nobody behind it could tell that a proxy was in between.
        # Anything else than a handshake is answered as any other request: `Heads` says what is wrong with it.
        scope = self.scope
        if scope["http_version"] == "1.0" or handshake_problem(scope["method"], scope["headers"]) is not None:
            return False
        try:
            check_size(target_of(scope), scope["headers"], scope["query_string"])
        except ApiError:
            return False
        return bool(super()._should_upgrade())  # type: ignore[misc]

    @property
    def _is_served(self) -> bool:
        """Whether the application has the request, or the connection became a WebSocket."""
        return self._is_websocket or (self.cycle is not None and not self.cycle.response_complete)

    @property
    def _is_websocket(self) -> bool:
        """Whether the connection became a WebSocket."""
        protocol: object = self.transport.get_protocol()
        return protocol is not self

    def _expect_request(self) -> None:
        self._deadline = self.loop.call_later(self.rules.seconds(0), self._overdue)

    def _overdue(self) -> None:
        self._deadline = None
        if self._is_served:
            return
        if self._has_begun:
            self._refuse(request_too_slow(self.rules.arrival_seconds))
        else:
            self.transport.abort()

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class _FairWebSocket:
    """Beside a class of uvicorn's for WebSockets: reads from a peer only while it takes what it is sent, pongs too.

    A handshake that its parser does not take is refused in the API's words; uvicorn says nothing and keeps it open for
    ever, or breaks, and waits for it when it is to stop. Whoever breaks the rules of WebSockets gets to read the close.
    """

    rules: FrameRules
    standing: AnswerHeaders
    loop: asyncio.AbstractEventLoop
    conn: Any
    close_sent: bool
    frames: list[bytes]
    curr_msg_data_type: str
    close_timer: asyncio.TimerHandle | None
    frames_in: Frames | None = None
    transport: asyncio.Transport
    queue: "asyncio.Queue[Any]"
    handshake_initiated = handshake_complete = True  # where uvicorn's class does not say so
    _has_begun = False  # the first data were here
    read_paused: bool
    writable: asyncio.Event

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)  # type: ignore[misc]
        self.frames_in = Frames(
            self.rules, lambda refusal: self.queue.put_nowait(refusal), self._end_inflow, transport.abort
        )
        self._inflow = Inflow(self.frames_in.cut, super().data_received, self._read_or_not, transport.abort)  # type: ignore[misc]

    def connection_lost(self, error: Exception | None) -> None:
        self._inflow.end()
        if self.frames_in is not None:
            self.frames_in.close()
        super().connection_lost(error)  # type: ignore[misc]

    def data_received(self, data: bytes) -> None:
        if self._has_begun and not self.handshake_complete:
            self.transport.abort()  # it talks before it was let in: uvicorn drops a part, and breaks on the rest
            return
        if self._has_begun:
            self._inflow.take(data)
            return
        self._has_begun = True
        try:
            super().data_received(data)  # type: ignore[misc]
        except UnicodeError:  # a header that is not ASCII: websockets cannot write what is wrong with it
            if self.handshake_initiated:
                raise
        if not self.handshake_initiated:  # the first data are the whole handshake
            # The parser of websockets has bounds of its own, below those of this server.
            lines = data.splitlines(keepends=True)  # the first one and the last one are no headers
            error = unreadable("its headers are not valid for a WebSocket")
            if len(lines) - 2 > WEBSOCKET_HEADERS or max(map(len, lines)) > WEBSOCKET_LINE_BYTES:
                bounds = f"{WEBSOCKET_HEADERS} headers, and {WEBSOCKET_LINE_BYTES} bytes in each line"
                error = unreadable(f"a WebSocket may have {bounds}", status=431)
            self.transport.write(refusal(error, (), self.standing))
            self.transport.close()

    def handle_parser_exception(self) -> None:
        """Send the close that says what is wrong, and read on for a while: a reset could cost the peer that frame."""
        close = self.conn.close_sent
        self.queue.put_nowait({"type": "websocket.disconnect", "code": close.code, "reason": close.reason})
        self.close_sent = True
        self._end_inflow()
        self.transport.write(b"".join(self.conn.data_to_send()))
        self._close_writing()
        # uvicorn ends it where it loses the connection, and does not close before.
        self.close_timer = self.loop.call_later(inflow.LINGER_SECONDS, self.transport.abort)

    def send_receive_event_to_app(self) -> None:
        """A message is complete. uvicorn logs a traceback for one that is not UTF-8."""
        self.frames = [b"".join(self.frames)]
        try:
            if self.curr_msg_data_type == "text":
                self.frames[0].decode()
        except UnicodeDecodeError:
            self.frames = []
            self.conn.send_close(INVALID_PAYLOAD, "a text message is not UTF-8")
            self.handle_parser_exception()
        else:
            super().send_receive_event_to_app()  # type: ignore[misc]

    async def send(self, message: Any) -> None:
        """Send a message of the application."""
        await super().send(message)  # type: ignore[misc]
        # Nothing more is read of this peer, not even its close: it is told that all is said.
        if message["type"] == "websocket.close" and self._inflow.has_ended:
            self._close_writing()

    def _close_writing(self) -> None:
        if self.transport.can_write_eof():  # not under TLS
            with suppress(OSError):  # the client is gone
                self.transport.write_eof()

    def _end_inflow(self) -> None:
        self._inflow.end()
        self._read_or_not()

    def _read_or_not(self) -> None:
        if self._inflow.waits:
            self.transport.pause_reading()
        elif self._inflow.has_ended or (self.writable.is_set() and not self.read_paused):
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        super().pause_writing()  # type: ignore[misc]
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()  # type: ignore[misc]
        if not self.read_paused and not self._inflow.waits:
            self.transport.resume_reading()

    async def receive(self) -> Any:
        message = await super().receive()  # type: ignore[misc]
        if not self.writable.is_set() or self._inflow.waits:
            self.transport.pause_reading()  # uvicorn has just resumed it
        return message
