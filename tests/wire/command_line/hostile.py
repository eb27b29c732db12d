"""Servers that no client should have to meet, one for each way to be bad."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from tests.kit.threads import in_a_thread

Way = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
ESCAPES = (
    "\x1b]0;owned\x07\x1b[2J\x1b[31m\u202e\u0085\x9b5n [bold red]markup[/] [link=file:///]x[/link] </failure>]]>\x00"
)
HUGE = 64 * 1024 * 1024


def _head(kind: str, *, status: str = "200 OK", length: int | None = None, more: str = "") -> bytes:
    size = f"content-length: {length}\r\n" if length is not None else ""
    return f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\n{size}{more}connection: close\r\n\r\n".encode()


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Close at once."""


def told(raw: bytes) -> Way:

    async def way(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        writer.write(raw)
        await writer.drain()

    return way


def endless(kind: str, piece: bytes) -> Way:

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


@contextmanager
def hostile_server(way: Way) -> Iterator[str]:

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await way(reader, writer)
        except OSError:
            pass  # the client has left
        finally:
            writer.close()

    @asynccontextmanager
    async def serving() -> AsyncIterator[str]:
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        server.close()

    with in_a_thread(serving()) as base_url:
        yield base_url
