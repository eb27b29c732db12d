"""The load: WebSocket and HTTP clients that do as little as possible for each event, so that the server is measured."""

import asyncio
import json
import struct
import time
from collections.abc import Sequence
from typing import Self

COMPLETED = b'{"type":"response.completed"'
BROKEN = (b'{"type":"error"', b'{"type":"response.failed"', b'{"type":"response.incomplete"')
TIMEOUT = 120.0

_HANDSHAKE = (
    "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def text_frame(payload: bytes, opcode: int = 1) -> bytes:
    """Return a client's frame, masked with zeros, which change nothing."""
    if len(payload) < 126:
        head = struct.pack("!BB", 0x80 | opcode, 0x80 | len(payload))
    elif len(payload) < 65536:
        head = struct.pack("!BBH", 0x80 | opcode, 0xFE, len(payload))
    else:
        head = struct.pack("!BBQ", 0x80 | opcode, 0xFF, len(payload))
    return head + b"\0\0\0\0" + payload


class WebSocket(asyncio.Protocol):
    """Counts frames; `done` is set once the expected number of responses has completed."""

    def __init__(self, path: str, port: int) -> None:
        self._request = _HANDSHAKE.format(path=path, port=port).encode()
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._left = 0
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = loop.create_future()
        self.done: asyncio.Future[None] = loop.create_future()
        self.events = 0
        self.sent_at = 0.0
        self.first_at = 0.0
        self.recorded: list[str] | None = None

    @classmethod
    async def connect(cls, port: int, path: str = "/v1/responses") -> Self:
        """Open a connection; returns after the handshake."""
        _, socket = await asyncio.get_running_loop().create_connection(lambda: cls(path, port), "127.0.0.1", port)
        await asyncio.wait_for(socket.opened, TIMEOUT)
        return socket

    def send(self, frames: Sequence[bytes], *, responses: int) -> None:
        """Send frames at once and expect that many completed responses."""
        assert self._transport is not None
        self.events, self.first_at, self._left = 0, 0.0, responses
        self.done = asyncio.get_running_loop().create_future()
        self.sent_at = time.perf_counter()
        self._transport.write(b"".join(map(text_frame, frames)))

    async def ask(self, payload: bytes) -> None:
        """Send a frame and wait for one frame in answer."""
        assert self._transport is not None
        self._left = -1
        self.done = asyncio.get_running_loop().create_future()
        self._transport.write(text_frame(payload))
        await self.done

    def close(self) -> None:
        """Drop the connection."""
        if self._transport:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail whoever waits."""
        for future in (self.opened, self.done):
            if not future.done():
                future.set_exception(ConnectionError("the server closed the connection"))
                future.exception()  # nobody has to look

    def data_received(self, data: bytes) -> None:
        """Count the frames that are whole."""
        if not self.opened.done():
            head, end, data = (self._buffer + data).partition(b"\r\n\r\n")
            if not end:
                self._buffer = head
                return
            self._buffer = b""
            if b" 101 " in head:
                self.opened.set_result(None)
            else:
                self.opened.set_exception(ConnectionError(head.decode("latin1")))
        if not self.first_at and data:
            self.first_at = time.perf_counter()
        if self._buffer:
            data = self._buffer + data
        position, size = 0, len(data)
        while size - position >= 2:
            length, start = data[position + 1], position + 2
            if length == 126:
                length, start = int.from_bytes(data[start : start + 2], "big"), start + 2
            elif length == 127:
                length, start = int.from_bytes(data[start : start + 8], "big"), start + 8
            if start + length > size:
                break
            self._frame(data, position, start, start + length)
            position = start + length
        self._buffer = data[position:]

    def _frame(self, data: bytes, head: int, start: int, end: int) -> None:
        if data[head] & 0x0F != 1:
            if data[head] & 0x0F == 9 and self._transport:
                self._transport.write(text_frame(data[start:end], opcode=10))
            return
        self.events += 1
        if self.recorded is not None:
            self.recorded.append(data[start:end].decode())
        if self._left < 0:
            self._left = 0
            self.done.set_result(None)
        elif data.startswith(COMPLETED, start):
            self._left -= 1
            if self._left == 0:
                self.done.set_result(None)
        elif data.startswith(BROKEN, start) and not self.done.done():
            self.done.set_exception(AssertionError(data[start:end].decode()))


def create(text: str = "go", **fields: object) -> bytes:
    """Return a `response.create` that is not stored."""
    return json.dumps({"type": "response.create", "input": text, "store": False, **fields}).encode()


async def post(port: int, path: str, body: bytes) -> list[bytes]:
    """Post, read to the end, and return the parts of the chunked answer as the server wrote them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    writer.write(
        b"POST %b HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\nConnection: close\r\n"
        b"anthropic-version: 2023-06-01\r\nContent-Length: %d\r\n\r\n%b" % (path.encode(), port, len(body), body)
    )
    data = await asyncio.wait_for(reader.read(-1), TIMEOUT)
    writer.close()
    head, _, rest = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), data.decode("latin1")[:500]
    parts = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        parts.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    return parts[:-1]
