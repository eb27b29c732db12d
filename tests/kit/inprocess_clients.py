"""Clients of the application in this process: they speak ASGI where others open connections.

The transports of httpx, and of httpx2, which OpenAI's SDK uses, are led here for the URLs of such servers, so clients
are unmodified: streams come part by part, and whoever closes one early is a client that has left. `Connection` and
`SyncConnection` have what tests and OpenAI's SDK use of `websockets`' connections.
"""

import asyncio
import queue
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import httpx
import websockets.sync.client
from openai.lib import _websocket
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed, ConnectionClosedError, ConnectionClosedOK, InvalidStatus
from websockets.frames import Close
from websockets.http11 import Response

Message = dict[str, Any]
Hear = Callable[[Message], None]

WAIT_SECONDS = 60.0  # bound of every wait for a message, where the client names none
# httpx names 5 s itself, which a busy machine may need for the OpenAPI document. All clients share this one default.
httpx.get.__kwdefaults__["timeout"].read = WAIT_SECONDS
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
    """One request over HTTP, of a client of httpx or of httpx2."""

    def __init__(self, server: Served, request: Any, content: bytes, hear: Hear) -> None:
        headers = [(name.lower(), value) for name, value in request.headers.raw]
        scope = {**_scope("http", str(request.url), headers, server.port), "method": request.method}
        path, _, query = request.url.raw_path.partition(b"?")  # as they are written
        scope |= {"raw_path": path, "path": unquote(path.decode()), "query_string": query}
        self.library = sys.modules[type(request).__module__.partition(".")[0]]
        self.seconds = float(request.extensions.get("timeout", {}).get("read") or WAIT_SECONDS)  # for each message
        self._is_head = request.method == "HEAD"
        self._exchange = _Exchange(server, scope, hear)
        self._exchange.begin({"type": "http.request", "body": content, "more_body": False})

    def leave(self) -> None:
        """End, with the answer or before."""
        self._exchange.leave({"type": "http.disconnect"})

    def answer(self, message: Message, stream: Any) -> Any:
        """Return an answer by its first message. Raises what the library raises where there is none."""
        if message is OVER:
            raise self.library.RemoteProtocolError("Server disconnected without sending a response.")
        assert message["type"] == "http.response.start", message
        headers = list(message.get("headers", ()))
        extensions = {"http_version": b"HTTP/1.1"}
        return self.library.Response(message["status"], headers=headers, stream=stream, extensions=extensions)

    def part(self, message: Message) -> tuple[bytes, bool]:
        """Return a part of the answer, and whether there is more. Raises what the library raises for a cut answer."""
        if message is OVER:
            raise self.library.RemoteProtocolError(CUT)
        assert message["type"] == "http.response.body", message
        more = bool(message.get("more_body"))
        if not more:
            self.leave()
        return b"" if self._is_head else bytes(message.get("body", b"")), more

    def too_late(self) -> Exception:
        """Return what the library raises where nothing comes."""
        return self.library.ReadTimeout(f"nothing came within {self.seconds:g} s")  # type: ignore[no-any-return]


class _Body:
    """The parts of an answer; the bases are the stream classes of both libraries."""

    def __init__(self, request: _Request, heard: "queue.SimpleQueue[Message]") -> None:
        self._request, self._heard = request, heard

    def next_message(self) -> Message:
        try:
            return self._heard.get(timeout=self._request.seconds)
        except queue.Empty:
            raise self._request.too_late() from None

    def __iter__(self) -> Iterator[bytes]:
        more = True
        while more:
            body, more = self._request.part(self.next_message())
            if body:
                yield body

    def close(self) -> None:
        self._request.leave()


class _AsyncBody:
    def __init__(self, request: _Request, heard: "Heard") -> None:
        self._request, self._heard = request, heard

    async def next_message(self) -> Message:
        try:
            return await _within(self._request.seconds, self._heard)
        except TimeoutError:
            raise self._request.too_late() from None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        more = True
        while more:
            body, more = self._request.part(await self.next_message())
            if body:
                yield body

    async def aclose(self) -> None:
        self._request.leave()


async def _within(seconds: float, heard: "asyncio.Queue[Message]") -> Message:
    async with asyncio.timeout(seconds):
        return await heard.get()


def handle(server: Served, request: Any) -> Any:
    """Ask a server in this process."""
    heard: queue.SimpleQueue[Message] = queue.SimpleQueue()
    asked = _Request(server, request, request.read(), heard.put)
    body = type("Body", (_Body, asked.library.SyncByteStream), {})(asked, heard)
    try:
        return asked.answer(body.next_message(), body)
    except BaseException:
        asked.leave()
        raise


async def handle_async(server: Served, request: Any) -> Any:
    """Ask a server in this process."""
    heard = Heard()
    asked = _Request(server, request, await request.aread(), heard.hear)
    body = type("Body", (_AsyncBody, asked.library.AsyncByteStream), {})(asked, heard)
    try:
        return asked.answer(await body.next_message(), body)
    except BaseException:
        asked.leave()
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
    """Let clients ask servers of this process here, and all others as ever."""
    for library in filter(find_spec, ("httpx", "httpx2")):
        _lead(import_module(library))
    websockets.sync.client.connect = _led(SyncConnection.open, websockets.sync.client.connect)  # type: ignore[assignment]
    # OpenAI's SDK takes its own from there whenever it connects.
    _websocket._WebSocketConnect = _led(Connection.open, _websocket._WebSocketConnect)  # type: ignore[assignment,misc]


def _lead(library: Any) -> None:
    over_network = library.HTTPTransport.handle_request
    async_over_network = library.AsyncHTTPTransport.handle_async_request

    def handle_request(transport: Any, request: Any) -> Any:
        server = server_of(str(request.url))
        return over_network(transport, request) if server is None else handle(server, request)

    async def handle_async_request(transport: Any, request: Any) -> Any:
        server = server_of(str(request.url))
        return await (async_over_network(transport, request) if server is None else handle_async(server, request))

    library.HTTPTransport.handle_request = handle_request
    library.AsyncHTTPTransport.handle_async_request = handle_async_request


def _led(here: Callable[..., Any], over_network: Callable[..., Any]) -> Callable[..., Any]:
    def connect(url: str, **options: Any) -> Any:
        server = server_of(url)
        return over_network(url, **options) if server is None else here(server, url, **options)

    return connect


class _Connection:
    """One WebSocket: what both kinds have in common."""

    pings = 0  # there is no connection to ping

    def __init__(self, exchange: _Exchange, heard: Any, accepted: Message) -> None:
        self._exchange = exchange
        self._heard = heard
        self._closed: Close | None = None
        self.transport = self  # `transport.abort()`
        self.response = Response(101, "Switching Protocols", _headers(accepted))
        self.subprotocol = accepted.get("subprotocol")

    @property
    def close_code(self) -> int | None:
        return None if self._closed is None else self._closed.code

    @property
    def close_reason(self) -> str | None:
        return None if self._closed is None else self._closed.reason

    def abort(self) -> None:
        """Be gone without a word."""
        self._closed = Close(1006, "")
        self._exchange.leave({"type": "websocket.disconnect", "code": 1006})

    def _put(self, message: str | bytes) -> None:
        self._check_open()
        kind = "text" if isinstance(message, str) else "bytes"
        self._exchange.put({"type": "websocket.receive", kind: message})

    def _take(self, message: Message, decode: bool | None) -> str | bytes:
        """Return a message's content. Raises `ConnectionClosed` at the end."""
        if message["type"] == "websocket.send":
            text: str | None = message.get("text")
            content: str | bytes = message["bytes"] if text is None else text
            return content.encode() if decode is False and isinstance(content, str) else content
        if message is OVER:
            self._closed = Close(1006, "")
        else:
            assert message["type"] == "websocket.close", message
            self._closed = Close(message.get("code", 1000), message.get("reason") or "")
            self._exchange.leave({"type": "websocket.disconnect", "code": self._closed.code})
        raise self._ending()

    def _leave(self, code: int, reason: str) -> None:
        self._closed = self._closed or Close(code, reason)
        self._exchange.leave({"type": "websocket.disconnect", "code": code, "reason": reason})

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._ending()

    def _ending(self) -> ConnectionClosed:
        assert self._closed is not None
        kind = ConnectionClosedOK if self._closed.code in (1000, 1001) else ConnectionClosedError
        return kind(self._closed, self._closed, rcvd_then_sent=True)


class Connection(_Connection):
    """One WebSocket, as `websockets.asyncio` has it."""

    @classmethod
    async def open(cls, server: Served, url: str, **options: Any) -> "Connection":
        """Connect. Raises `InvalidStatus` where the handshake is refused."""
        heard = Heard()
        exchange = _handshake(server, url, heard.hear, **options)
        messages = [await _within(WAIT_SECONDS, heard)]
        while not _is_answered(messages):
            messages.append(await _within(WAIT_SECONDS, heard))
        return cls(exchange, heard, _accepted(exchange, messages))

    async def send(self, message: str | bytes) -> None:
        self._put(message)

    async def recv(self, decode: bool | None = None) -> str | bytes:
        """Return the next message. Raises `ConnectionClosed`."""
        self._check_open()
        return self._take(await self._heard.get(), decode)

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close, and wait until the application has let go of it."""
        self._leave(code, reason)
        async with asyncio.timeout(WAIT_SECONDS):
            await asyncio.wait([asyncio.wrap_future(self._exchange.ended)])


class SyncConnection(_Connection):
    """One WebSocket, as `websockets.sync` has it."""

    @classmethod
    def open(cls, server: Served, url: str, **options: Any) -> "SyncConnection":
        """Connect. Raises `InvalidStatus` where the handshake is refused."""
        heard: queue.SimpleQueue[Message] = queue.SimpleQueue()
        exchange = _handshake(server, url, heard.put, **options)
        messages = [heard.get(timeout=WAIT_SECONDS)]
        while not _is_answered(messages):
            messages.append(heard.get(timeout=WAIT_SECONDS))
        return cls(exchange, heard, _accepted(exchange, messages))

    def __enter__(self) -> "SyncConnection":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[str | bytes]:
        with suppress(ConnectionClosedOK):
            while True:
                yield self.recv()

    def send(self, message: str | bytes) -> None:
        self._put(message)

    def recv(self, timeout: float | None = None, decode: bool | None = None) -> str | bytes:
        """Return the next message. Raises `ConnectionClosed`, and `TimeoutError` where none comes in time."""
        self._check_open()
        try:
            message = self._heard.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"nothing came within {timeout} s") from None
        return self._take(message, decode)

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Close, and wait until the application has let go of it."""
        self._leave(code, reason)
        wait([self._exchange.ended], WAIT_SECONDS)


def _handshake(
    server: Served, url: str, hear: Hear, *, additional_headers: Any = None, subprotocols: Any = None,
    origin: str | None = None, **_: object,  # limits and heartbeats of a real client
) -> _Exchange:  # fmt: skip
    given = {"host": f"127.0.0.1:{server.port}", **({"origin": origin} if origin else {})}
    given |= {name.lower(): value for name, value in dict(additional_headers or {}).items()}
    headers = [(name.encode(), value.encode("latin1")) for name, value in given.items()]
    scope = {**_scope("websocket", url, headers, server.port), "subprotocols": list(subprotocols or ())}
    exchange = _Exchange(server, {**scope, "extensions": {DENIAL: {}}}, hear)
    exchange.begin({"type": "websocket.connect"})
    return exchange


def _is_answered(messages: list[Message]) -> bool:
    """Whether a handshake has its whole answer."""
    return not messages[-1]["type"].startswith(DENIAL) or (
        messages[-1]["type"] == f"{DENIAL}.body" and not messages[-1].get("more_body")
    )


def _accepted(exchange: _Exchange, messages: list[Message]) -> Message:
    """Return the message that accepts a handshake. Raises `InvalidStatus` where it is refused."""
    if messages[0]["type"] == "websocket.accept":
        return messages[0]
    exchange.leave({"type": "websocket.disconnect", "code": 1006})
    if messages[0]["type"] != f"{DENIAL}.start":  # closed before it was accepted
        raise InvalidStatus(Response(403, "Forbidden", Headers()))
    status, body = messages[0]["status"], b"".join(part.get("body", b"") for part in messages[1:])
    raise InvalidStatus(Response(status, httpx.codes.get_reason_phrase(status), _headers(messages[0]), body))


def _headers(message: Message) -> Headers:
    return Headers((name.decode(), value.decode("latin1")) for name, value in message.get("headers", ()))
