"""The two sides of a proxy: `Dialler` connects to hosts, and `Peer` speaks HTTP/1.1 with either side.

Connections are made by the rules of `tools.network`, and their number is bounded; `Meter` bounds what is sent. HTTP/1.1
is read and written by h11, which refuses what can be read in two ways, but for a message that has both a length and
chunks: that is refused here.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

import h11

from responses_app.tools.network import Network, NetworkError
from responses_app.tools.places import NoPlace, SharedPlaces

CONNECT_SECONDS = 10.0  # to look a name up, connect, and greet with TLS
MAX_CONNECTIONS = 256  # of this process, to hosts
PROJECT_CONNECTIONS = 192  # of one project among them
WAIT_SECONDS = 10.0  # for one of them to be free
MAX_WAITING = 64  # of one project
# Names that are looked up at once. A name server that does not answer holds a thread for longer than anybody waits for
# it, and whoever has the allowlist may have the name server, too: so a project has a share of them.
MAX_LOOKUPS = 64
PROJECT_LOOKUPS = 16

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Unreached(Exception):
    """A host could not be reached; the text is a sentence for whoever asked, and tells nothing of this network."""

    def __init__(self, message: str, status: int = 502) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class ProxyTarget:
    """Where a connection leads."""

    host: str  # as `network.normal_host` writes it
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Dialler:
    """Connects for all containers of a process. Without `tls`, certificates are checked as this machine does it."""

    def __init__(self, network: Network, tls: ssl.SSLContext | None = None) -> None:
        self.network = network
        self._tls = tls
        self._places = SharedPlaces(
            most=MAX_CONNECTIONS, share=PROJECT_CONNECTIONS, seconds=WAIT_SECONDS, most_waiting=MAX_WAITING
        )
        # Who waits is bounded by the places above, and by the time for a connection.
        self._lookups = SharedPlaces(most=MAX_LOOKUPS, share=PROJECT_LOOKUPS)

    @contextlib.asynccontextmanager
    async def connected(self, target: ProxyTarget, project: str, *, tls: bool) -> AsyncIterator[Streams]:
        """Be connected to a host; the connection is closed behind. Raises `Unreached`."""
        if tls and self._tls is None:  # when it is first needed: reading the certificates takes 20 ms
            self._tls = ssl.create_default_context()
        try:
            await self._places.take(project)
        except NoPlace:
            raise Unreached("Too many connections are open here. Try again later.", 503) from None
        writer: asyncio.StreamWriter | None = None
        try:
            reader, writer = await self._connect(target, project, self._tls if tls else None)
            yield reader, writer
        finally:
            self._places.give_back(project)
            if writer is not None:
                writer.transport.abort()

    async def _connect(self, target: ProxyTarget, project: str, tls: ssl.SSLContext | None) -> Streams:
        name = target.host if tls is not None else None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._lookups.take(project)
                looking = asyncio.ensure_future(self.network.addresses(target.host, target.port))
                # Not when this ends: the thread of a lookup goes on where nobody waits any more.
                looking.add_done_callback(lambda _: self._lookups.give_back(project))
                problem: OSError | None = None
                # These addresses and no others: a name that is asked for twice may have changed.
                for address in await asyncio.shield(looking):
                    try:
                        return await asyncio.open_connection(address, target.port, ssl=tls, server_hostname=name)
                    except ssl.SSLError:
                        raise
                    except OSError as each:
                        problem = each
                raise problem or OSError
        except NetworkError as refused:
            raise Unreached(str(refused), 403) from None
        except TimeoutError:
            raise Unreached(f"The host '{target.host}' did not answer in time.", 504) from None
        except ssl.SSLError:
            raise Unreached(f"The certificate of '{target.host}' is not valid, or it speaks no TLS.") from None
        except OSError:
            raise Unreached(f"No connection to '{target}' could be made.") from None


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
    """The other side does not speak HTTP/1.1 as it is taken here; the text says why."""


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
        """Read some of the rest of a request: else closing would take back the answer that was just sent."""
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
    """Return the headers as they were written. Raises `Malformed` where they are ambiguous, or too many."""
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
