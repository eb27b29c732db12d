"""Servers that no client should have to meet, one for each way to be bad."""

import asyncio
import gzip
import threading
from collections.abc import Awaitable, Callable
from types import TracebackType

from tests.kit.server import free_port

Way = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
ESCAPES = (
    "\x1b]0;owned\x07\x1b[2J\x1b[31m\u202e\u0085\x9b5n [bold red]markup[/] [link=file:///]x[/link] </failure>]]>\x00"
)
HUGE = 64 * 1024 * 1024


def _head(kind: str, *, status: str = "200 OK", length: int | None = None, more: str = "") -> bytes:
    size = f"content-length: {length}\r\n" if length is not None else ""
    return f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\n{size}{more}connection: close\r\n\r\n".encode()


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Never answer."""
    await reader.read()


async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Close at once."""


def told(raw: bytes) -> Way:
    """Return a server that says this to everybody."""

    async def way(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        writer.write(raw)
        await writer.drain()

    return way


def endless(kind: str, piece: bytes) -> Way:
    """Return a server that says the same for ever."""

    async def way(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        writer.write(_head(kind))
        for _ in range(HUGE // len(piece)):
            writer.write(piece)
            await writer.drain()

    return way


def _json(text: str) -> Way:
    raw = text.encode(errors="surrogatepass")
    return told(_head("application/json", length=len(raw)) + raw)


_ESCAPED = "".join(f"\\u{ord(each):04x}" if ord(each) < 0x20 or each == "\x9b" else each for each in ESCAPES)
_ZIPPED = gzip.compress(b" " * HUGE * 2)
WAYS: dict[str, Way] = {
    "hang": hang,
    "close": close,
    "garbage": told(bytes(range(256)) * 8),
    "half a head": told(b"HTTP/1.1 200 OK\r\ncontent-le"),
    "less than it says": told(_head("application/json", length=100) + b"{"),
    "no json": told(_head("text/html", length=15) + b"<h1>Hello!</h1>"),
    "a redirect": told(_head("text/plain", status="302 Found", length=0, more="location: http://127.0.0.1:1/\r\n")),
    "a redirect to itself": told(_head("text/plain", status="307 Again", length=0, more="location: /v1/responses\r\n")),
    "an endless body": endless("application/json", b" " * 65536),
    "an endless stream": endless("text/event-stream", b"data: {}\n\n" * 4096),
    "an endless line": endless("text/event-stream", b"data: " + b"x" * 65536),
    "an endless head": told(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200_000),
    "deep json": _json("[" * 200_000 + "]" * 200_000),
    "null": _json("null"),
    "lists": _json('{"id": [], "output": {}, "data": 5, "error": [], "choices": {}, "content": 1, "usage": []}'),
    "numbers": _json('{"object": 1e999, "output": [1], "data": [NaN]}'),
    "long numbers": _json('{"created_at": ' + "9" * 10_000 + "}"),
    "escapes": told(_head("application/json", status="500 \x1b[2Jbad", length=None) + ESCAPES.encode()),
    "escapes in json": _json(f'{{"error": {{"message": "{_ESCAPED} \\ud800 \ud800", "code": "{_ESCAPED}"}}}}'),
    "events of nothing": told(
        _head("text/event-stream") + b"data: []\n\ndata: null\n\ndata: {\n\n: \xff\xfe\n\ndata\n\n"
    ),
    "an upgrade to nothing": told(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n\xff\xff\xff\xff"),
    "unpacks to much": told(
        _head("application/json", length=len(_ZIPPED), more="content-encoding: gzip\r\n") + _ZIPPED
    ),
}


class HostileServer:
    """It runs in a thread with an event loop of its own."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._port = free_port()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()

    @property
    def base_url(self) -> str:
        """What a client takes as its base URL."""
        return f"http://127.0.0.1:{self._port}/v1"

    def __enter__(self) -> "HostileServer":
        started = threading.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve(started)))
        self._thread.start()
        assert started.wait(30)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self, started: threading.Event) -> None:
        handling: set[asyncio.Task[None]] = set()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            handling.add(task)
            try:
                await self._way(reader, writer)
            except OSError:
                pass  # the client has left
            finally:
                handling.discard(task)
                writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", self._port, reuse_address=True)
        started.set()
        await self._stop.wait()
        server.close()
        for task in list(handling):
            task.cancel()
        await asyncio.gather(*handling, return_exceptions=True)
