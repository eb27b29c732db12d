"""Heads of requests that say one thing and mean another: nothing gets past the limits, under both servers."""

from contextlib import suppress

import pytest

from tests.kit.clients import raw_connection
from tests.kit.fixtures import measured_server
from tests.kit.heartbeat import tries
from tests.kit.server import Server

MIB = 1024 * 1024
UPGRADE = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
KEY = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"


server = measured_server("lying", request_arrival_seconds=1)


def ask(server: Server, head: str, body: bytes = b"") -> bytes:
    """Send a request and return what the server says until it closes."""
    said = b""
    with raw_connection(server.port) as raw:
        raw.settimeout(10)
        with suppress(ConnectionError):  # it may be refused before its end
            raw.sendall(f"{head}Host: localhost\r\n\r\n".encode() + body)
        try:
            while part := raw.recv(65536):
                said += part
        except TimeoutError:
            raise AssertionError(f"the server neither answers nor closes; so far: {said!r}") from None
        except ConnectionResetError:
            return said
    return said


@pytest.mark.parametrize(
    "lengths",
    [("Content-Length: 0", "Transfer-Encoding: chunked"), ("Transfer-Encoding: chunked", "Content-Length: 0")],
)
@pytest.mark.each_server
def test_a_declared_length_is_not_a_way_past_the_limit_of_a_body_in_chunks(
    server: Server, lengths: tuple[str, str]
) -> None:
    """uvicorn takes chunks where a length is declared too: of nothing, so that nothing is counted."""
    part = b"%x\r\n%b\r\n" % (MIB, b"a" * MIB)
    body = b'16\r\n{"input":"Hello","x":"\r\n' + part * 70 + b'2\r\n"}\r\n0\r\n\r\n'
    lines = "".join(f"{line}\r\n" for line in ("Content-Type: application/json", "Connection: close", *lengths))
    for _ in tries(server):
        server.forget_peak()
        before = server.memory_bytes()
        said = ask(server, f"POST /v1/responses HTTP/1.1\r\n{lines}", body)
        assert not said or said.split()[1] in (b"400", b"413"), said[:300]
        assert server.peak_memory_bytes() - before < 96 * MIB


CODINGS = [
    ("chunked, identity",),
    ("identity, chunked",),
    ("chunked", "identity"),
    ("identity", "chunked"),
    ("chunked", "chunked"),
    ("identity",),
    ("gzip, chunked",),
    ("xchunked",),
    ("chunked;q=1",),
]


@pytest.mark.parametrize("codings", CODINGS, ids=" + ".join)
@pytest.mark.each_server
def test_a_body_whose_end_two_servers_could_see_elsewhere_is_refused(server: Server, codings: tuple[str, ...]) -> None:
    """A proxy that reads another coding than we do would take a part of the body for somebody's request."""
    lines = "".join(f"Transfer-Encoding: {coding}\r\n" for coding in codings)
    smuggled = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    body = b'11\r\n{"input":"Hello"}\r\n0\r\n\r\n' + smuggled
    said = ask(server, f"POST /v1/responses HTTP/1.1\r\nContent-Type: application/json\r\n{lines}", body)
    assert said.split()[1] in (b"400", b"501"), said
    assert said.count(b"HTTP/1.1 ") == 1, said


@pytest.mark.each_server
def test_a_body_in_chunks_and_with_a_length_is_refused(server: Server) -> None:
    """A proxy that reads by the length sees the end elsewhere than one that reads chunks."""
    smuggled = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    for length in (len(smuggled) + 5, 5, 0):
        for lines in (f"Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n",
                      f"Transfer-Encoding: chunked\r\nContent-Length: {length}\r\n"):  # fmt: skip
            said = ask(server, f"POST /v1/missing HTTP/1.1\r\n{lines}", b"0\r\n\r\n" + smuggled)
            assert said.split()[1] == b"400", said
            assert said.count(b"HTTP/1.1 ") == 1, said


@pytest.mark.parametrize(
    "head",
    [
        f"POST /v1/responses HTTP/1.1\r\n{UPGRADE}{KEY}Content-Length: 2\r\n",
        f"GET /v1/responses HTTP/1.1\r\n{UPGRADE}{KEY}Content-Length: 900000\r\n",
        f"GET /v1/responses HTTP/1.1\r\n{UPGRADE}{KEY}Transfer-Encoding: chunked\r\n",
        f"GET /v1/responses HTTP/1.1\r\n{UPGRADE}",
        f"GET /v1/responses HTTP/1.1\r\n{UPGRADE}{KEY}Sec-WebSocket-Protocol: é\r\n",
    ],
)
@pytest.mark.each_server
def test_what_is_not_a_handshake_is_refused_and_not_kept_open(server: Server, head: str) -> None:
    said = ask(server, head)
    assert said[9:10] == b"4", said


@pytest.mark.each_server
def test_what_talks_before_it_is_let_in_breaks_nothing(server: Server) -> None:
    frame = b"\x81\xff" + (200_000).to_bytes(8, "big") + bytes(4) + b"a" * 200_000
    for _ in range(5):
        with raw_connection(server.port) as raw, suppress(OSError):
            raw.settimeout(1)
            raw.sendall(f"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\n{UPGRADE}{KEY}\r\n".encode() + frame)
            while raw.recv(65536):
                pass
    assert "Traceback" not in server.output


@pytest.mark.each_server
def test_a_client_chooses_no_root_path(server: Server) -> None:
    """A proxy that lets `/v1` by, and nothing else, is not led to the admin."""
    said = ask(server, "GET /v1/admin/login/ HTTP/1.1\r\nConnection: close\r\nDaphne-Root-Path: /v1\r\n")
    assert said.startswith(b"HTTP/1.1 404 ")
    said = ask(server, "GET /v1/models HTTP/1.1\r\nConnection: close\r\nDaphne-Root-Path: é\r\n")
    assert said.startswith(b"HTTP/1.1 200 ")


@pytest.mark.each_server
def test_a_body_beside_an_offer_of_http2_is_read(server: Server) -> None:
    """Java's client makes the offer with each first request, and so does `curl --http2`."""
    body = b'{"input": "Hello", "store": false}'
    offer = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
    lines = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n{offer}"
    with raw_connection(server.port, receive_buffer=65536) as raw:
        raw.settimeout(20)
        raw.sendall(f"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode() + body)
        assert raw.recv(65536).startswith(b"HTTP/1.1 200 ")
