"""HTTP by the rules of `network` for libraries that take an httpx2 transport; imports httpx2, so import it late.

`CheckedTransport` decides where a connection goes, and bounds what comes. Everything else stays httpx2's: the URL keeps
its name, so that `Host` and the server's certificate are what they should be, and connections are kept per host.

`JsonWeight`: how much work the JSON that a server sends would be, counted before it is read.

Bytes alone say little: a library that checks each value takes seconds for megabytes of small ones, in which nothing
else of the process goes on, and milliseconds for one long text.
"""

import asyncio
import re
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from contextlib import contextmanager

import httpcore2
import httpx2

from responses_app.protocol.transport import codings_of
from responses_app.tools.network import Network

# A string from its beginning, or from within, up to its end. JSON has no line break in one: there it ends in any case.
_STRING = re.compile(rb'"[^"\\\r\n]*(?:\\.[^"\\\r\n]*)*(?P<end>["\r\n])?', re.DOTALL)
_WITHIN = re.compile(rb'[^"\\\r\n]*(?:\\.[^"\\\r\n]*)*(?P<end>["\r\n])?', re.DOTALL)
# The empty line that ends an event, with any kind of line end.
_END_OF_EVENT = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_BETWEEN = (b'"', b",", b"[", b"{")  # what stands for a value: a quote is a whole string


class TooManyValues(ValueError):
    """There are more than there may be."""


class JsonWeight:
    """Takes one document as it comes, or with `events` the events of a stream, each of which is one."""

    def __init__(self, most: int, *, events: bool) -> None:
        self._most = most  # that a document, or an event, may have
        self._events = events
        self._values = 0  # so far
        self._within = False  # a string goes on
        self._escaped = False  # and what comes next does not end it
        self._last = b""  # the last bytes of what was seen: the end of an event may be cut

    def add(self, part: bytes) -> None:
        """Take more. Raises `TooManyValues`."""
        start = 0
        if self._within:
            # The character behind a backslash is part of the string, whatever it is.
            start = min(int(self._escaped), len(part))
            match = _WITHIN.match(part, start)
            assert match is not None, "it matches nothing at all, too"
            self._note_end(match)
            start = match.end() if not self._within else len(part)
        # Each string becomes one quote, so that signs within strings are not counted.
        between = _STRING.sub(self._shortened, part[start:] if start else part)
        self._values += sum(map(between.count, _BETWEEN))
        if self._values > self._most:
            raise TooManyValues
        if self._events:
            # Counted anew behind the last event that has ended.
            seen = self._last + between
            ends = [match.end() for match in _END_OF_EVENT.finditer(seen)]
            if ends:
                self._values = sum(map(seen[ends[-1] :].count, _BETWEEN))
            # Two line ends of two bytes are four: three of them may have come.
            self._last = seen[-3:]

    def _shortened(self, match: re.Match[bytes]) -> bytes:
        self._note_end(match)
        return b'"\n' if match["end"] in (b"\r", b"\n") else b'"'

    def _note_end(self, match: re.Match[bytes]) -> None:
        self._within = match["end"] is None
        self._escaped = self._within and match.string[match.end() : match.end() + 1] == b"\\"


CONNECT_SECONDS = 10.0  # for one connection, its name and all of its addresses included
MAX_CONNECTIONS = 300  # more than clients of MCP are kept: one of the oldest kind holds a connection all the time
MAX_IDLE_CONNECTIONS = 20  # over all hosts
KEEP_ALIVE_SECONDS = 30.0
MAX_VALUES = 30_000  # of JSON; the library of MCP takes half a second for so many
_EVENTS = "text/event-stream"


class _CheckedBackend(httpcore2.AsyncNetworkBackend):
    """Opens connections to the addresses that the rules allow."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._backend = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        try:
            async with asyncio.timeout(min(timeout or CONNECT_SECONDS, CONNECT_SECONDS)):
                # Judged here, at the last moment: what is connected to is what was judged.
                *others, last = await self._network.addresses(host, port)
                # One after the other; the last one's error is the one that is told.
                for address in others:
                    try:
                        return await self._backend.connect_tcp(address, port, socket_options=socket_options)
                    except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                        continue  # the next address may answer
                return await self._backend.connect_tcp(last, port, socket_options=socket_options)
        except TimeoutError:
            raise httpcore2.ConnectTimeout("no connection in time") from None


class CheckedTransport(httpx2.AsyncBaseTransport):
    """A transport that reaches what a `Network` allows, and nothing else. It knows no proxies.

    A body may have `max_body_bytes`; a stream of events has no end, so its reader bounds each event. A body, or an
    event, may have `max_values` of JSON: what is made of small ones takes long to read. Answers are not
    compressed: what is, in spite of the request, is refused, since a few bytes of it can become gigabytes.
    `ssl_context` is for what tests its servers with certificates of its own.

    Raises `NetworkError` besides httpx2's own errors, when a request is made.
    """

    def __init__(
        self,
        network: Network,
        *,
        max_body_bytes: int,
        max_values: int = MAX_VALUES,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._max_body_bytes = max_body_bytes
        self._max_values = max_values
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=ssl_context or httpx2.create_ssl_context(),
            max_connections=MAX_CONNECTIONS,
            max_keepalive_connections=MAX_IDLE_CONNECTIONS,
            keepalive_expiry=KEEP_ALIVE_SECONDS,
            network_backend=_CheckedBackend(network),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; its connection is made by the rules, unless one is open."""
        assert isinstance(request.stream, httpx2.AsyncByteStream)
        # So that the bytes that are counted are the bytes that come.
        request.headers["Accept-Encoding"] = "identity"
        url = request.url
        with _as_httpx_errors():
            answer = await self._pool.handle_async_request(
                httpcore2.Request(
                    method=request.method,
                    url=httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                    headers=request.headers.raw,
                    content=request.stream,
                    extensions=request.extensions,
                )
            )
        assert isinstance(answer.stream, AsyncIterable)
        headers = httpx2.Headers(answer.headers)
        # Parameters as `charset` stand behind a semicolon.
        is_events = headers.get("content-type", "").partition(";")[0].strip().lower() == _EVENTS
        weight = JsonWeight(self._max_values, events=is_events)
        body = _BoundedBody(answer.stream, None if is_events else self._max_body_bytes, weight)
        if codings_of(headers.get_list("content-encoding")):
            await body.aclose()
            raise httpx2.DecodingError("the answer is compressed, which was not asked for", request=request)
        return httpx2.Response(answer.status, headers=headers, stream=body, extensions=answer.extensions)

    async def aclose(self) -> None:
        """Close all connections."""
        with _as_httpx_errors():
            await self._pool.aclose()


class _BoundedBody(httpx2.AsyncByteStream):
    """The body of an answer, up to `limit` bytes; None: as many as come. `weight` bounds what is in it."""

    def __init__(self, parts: AsyncIterable[bytes], limit: int | None, weight: JsonWeight) -> None:
        self._parts = parts
        self._limit = limit
        self._weight = weight

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        with _as_httpx_errors():
            async for part in self._parts:
                size += len(part)
                if self._limit is not None and size > self._limit:
                    raise httpx2.ReadError(f"the answer has more than {self._limit} bytes")
                # Before it is passed on: the reader would already take its time.
                try:
                    self._weight.add(part)
                except TooManyValues:
                    raise httpx2.ReadError("the answer has more values than are read") from None
                yield part

    async def aclose(self) -> None:
        """Leave the rest of the body unread."""
        close = getattr(self._parts, "aclose", None)
        if close is not None:
            await close()


@contextmanager
def _as_httpx_errors() -> Iterator[None]:
    """Raise httpcore2's errors as those of httpx2, which have the same names."""
    try:
        yield
    except (httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProtocolError) as error:
        # An error of httpcore2 that httpx2 has no name for is any error of a transport.
        raise getattr(httpx2, type(error).__name__, httpx2.TransportError)(str(error)) from error
