"""What is written at once is what daphne would write; all else goes its way. See also `test_slow_readers`."""

from collections.abc import Callable, Iterable
from types import SimpleNamespace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.tcp import Connection as TcpConnection
from twisted.web.http import HTTPChannel, Request

from responses_app.web.servers.daphne import write_chunk, write_text_frames
from tests.kit.clients import RAW_UPGRADE, raw_connection, raw_frame, raw_request
from tests.kit.server import Server

MIB = 1024 * 1024


class Transport(TcpConnection):
    """A plain connection without a socket, whose peer takes `room` bytes at once."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.sent = b""  # at once
        self.dataBuffer = b""  # by Twisted, later
        self._tempDataBuffer: list[bytes] = []
        self.connected, self.disconnecting, self._writeDisconnected = True, False, False

    def writeSomeData(self, data: bytes) -> int:
        self.sent += data[: self.room]
        return min(self.room, len(data))

    def write(self, data: bytes) -> None:
        self.dataBuffer += data

    def writeSequence(self, iovec: Iterable[bytes]) -> None:
        self.write(b"".join(iovec))

    def getPeer(self) -> None: ...

    def getHost(self) -> None: ...


def protocol_with(transport: object, **changes: object) -> SimpleNamespace:
    fields = {"state": 3, "STATE_OPEN": 3, "_perMessageCompress": None, "send_queue": (), "autoFragmentSize": 0}
    return SimpleNamespace(transport=transport, maxMessagePayloadSize=MIB, **{**fields, **changes})


def by_the_book(payloads: list[bytes]) -> bytes:
    """Write frames as RFC 6455 section 5.2 says, independently."""
    frames = b""
    for payload in payloads:
        size = len(payload)
        kind, width = (size, 0) if size < 126 else (126, 2) if size < 65536 else (127, 8)
        frames += bytes([0x81, kind]) + (size.to_bytes(width, "big") if width else b"") + payload
    return frames


sizes = st.sampled_from([0, 1, 125, 126, 127, 65535, 65536, 70000])


@given(st.lists(sizes, min_size=1, max_size=4), st.integers(0, 80_000))
def test_the_bytes_are_those_of_the_protocol_whatever_the_peer_takes(given_sizes: list[int], room: int) -> None:
    payloads = [bytes([65 + index % 26]) * size for index, size in enumerate(given_sizes)]
    transport = Transport(room)
    assert write_text_frames(protocol_with(transport), payloads)
    assert transport.sent + transport.dataBuffer == by_the_book(payloads)
    assert len(transport.sent) == min(room, len(by_the_book(payloads)))


@pytest.mark.parametrize(
    "changes",
    [{"state": 1}, {"_perMessageCompress": object()}, {"send_queue": (1,)}, {"autoFragmentSize": 10}],
    ids=lambda changes: next(iter(changes)),
)
def test_what_is_not_plain_goes_daphnes_way(changes: dict[str, object]) -> None:
    transport = Transport(MIB)
    assert not write_text_frames(protocol_with(transport, **changes), [b"{}"])
    assert not write_text_frames(protocol_with(SimpleNamespace()), [b"{}"])
    assert not write_text_frames(protocol_with(transport), [b"x" * (MIB + 1)])
    transport.dataBuffer = b"waiting"
    assert not write_text_frames(protocol_with(transport), [b"{}"])
    assert transport.sent == b""


def answering(transport: Transport, *, method: bytes = b"GET", protocol: bytes = b"HTTP/1.1") -> Request:
    """Return a request of Twisted's whose answer has begun, with all that it wrote sent."""
    channel = HTTPChannel()
    channel.transport = transport
    request = Request(channel)
    channel.requests = [request]
    request.method, request.clientproto = method, protocol
    request.write(b"")
    transport.sent, transport.dataBuffer = b"", b""
    return request


@given(st.lists(sizes.filter(bool), min_size=1, max_size=4), st.integers(0, 80_000))
def test_a_part_of_a_stream_is_the_bytes_that_twisted_writes(given_sizes: list[int], room: int) -> None:
    at_once, later = Transport(room), Transport(0)
    direct, twisted = answering(at_once), answering(later)
    for index, size in enumerate(given_sizes):
        part = bytes([65 + index % 26]) * size
        if not write_chunk(direct, part):
            direct.write(part)
        twisted.write(part)
    assert at_once.sent + at_once.dataBuffer == later.dataBuffer
    assert direct.sentLength == twisted.sentLength
    assert bool(at_once.sent) == bool(room)


CHANGES: dict[str, Callable[[Request], None]] = {
    "ended": lambda request: setattr(request, "finished", 1),
    "gone": lambda request: setattr(request, "_disconnected", True),
    "not its turn": lambda request: setattr(request.channel, "requests", [object(), request]),
    "not plain": lambda request: setattr(request.channel, "transport", SimpleNamespace()),
    "waiting": lambda request: setattr(request.channel.transport, "dataBuffer", b"waiting"),
    "shut": lambda request: setattr(request.channel.transport, "_writeDisconnected", True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_part_that_is_not_plain_goes_daphnes_way(change: str) -> None:
    transport = Transport(MIB)
    request = answering(transport)
    CHANGES[change](request)
    assert not write_chunk(request, b"data: {}\n\n")
    assert transport.sent == b""


@pytest.mark.parametrize("about", [{"method": b"HEAD"}, {"protocol": b"HTTP/1.0"}])
def test_an_answer_without_chunks_goes_daphnes_way(about: dict[str, bytes]) -> None:
    transport = Transport(MIB)
    assert not write_chunk(answering(transport, **about), b"data: {}\n\n")
    assert not write_chunk(answering(transport), b""), "that would end the answer"
    assert transport.sent == b""


def test_a_stream_comes_whole(daphne_server: Server) -> None:
    with raw_connection(daphne_server.port, receive_buffer=MIB) as raw:
        raw.sendall(raw_request({"input": "count to 200", "stream": True}))
        received = b""
        while not received.endswith(b"\r\n0\r\n\r\n"):
            part = raw.recv(MIB)
            assert part, "the server broke off"
            received += part
    rest, body = received.partition(b"\r\n\r\n")[2], b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    events = body.decode().split("\n\n")
    numbers = [orjson.loads(event.partition("data: ")[2])["sequence_number"] for event in events[:-2]]
    assert numbers == list(range(len(numbers)))
    assert events[-2:] == ["data: [DONE]", ""]


def test_events_come_by_few_system_calls_and_whole(daphne_server: Server) -> None:
    with raw_connection(daphne_server.port, receive_buffer=MIB) as raw:
        raw.sendall(RAW_UPGRADE)
        assert b" 101 " in raw.recv(MIB)
        raw.sendall(raw_frame({"type": "response.create", "input": "count to 200"}))
        received = b""
        while b'"response.completed"' not in received:
            part = raw.recv(MIB)
            assert part, "the server broke off"
            received += part
    assert received.count(b'"response.output_text.delta"') > 0
