"""Frames that are written at once are the bytes that daphne would write, and a slow reader is noticed all the same."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.tcp import Connection as TcpConnection

from responses_app.servers.daphne_frames import write_text_frames
from tests.clients import RAW_UPGRADE, raw_connection, raw_frame
from tests.server import Server

MIB = 1024 * 1024


class Transport(TcpConnection):
    """A plain connection without a socket, whose peer takes `room` bytes at once."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.sent = b""  # at once
        self.dataBuffer = b""  # by Twisted, later
        self._tempDataBuffer: list[bytes] = []
        self.connected, self.disconnecting = True, False

    def writeSomeData(self, data: bytes) -> int:
        self.sent += data[: self.room]
        return min(self.room, len(data))

    def write(self, data: bytes) -> None:
        self.dataBuffer += data


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
