"""Bodies of those who have no key: a small one is answered as usual, a large one is not taken."""

import http.client
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import httpx
import openai
import pytest

from tests.kit.clients import raw_connection, read_error_answer
from tests.kit.closed import ClosedServer, bearer
from tests.wire.transports.test_bodies import JSON, MIB, PART, curl, grown, head, read_answer

LARGE = 24 * MIB  # less than MAX_BODY_BYTES
KEPT = 12  # MiB that the server may grow by


def text(size: int) -> bytes:
    return json.dumps({"input": "Hello", "x": "x" * size}).encode()


def assert_unauthorized(body: str | bytes) -> None:
    error = json.loads(body)["error"]
    assert (error["type"], error["code"], error["param"]) == ("authentication_error", "invalid_api_key", None)


async def parts(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), MIB):
        yield content[start : start + MIB]


@pytest.mark.parametrize("lines", [(), ("Authorization: Bearer sk-wrong",)])
@pytest.mark.parametrize("coming", [f"Content-Length: {LARGE}", "Transfer-Encoding: chunked"])
@pytest.mark.each_server
def test_no_more_than_a_small_body_is_taken_without_a_key(
    closed: ClosedServer, lines: tuple[str, ...], coming: str
) -> None:
    closed.forget_peak()
    before = closed.memory_bytes()
    with raw_connection(closed.port, receive_buffer=65536) as raw:
        raw.sendall(head("/v1/responses", "Content-Type: application/json", coming, *lines))
        if "chunked" in coming:
            raw.sendall(b"%x\r\n%b\r\n" % (MIB, PART))
        status, body = read_answer(raw)
        assert status == 401
        assert_unauthorized(body)
        with suppress(OSError):  # it may be closed; but what is sent is not kept
            for _ in range(LARGE // MIB):
                raw.sendall(PART if "chunked" not in coming else b"%x\r\n%b\r\n" % (MIB, PART))
    assert grown(closed, before) < KEPT


async def test_usual_clients_read_the_401(closed: ClosedServer) -> None:
    content = text(LARGE)
    async with httpx.AsyncClient(base_url=closed.base_url, timeout=60, verify=False) as client:
        for length in ({"content-length": str(len(content))}, {}):  # declared, and in chunks
            answer = await client.post("/responses", content=parts(content), headers={**JSON, **length})
            assert answer.status_code == 401
            assert_unauthorized(answer.content)
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert answer.headers["x-request-id"]


@pytest.mark.parametrize("expect", ["Expect: 100-continue", "Expect:"])
@pytest.mark.each_server
def test_curl_reads_the_401_and_goes_on_with_a_key(closed: ClosedServer, tmp_path: Path, expect: str) -> None:
    file = tmp_path / "body.json"
    file.write_bytes(text(2 * MIB))
    status, uploaded, body = curl(closed, file, expect)
    assert status == "401", body
    assert_unauthorized(body)
    if expect.endswith("continue"):
        assert uploaded == 0
    status, uploaded, body = curl(closed, file, expect, f"Authorization: Bearer {closed.key}")
    assert (status, uploaded) == ("200", file.stat().st_size), body


async def test_with_a_key_it_is_taken(closed: ClosedServer) -> None:
    key, reads = closed.key, closed.new_key("--scopes", "api.responses.read")
    content = text(2 * MIB)
    async with httpx.AsyncClient(base_url=closed.base_url, timeout=60, verify=False) as client:
        for length in ({"content-length": str(len(content))}, {}):
            headers = {**JSON, **length}
            answer = await client.post("/responses", content=parts(content), headers={**headers, **bearer(key)})
            assert answer.status_code == 200, answer.text
            answer = await client.post("/responses", content=parts(content), headers={**headers, **bearer(reads)})
            read_error_answer(answer, status=403, code="missing_scope")


def test_a_small_body_without_a_key_keeps_the_connection(closed: ClosedServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", closed.port, timeout=15)
    try:
        for size in (10, 200_000, 10):
            connection.request("POST", "/v1/responses", text(size), JSON)
            socket = connection.sock
            answer = connection.getresponse()
            assert_unauthorized(answer.read())
            assert answer.status == 401
            assert connection.sock is socket is not None
    finally:
        connection.close()


@pytest.mark.parametrize("size", [10, MIB])
def test_openais_sdk_raises_for_its_key(closed: ClosedServer, size: int) -> None:
    with (
        openai.OpenAI(base_url=closed.base_url, api_key="sk-wrong") as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.responses.create(model="m", input="x" * size)
