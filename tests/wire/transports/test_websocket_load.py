"""What a peer may send over a WebSocket: its memory and time are bounded, under both servers."""

import json
import socket as sockets
from contextlib import suppress

import httpx
import orjson
import pytest

from tests.kit.clients import RAW_UPGRADE, Socket, raw_connection, raw_frame, read_error_frame
from tests.kit.fixtures import measured_server
from tests.kit.heartbeat import tries
from tests.kit.server import Server
from tests.kit.waiting import eventually
from tests.wire.transports.conftest import Connect

MIB = 1024 * 1024


served = measured_server("load")


def upgraded(server: Server) -> sockets.socket:
    """Open a WebSocket that reads nothing by itself."""
    raw = raw_connection(server.port)
    raw.sendall(RAW_UPGRADE)
    assert raw.recv(1024).startswith(b"HTTP/1.1 101 ")
    return raw


def send_until_nothing_is_taken(raw: sockets.socket, data: bytes, *, at_most: int) -> int:
    """Send again and again until the other side has taken nothing for a second; return how many bytes it took."""
    raw.settimeout(1)
    sent = 0
    with suppress(TimeoutError, ConnectionError):
        while sent < at_most:
            sent += raw.send(data)
    return sent


PING = b"\x89\xfd" + bytes(4) + b"p" * 125


@pytest.mark.each_server
def test_a_message_in_many_small_pieces(served: Server) -> None:
    """It is refused, and its refusal stops nobody: uvicorn took 43,000 of them at once in 0.4 s."""
    begin, piece, end = b"\x01\x81" + bytes(4) + b"{", b"\x00\x80" + bytes(4), b"\x80\x81" + bytes(4) + b"}"
    for _ in tries(served):
        with upgraded(served) as raw:
            raw.settimeout(30)
            raw.sendall(begin + piece * 300_000 + end)
            assert b"frames_too_small" in raw.recv(65536)


@pytest.mark.each_server
def test_pings_of_a_peer_that_does_not_read(served: Server) -> None:
    """Pongs piled up without bound: 139 MB in 13 s."""
    served.forget_peak()
    before = served.memory_bytes()
    with upgraded(served) as raw:
        sent = send_until_nothing_is_taken(raw, PING * 500, at_most=200 * MIB)
        assert sent < 50 * MIB
        assert served.peak_memory_bytes() - before < 16 * MIB
        assert httpx.get(f"{served.url}/health", verify=False).status_code == 200


@pytest.mark.each_server
def test_a_peer_that_reads_again_is_read_again(served: Server) -> None:
    with upgraded(served) as raw:
        sent = send_until_nothing_is_taken(raw, PING * 500, at_most=200 * MIB)
        complete = sent // len(PING)
        raw.settimeout(10)
        got = 0
        while got < complete * 127:  # a pong each
            got += len(raw.recv(65536))
        rest = -sent % len(PING)
        raw.sendall(PING[len(PING) - rest :] if rest else PING)
        assert raw.recv(65536)


def frame(content: bytes) -> bytes:
    """Return the bytes of a text frame, masked with zeros."""
    return b"\x81\xff" + len(content).to_bytes(8, "big") + bytes(4) + content


FRAMES = 20


def test_large_frames_faster_than_they_are_read(served: Server) -> None:
    content = b'{"type":"nonsense","x":"' + b"a,[" * (7 * MIB) + b'"}'  # slow to look through
    served.forget_peak()
    before = served.memory_bytes()
    with upgraded(served) as raw:
        raw.settimeout(60)
        for _ in range(FRAMES):
            raw.sendall(frame(content))
        said = b""
        while said.count(b'"type":"error"') < FRAMES:
            said += raw.recv(65536)
    grown = (served.peak_memory_bytes() - before) / MIB
    assert grown < 300, "all of them are 420 MiB, before anything is made of them; uvicorn takes ten times one"


ITEM = {"role": "user", "content": "x"}
LARGE = {
    "picture": (b'{"type":"response.create","generate":false,"input":"Hello","x":"%b"}' % (b"A" * (31 * MIB)), None),
    "items": (orjson.dumps({"type": "response.create", "generate": False, "input": [ITEM] * 5000}), None),
    "too many items": (orjson.dumps({"type": "response.create", "input": [ITEM] * 5001}), "array_above_max_length"),
    "ignored field": (b'{"type":"response.create","x":[' + b"[]," * (10 * MIB) + b"1]}", "request_too_complex"),
}


@pytest.mark.parametrize("case", LARGE)
async def test_a_large_frame_never_stops_the_loop(served: Server, open_socket: Connect, case: str) -> None:
    content, code = LARGE[case]
    socket = await open_socket(served)
    for _ in tries(served):
        await socket.send(content.decode())
        if code is None:
            assert (await socket.answer())[-1]["type"] == "response.completed"
        else:
            param = "input" if code == "array_above_max_length" else None
            read_error_frame(await socket.error(), status=400, code=code, param=param)


async def test_frames_are_taken_in_order(served: Server, open_socket: Connect) -> None:
    """A long one is read on a thread; the next does not overtake it."""
    socket = await open_socket(served)
    for number in range(6):
        await socket.send(json.dumps({"type": f"unknown-{number}", "x": "x" * (4 * MIB * (number % 2 == 0))}))
    said = [(await socket.error())["error"]["message"] for _ in range(6)]
    assert [f"unknown-{number}" in message for number, message in enumerate(said)] == [True] * 6, said


VIOLATIONS = {
    "no mask": b"\x81\x05Hello",
    "reserved bits": b"\xf1\x80" + bytes(4),
    "unknown opcode": b"\x83\x80" + bytes(4),
    "fragmented ping": b"\x09\x80" + bytes(4),
    "not UTF-8": b"\x81\x82" + bytes(4) + b"\xff\xfe",
    "close with one byte": b"\x88\x81" + bytes(4) + b"x",
}


@pytest.mark.parametrize("case", VIOLATIONS)
@pytest.mark.each_server
async def test_a_peer_that_breaks_the_protocol(served: Server, case: str) -> None:
    """While a response streams to it: it is closed, and nothing is heard of it in the log."""
    begun = len(served.output)
    request = {"type": "response.create", "input": "count to 9000", "store": False}
    with upgraded(served) as raw:
        raw.sendall(raw_frame(request))
        assert raw.recv(4096)
        raw.sendall(VIOLATIONS[case])
        raw.settimeout(15)
        with suppress(ConnectionError):
            while raw.recv(65536):
                pass
    await eventually(lambda: "websocket cancelled" in served.output[begun:])
    async with await Socket.open(served.ws_url) as socket:
        await socket.ask("Hello", store=False)
    assert "RuntimeError" not in served.output[begun:]
