"""`Peer`: one side of what a proxy passes on, as HTTP/1.1, which h11 reads and writes. `Meter` bounds what is sent.

h11 refuses what can be read in two ways, but for a message that has both a length and chunks: that is refused here.
"""

import asyncio
import contextlib
from collections.abc import Iterable

import h11

CHUNK = 64 * 1024  # bytes that are read at once
MAX_HEAD = 32 * 1024  # bytes of a request's or an answer's head
MAX_HEADERS = 128
IDLE_SECONDS = 60.0  # that nothing may come, or go
# They are of one connection, and are not passed on.
_OF_CONNECTION = frozenset(
    b"connection keep-alive proxy-connection proxy-authenticate proxy-authorization te trailer upgrade".split()
)


class Spent(Exception):
    """The container has sent and received as much as it may."""


class Malformed(Exception):
    """What came is not HTTP/1.1 as it is taken here; the text says why."""


class Meter:
    """The bytes that a container may still send and receive."""

    def __init__(self, most: int) -> None:
        self._left = most

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left."""
        return self._left <= 0

    def count(self, size: int) -> None:
        """Count bytes. Raises `Spent`."""
        self._left -= size
        if self.is_spent:
            raise Spent


class Peer:
    """Somebody who speaks HTTP/1.1. A time that is over raises `TimeoutError`, a broken connection `OSError`."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        machine: h11.Connection,
        meter: "Meter | None" = None,
    ) -> None:
        self.machine = machine
        self.reader = reader
        self.writer = writer
        self._meter = meter  # None: what comes and goes here is counted on the other side

    async def event(self, seconds: float = IDLE_SECONDS) -> object:
        """Return the next event of h11, which comes within so long. Raises `Malformed`, `Spent`."""
        async with asyncio.timeout(seconds):
            while True:
                try:
                    event = self.machine.next_event()
                except h11.RemoteProtocolError as problem:
                    raise Malformed(str(problem)[:200]) from None
                if event is not h11.NEED_DATA:
                    return event
                content = await self.reader.read(CHUNK)
                self._count(content)
                self.machine.receive_data(content)

    async def send(self, event: h11.Event) -> None:
        """Send an event. Raises `Spent`, and `Malformed` where it does not fit to what was sent before."""
        try:
            content = self.machine.send(event)
        except h11.LocalProtocolError as problem:
            raise Malformed(str(problem)[:200]) from None
        if content:
            self._count(content)
            self.writer.write(content)
            async with asyncio.timeout(IDLE_SECONDS):
                await self.writer.drain()

    async def drop_rest(self, most: int, seconds: float) -> None:
        """Read what still comes of a request, some of it: else closing would take back what was just sent."""
        with contextlib.suppress(OSError, TimeoutError, h11.RemoteProtocolError):
            if self.machine.their_state is h11.SEND_BODY and isinstance(self.machine.next_event(), h11.EndOfMessage):
                return
            if self.machine.their_state not in (h11.SEND_BODY, h11.ERROR):
                return
            async with asyncio.timeout(seconds):
                while most > 0 and (content := await self.reader.read(CHUNK)):
                    self._count(content)
                    most -= len(content)

    def _count(self, content: bytes) -> None:
        if self._meter is not None:
            self._meter.count(len(content))


def raw_headers(message: h11.Request | h11.Response) -> list[tuple[bytes, bytes]]:
    """Return the headers as they were written. Raises `Malformed` for what can be read in two ways, or is too much."""
    headers = [(bytes(name), bytes(value)) for name, value in message.headers.raw_items()]
    names = [name.lower() for name, _ in headers]
    # h11 counts what is incomplete alone: a head that came at once may have any size.
    size = sum(len(name) + len(value) for name, value in headers)
    size += len(message.target) if isinstance(message, h11.Request) else len(message.reason)
    if len(headers) > MAX_HEADERS or size > MAX_HEAD:
        raise Malformed("its head is too long")
    if b"content-length" in names and b"transfer-encoding" in names:
        raise Malformed("it has both a Content-Length and a Transfer-Encoding")
    return headers


def passed_on(headers: Iterable[tuple[bytes, bytes]], *without: bytes) -> list[tuple[bytes, bytes]]:
    """Return the headers that go on to the other side; `without` are further names that do not, in small letters."""
    headers = list(headers)
    listed = {
        each.strip().lower() for name, value in headers if name.lower() == b"connection" for each in value.split(b",")
    }
    left_out = _OF_CONNECTION.union(listed, without) - {b"host", b"content-length", b"transfer-encoding", b""}
    return [(name, value) for name, value in headers if name.lower() not in left_out.union(without)]


def value_of(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    """Return a header's value, None where there is none. `name` is in small letters."""
    return next((value for each, value in headers if each.lower() == name), None)
