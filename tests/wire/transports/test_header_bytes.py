"""Bytes in the first lines of a request that are no characters."""

import json
import socket
from http.client import HTTPResponse

import httpx
import pytest

from tests.kit.clients import read_error_answer
from tests.kit.server import Server


@pytest.mark.parametrize(
    "lines",
    [
        b"GET /v1/models HTTP/1.1\r\nAuthorization: Bearer \x85",
        b"GET /v1/responses HTTP/1.1\r\nX-A: \x85\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    ],
)
def test_what_daphne_refuses_by_itself_is_told_like_everything_else(daphne_server: Server, lines: bytes) -> None:
    with socket.create_connection(("127.0.0.1", daphne_server.port)) as raw:
        raw.sendall(lines + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = HTTPResponse(raw)
        answer.begin()
        told = httpx.Response(answer.status, headers=answer.getheaders(), content=answer.read())
    assert read_error_answer(told, status=400, code=None) == "The request cannot be read: Invalid header value."


async def test_bytes_in_a_path_that_are_not_characters(demo_server: Server) -> None:
    with socket.create_connection(("127.0.0.1", demo_server.port)) as raw:
        raw.settimeout(10)
        raw.sendall(b"GET /v1/responses/resp_\xff\xfe HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: raw.recv(65536), b""))
    assert answer.split()[1] in (b"400", b"404")
    assert (
        answer.split()[1] == b"400" or json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["param"] == "response_id"
    )
