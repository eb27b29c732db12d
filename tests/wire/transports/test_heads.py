"""Heads that a server refuses or ignores by itself, and forms of requests that RFC 9110 and 9112 demand."""

import json
from contextlib import suppress
from http.client import HTTPResponse

import httpx
import pytest

from responses_app.web.servers.heads import MAX_HEAD_BYTES
from tests.kit.clients import raw_connection, read_error_answer
from tests.kit.server import Server

pytestmark = pytest.mark.each_server
LONG = "a" * (MAX_HEAD_BYTES + 1)
UPGRADE = "Upgrade: websocket\r\nConnection: Upgrade\r\n"
HANDSHAKE = f"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\n{UPGRADE}"
KEY = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"


def ask(server: Server, head: str, body: bytes = b"") -> httpx.Response:
    """Send a head, whose lines end with "|", and return the answer; the connection may stay open behind it."""
    with raw_connection(server.port, receive_buffer=65536) as raw:
        with suppress(ConnectionError):  # it may be refused before its end
            raw.sendall(head.replace("|", "\r\n").encode("latin1") + b"\r\n" + body)
        answer = HTTPResponse(raw, method=head.split()[0])
        answer.begin()
        return httpx.Response(answer.status, headers=answer.getheaders(), content=answer.read())


@pytest.mark.parametrize(
    ("head", "status", "told"),
    [
        (f"GET /v1/models HTTP/1.1|Host: localhost|Authorization: Bearer {LONG}|", 431, "16384 bytes"),
        (f"GET /v1/models HTTP/1.1|Host: localhost|X: {LONG * 12}|", 431, "16384 bytes"),
        (f"GET /v1/models HTTP/1.1|Host: localhost|{'X: 12345678901234567890|' * 800}", 431, "16384 bytes"),
        (f"GET /v1/models?{LONG} HTTP/1.1|Host: localhost|", 414, "16384 bytes"),
        (f"GET /v1/models?{LONG * 12} HTTP/1.1|Host: localhost|", 414, "16384 bytes"),
        (HANDSHAKE.replace(" HTTP", f"?{LONG} HTTP") + f"{KEY}Sec-WebSocket-Version: 13|", 414, "16384 bytes"),
        ("GET /v1/models HTTP/1.1|", 400, "Host"),
        ("GET /v1/models HTTP/1.1|Host: localhost|Host: localhost|", 400, "Host"),
        ("GET http://localhost/v1/models HTTP/1.1|", 400, "Host"),
        ("GET ftp://localhost/v1/models HTTP/1.1|Host: localhost|", 400, "target"),
        ("GET v1/models HTTP/1.1|Host: localhost|", 400, "target"),
        ("GET * HTTP/1.1|Host: localhost|", 400, "target"),
        ("CONNECT localhost:80 HTTP/1.1|Host: localhost|", 400, "target"),
        ("GET /v1/models HTTP/2.0|Host: localhost|", 505, "HTTP/1.1"),
        ("PRI * HTTP/2.0|", 505, "HTTP/1.1"),
        ("hello|", 400, "line"),
        ("GET /v1/models|Host: localhost|", 400, "line"),
        ("GET /v1/mod\xe9ls HTTP/1.1|Host: localhost|", 400, "line"),
        ("GET /v1/models HTTP/1.1|Host: localhost|Foo|", 400, "header"),
        ("GET /v1/models HTTP/1.1|Host: localhost|Foo : bar|", 400, "header"),
        ("GET /v1/models HTTP/1.1|Host: localhost|Foo: b\0r|", 400, "header"),
        ("POST /v1/responses HTTP/1.1|Host: localhost|Content-Length: 2x|", 400, "ength"),
        ("POST /v1/responses HTTP/1.1|Host: localhost|Content-Length: 2|Content-Length: 3|", 400, "ength"),
        ("POST /v1/responses HTTP/1.1|Host: localhost|Expect: a-miracle|Content-Length: 2|", 417, "a-miracle"),
        (f"{HANDSHAKE}{KEY}Sec-WebSocket-Version: 8|", 426, "version 13"),
        (f"{HANDSHAKE}{KEY}", 426, "version 13"),
        (f"{HANDSHAKE}Sec-WebSocket-Version: 13|", 400, "Sec-WebSocket-Key"),
        (f"{HANDSHAKE}Sec-WebSocket-Version: 13|Sec-WebSocket-Key: abc|", 400, "Sec-WebSocket-Key"),
        (HANDSHAKE.replace("Connection: Upgrade", "X: 1") + f"{KEY}Sec-WebSocket-Version: 13|", 400, "Connection"),
        (HANDSHAKE.replace("GET", "POST") + f"{KEY}Sec-WebSocket-Version: 13|Content-Length: 0|", 400, "GET"),
        (HANDSHAKE.replace("localhost", "evil.example") + f"{KEY}Sec-WebSocket-Version: 13|", 403, "ALLOWED_HOSTS"),
        (f"{HANDSHAKE}{KEY}Sec-WebSocket-Version: 13|Origin: https://evil.example|", 403, "ALLOWED_ORIGINS"),
    ],
)  # fmt: skip
def test_a_refusal_of_the_http_layer_is_told_like_every_other(
    server: Server, head: str, status: int, told: str
) -> None:
    answer = ask(server, head)
    assert told in read_error_answer(answer, status=status, code=answer.json()["error"]["code"])
    assert answer.headers["date"].endswith(" GMT")
    assert answer.headers["x-request-id"]
    assert answer.headers["connection"] == "close"
    assert status != 426 or answer.headers["sec-websocket-version"] == "13"
    assert "Traceback" not in server.output


@pytest.mark.parametrize("lines", [f"X: {'a' * 8190}|", "X: a|" * 128])
def test_a_handshake_that_uvicorns_parser_does_not_take_is_told_why(server: Server, lines: str) -> None:
    answer = ask(server, f"{HANDSHAKE}{KEY}Sec-WebSocket-Version: 13|{lines}")
    if server.kind == "uvicorn":
        assert "128 headers, and 8192 bytes in each line" in read_error_answer(answer, status=431, code=None)
    else:
        assert answer.status_code == 101


def test_a_length_of_thousands_of_digits_is_answered(server: Server) -> None:
    # uvicorn's parser takes it for no number, Twisted's breaks off where Python reads none.
    head = "POST /v1/responses HTTP/1.1|Host: localhost|Content-Type: application/json|"
    answer = ask(server, f"{head}Content-Length: {'9' * 5000}|")
    assert answer.status_code == (400 if server.kind == "uvicorn" else 413)
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_chunk_that_is_none_is_told_as_well(server: Server) -> None:
    head = "POST /v1/responses HTTP/1.1|Host: localhost|Content-Type: application/json|Transfer-Encoding: chunked|"
    extended = b"2;" + b"a" * 200_000 + b"\r\n{}\r\n0\r\n\r\n"  # more than a parser keeps of a line
    for body in (b"zz\r\n{}\r\n0\r\n\r\n", extended):
        assert "chunk" in read_error_answer(ask(server, head, body), status=400, code=None)


def test_what_is_no_request_fills_no_log(server: Server) -> None:
    for _ in range(40):
        ask(server, "hello|")
    assert server.output.count("Invalid HTTP request received.") < 40  # ten in a minute


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET /health HTTP/1.1|Host: localhost|", 200),
        ("GET /health HTTP/1.0|", 200),  # it needs no Host
        ("GET /health HTTP/1.9|Host: localhost|", 200),
        ("|GET /health HTTP/1.1|Host: localhost|", 200),
        ("GET http://localhost/health HTTP/1.1|Host: evil.example|", 200),
        ("GET http://evil.example/health HTTP/1.1|Host: localhost|", 400),
        ("GET HTTP://localhost:80/health?a=b HTTP/1.1|Host: localhost|", 200),
        ("GET /health HTTP/1.1|Host: localhost|Upgrade: h2c|Connection: Upgrade|", 200),
        ("GET /health HTTP/1.1|Host: localhost|Upgrade: websocket|", 200),  # no wish of this connection: ignored
        ("GET /health HTTP/1.1|Host: localhost|Expect: 100-Continue|", 200),
        ("OPTIONS * HTTP/1.1|Host: localhost|", 204),
        ("GET / HTTP/1.1|Host: localhost|", 200),
        ("GET /static/missing HTTP/1.1|Host: localhost|", 404),
        ("HEAD /health HTTP/1.1|Host: localhost|", 200),
        (f"GET http://localhost/v1/responses HTTP/1.1|Host: localhost|{UPGRADE}{KEY}Sec-WebSocket-Version: 13|", 101),
    ],
)  # fmt: skip
def test_each_form_of_a_request_is_taken_and_each_answer_has_a_date(server: Server, head: str, status: int) -> None:
    answer = ask(server, head)
    assert answer.status_code == status
    assert answer.headers["date"].endswith(" GMT")


def test_a_body_that_is_waited_for_is_asked_for(server: Server) -> None:
    body = b'{"input": "Hello", "store": false}'
    with raw_connection(server.port, receive_buffer=65536) as raw:
        head = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        raw.sendall(f"POST http://localhost/v1/responses HTTP/1.1\r\n{head}Expect: 100-continue\r\n\r\n".encode())
        assert raw.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        raw.sendall(body)
        answer = HTTPResponse(raw)
        answer.begin()
        assert json.loads(answer.read())["status"] == "completed"
