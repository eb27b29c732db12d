"""Clients of the application in this process: they speak ASGI where others open connections.

httpx's transports are led here for the URLs of such servers, so whatever uses httpx (SDKs, too) is unmodified: streams
come part by part, and whoever closes one early is a client that has left. `Connection` has what tests use of
`websockets`' connections.
"""

import asyncio
import queue
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import httpx
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed, ConnectionClosedError, ConnectionClosedOK, InvalidStatus
from websockets.frames import Close
from websockets.http11 import Response

Message = dict[str, Any]
Hear = Callable[[Message], None]

WAIT_SECONDS = 60.0  # bound of every wait for a message, where the client names none
OVER: Message = {"type": "over"}  # of our own: the application has returned, or has cut the connection
CUT = "peer closed connection without sending complete message body (incomplete chunked read)"
DENIAL = "websocket.http.response"


class Running(Protocol):
    """An application that runs."""

    loop: asyncio.AbstractEventLoop
    failures: list[str]

    def serve(self, scope: Message, receive: Any, send: Any) -> "Future[None]":
        """Serve a request or a connection."""


class Served(Protocol):
    """A server in this process."""

    port: int

    def activate(self) -> Running:
        """Return what runs."""


by_port: dict[int, Served] = {}  # servers that were started and not stopped


def server_of(url: str) -> Served | None:
    """Return the server in this process that a URL names."""
    parts = urlsplit(url)
    return by_port.get(parts.port or 0) if parts.hostname in ("127.0.0.1", "localhost") else None


class _Peer(asyncio.WriteTransport):
    """The connection behind `send`, as far as the application closes or cuts one."""

    def __init__(self, end: Callable[[], None]) -> None:
        super().__init__()
        self._end = end

    def close(self) -> None:
        """Close behind what was sent."""
        self._end()

    def abort(self) -> None:
        """Cut."""
        self._end()


class _Exchange:
    """What both kinds of connection have in common: messages there and back, and their end.

    `hear` is called on the application's thread with each message that the application sends.
    """

    def __init__(self, server: Served, scope: Message, hear: Hear) -> None:
        self._running = server.activate()
        self._hear = hear
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._has_left = False
        self.transport = _Peer(self._cut)  # where the application looks for it
        self._scope = scope
        self.ended: Future[None]

    def begin(self, *messages: Message) -> None:
        """Let the application serve it; these messages are there at once."""
        for message in messages:
            self._inbox.put_nowait(message)
        self.ended = self._running.serve(self._scope, self._receive, self.send)
        self.ended.add_done_callback(self._over)

    def put(self, message: Message) -> None:
        """Send the application a message."""
        with suppress(RuntimeError):  # its loop is closed: the server has stopped
            self._running.loop.call_soon_threadsafe(self._inbox.put_nowait, message)

    def leave(self, message: Message) -> None:
        """Be a client that leaves, once."""
        if not self._has_left:
            self._has_left = True
            self.put(message)

    async def _receive(self) -> Message:
        return await self._inbox.get()

    async def send(self, message: Message) -> None:
        """Take a message of the application; whoever has left gets nothing more, as on a connection."""
        if not self._has_left:
            self._hear(message)

    def _cut(self) -> None:
        self._has_left = True
        kind = str(self._scope["type"])
        self._inbox.put_nowait({"type": f"{kind}.disconnect", "code": 1006})
        self._hear(OVER)

    def _over(self, ended: "Future[None]") -> None:
        error = None if ended.cancelled() else ended.exception()
        if error is not None and not self._has_left:
            self._running.failures.append(f"{self._scope['path']}: {error!r}")
        self._hear(OVER)


def _scope(kind: str, url: str, headers: list[tuple[bytes, bytes]], port: int) -> Message:
    parts = urlsplit(url)
    return {
        "type": kind,
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "scheme": parts.scheme,
        "path": unquote(parts.path or "/"),
        "raw_path": (parts.path or "/").encode(),
        "root_path": "",
        "query_string": parts.query.encode(),
        "headers": headers,
        "client": ("127.0.0.1", 50_000),
        "server": ("127.0.0.1", port),
    }


class _Request:
    """One request over HTTP; `next` waits for the next message of its answer."""

    def __init__(self, server: Served, request: httpx.Request, content: bytes, hear: Hear) -> None:
        headers = [(name.lower(), value) for name, value in request.headers.raw]
        scope = {**_scope("http", str(request.url), headers, server.port), "method": request.method}
        target = request.url.raw_path.partition(b"?")  # as it is written, not as it is meant
        scope |= {"raw_path": target[0], "path": unquote(target[0].decode()), "query_string": target[2]}
        self._is_head = request.method == "HEAD"
        self.exchange = _Exchange(server, scope, hear)
        self.exchange.begin({"type": "http.request", "body": content, "more_body": False})

    def leave(self) -> None:
        """End, with the answer or before."""
        self.exchange.leave({"type": "http.disconnect"})

    def body_of(self, message: Message) -> tuple[bytes, bool]:
        """Return a part of the answer, and whether there is more. Raises what httpx raises for a cut answer."""
        if message is OVER:
            raise httpx.RemoteProtocolError(CUT)
        assert message["type"] == "http.response.body", message
        more = bool(message.get("more_body"))
        if not more:
            self.leave()
        return b"" if self._is_head else bytes(message.get("body", b"")), more


def _answer(message: Message, stream: Any) -> httpx.Response:
    if message is OVER:
        raise httpx.RemoteProtocolError("Server disconnected without sending a response.")
    assert message["type"] == "http.response.start", message
    headers = list(message.get("headers", ()))
    return httpx.Response(message["status"], headers=headers, stream=stream, extensions={"http_version": b"HTTP/1.1"})


def _seconds(request: httpx.Request) -> float:
    """Return how long a client waits for each message."""
    return float(request.extensions.get("timeout", {}).get("read") or WAIT_SECONDS)


class _SyncBody(httpx.SyncByteStream):
    def __init__(self, next_message: Callable[[], Message], exchange: _Request) -> None:
        self._next, self._request = next_message, exchange

    def __iter__(self) -> Iterator[bytes]:
        more = True
        while more:
            body, more = self._request.body_of(self._next())
            if body:
                yield body

    def close(self) -> None:
        self._request.leave()


class _AsyncBody(httpx.AsyncByteStream):
    def __init__(self, heard: "asyncio.Queue[Message]", seconds: float, exchange: _Request) -> None:
        self._heard, self._seconds, self._request = heard, seconds, exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        more = True
        while more:
            body, more = self._request.body_of(await _within(self._seconds, self._heard))
            if body:
                yield body

    async def aclose(self) -> None:
        self._request.leave()


async def _within(seconds: float, heard: "asyncio.Queue[Message]") -> Message:
    try:
        async with asyncio.timeout(seconds):
            return await heard.get()
    except TimeoutError:
        raise httpx.ReadTimeout(f"nothing came within {seconds:g} s") from None


def handle(server: Served, request: httpx.Request) -> httpx.Response:
    """Ask a server in this process."""
    heard: queue.SimpleQueue[Message] = queue.SimpleQueue()
    seconds = _seconds(request)
    exchange = _Request(server, request, request.read(), heard.put)

    def next_message() -> Message:
        try:
            return heard.get(timeout=seconds)
        except queue.Empty:
            raise httpx.ReadTimeout(f"nothing came within {seconds:g} s") from None

    try:
        return _answer(next_message(), _SyncBody(next_message, exchange))
    except BaseException:
        exchange.leave()
        raise


async def handle_async(server: Served, request: httpx.Request) -> httpx.Response:
    """Ask a server in this process."""
    heard, seconds = Heard(), _seconds(request)
    exchange = _Request(server, request, await request.aread(), heard.hear)
    try:
        return _answer(await _within(seconds, heard), _AsyncBody(heard, seconds, exchange))
    except BaseException:
        exchange.leave()
        raise


class Heard(asyncio.Queue[Message]):
    """Messages for whoever waits on this thread's loop, from the application's thread."""

    def __init__(self) -> None:
        super().__init__()
        self._own_loop = asyncio.get_running_loop()

    def hear(self, message: Message) -> None:
        """Put a message in; where its loop is closed nobody waits any more."""
        with suppress(RuntimeError):
            self._own_loop.call_soon_threadsafe(self.put_nowait, message)


def lead_here() -> None:
    """Let httpx's transports ask servers of this process here, and all others as ever."""
    over_network, async_over_network = httpx.HTTPTransport.handle_request, httpx.AsyncHTTPTransport.handle_async_request

    def handle_request(transport: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
        server = server_of(str(request.url))
        return over_network(transport, request) if server is None else handle(server, request)

    async def handle_async_request(transport: httpx.AsyncHTTPTransport, request: httpx.Request) -> httpx.Response:
        server = server_of(str(request.url))
        return await (async_over_network(transport, request) if server is None else handle_async(server, request))

    httpx.HTTPTransport.handle_request = handle_request  # type: ignore[method-assign]
    httpx.AsyncHTTPTransport.handle_async_request = handle_async_request  # type: ignore[method-assign]


class Connection:
    """One WebSocket, with what tests use of `websockets`' connections."""

    pings = 0  # there is no connection to ping

    def __init__(self, exchange: _Exchange, heard: Heard, accepted: Message) -> None:
        self._exchange = exchange
        self._heard = heard
        self._closed: Close | None = None
        self.transport = self  # `transport.abort()`
        headers = Headers((name.decode(), value.decode("latin1")) for name, value in accepted.get("headers", ()))
        self.response = Response(101, "Switching Protocols", headers)
        self.subprotocol = accepted.get("subprotocol")

    @classmethod
    async def open(
        cls,
        server: Served,
        url: str,
        *,
        additional_headers: Mapping[str, str] | None = None,
        subprotocols: list[str] | None = None,
        origin: str | None = None,
        **_: object,  # limits and heartbeats of a real client
    ) -> "Connection":
        """Connect. Raises `InvalidStatus` where the handshake is refused."""
        given = {"host": f"127.0.0.1:{server.port}", **({"origin": origin} if origin else {})}
        given |= {name.lower(): value for name, value in dict(additional_headers or {}).items()}
        headers = [(name.encode(), value.encode("latin1")) for name, value in given.items()]
        scope = {**_scope("websocket", url, headers, server.port), "subprotocols": subprotocols or []}
        heard = Heard()
        exchange = _Exchange(server, {**scope, "extensions": {DENIAL: {}}}, heard.hear)
        exchange.begin({"type": "websocket.connect"})
        message = await _within(WAIT_SECONDS, heard)
        if message["type"] == "websocket.accept":
            return cls(exchange, heard, message)
        exchange.leave({"type": "websocket.disconnect", "code": 1006})
        raise InvalidStatus(await _refusal(message, heard))

    @property
    def close_code(self) -> int | None:
        """The code that it was closed with."""
        return None if self._closed is None else self._closed.code

    @property
    def close_reason(self) -> str | None:
        """The reason that it was closed with."""
        return None if self._closed is None else self._closed.reason

    async def send(self, message: str | bytes) -> None:
        """Send a message."""
        if self._closed is not None:
            raise self._ending()
        kind = "text" if isinstance(message, str) else "bytes"
        self._exchange.put({"type": "websocket.receive", kind: message})

    async def recv(self) -> str | bytes:
        """Return the next message. Raises `ConnectionClosed`."""
        if self._closed is not None:
            raise self._ending()
        message = await self._heard.get()
        if message["type"] == "websocket.send":
            text: str | None = message.get("text")
            return bytes(message["bytes"]) if text is None else text
        if message is OVER:
            self._closed = Close(1006, "")
        else:
            assert message["type"] == "websocket.close", message
            self._closed = Close(message.get("code", 1000), message.get("reason") or "")
            self._exchange.leave({"type": "websocket.disconnect", "code": self._closed.code})
        raise self._ending()

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close, and wait until the application has let go of it."""
        if self._closed is None:
            self._closed = Close(code, reason)
        self._exchange.leave({"type": "websocket.disconnect", "code": code, "reason": reason})
        async with asyncio.timeout(WAIT_SECONDS):
            with suppress(asyncio.CancelledError if self._exchange.ended.cancelled() else ConnectionClosed):
                await asyncio.wrap_future(self._exchange.ended)

    def abort(self) -> None:
        """Be gone without a word."""
        self._closed = Close(1006, "")
        self._exchange.leave({"type": "websocket.disconnect", "code": 1006})

    def _ending(self) -> ConnectionClosed:
        assert self._closed is not None
        kind = ConnectionClosedOK if self._closed.code in (1000, 1001) else ConnectionClosedError
        return kind(self._closed, self._closed)


async def _refusal(message: Message, heard: Heard) -> Response:
    """Return the answer to a handshake that was refused."""
    if message["type"] != f"{DENIAL}.start":  # closed before it was accepted
        return Response(403, "Forbidden", Headers())
    headers = Headers((name.decode(), value.decode("latin1")) for name, value in message["headers"])
    body, more = b"", True
    while more:
        part = await _within(WAIT_SECONDS, heard)
        body, more = body + part.get("body", b""), bool(part.get("more_body"))
    return Response(message["status"], httpx.codes.get_reason_phrase(message["status"]), headers, body)
