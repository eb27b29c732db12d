"""Refusals that a server makes of bytes: of a message, a body, a host and an upgrade; each server in its own way."""

import json
from collections.abc import AsyncIterator

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from tests.kit.clients import Socket, read_error_answer, read_error_frame, read_message
from tests.kit.closed import ClosedServer, bearer
from tests.kit.scripts import LIMIT
from tests.kit.server import Server
from tests.wire.transports.conftest import Connect

pytestmark = pytest.mark.each_server
CREATE = {"type": "response.create"}
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("size", [LIMIT + 1, 4 * LIMIT])
async def test_a_message_over_the_limit_ends_the_connection(server: Server, open_socket: Connect, size: int) -> None:
    """Just over, and far over: clients go on over HTTP where the close code is 1009, and nowhere else."""
    socket = await open_socket(server)
    frame = json.dumps({**CREATE, "input": ""})
    await socket.send(frame[:-2] + "x" * (size - len(frame)) + frame[-2:])
    assert await socket.closed() == 1009
    message = read_error_frame(socket.log[-1], status=413, code="message_too_large")
    assert "WEBSOCKET_MAX_MESSAGE_BYTES" in message
    assert str(LIMIT) in message
    assert str(size) in message
    await (await open_socket(server)).ask("Hello")


async def test_the_limit_counts_bytes_and_takes_what_just_fits(socket: Socket) -> None:
    frame = json.dumps({**CREATE, "input": "Hello", "metadata": None, "user_data": ""}, ensure_ascii=False)
    await socket.send(frame[:-2] + "é" * ((LIMIT - len(frame)) // 2) + frame[-2:])
    assert (await socket.answer())[-1]["type"] == "response.completed"
    await socket.send(frame[:-2] + "é" * (LIMIT // 2) + frame[-2:])
    assert await socket.closed() == 1009


async def test_a_body_over_the_limit_in_chunks(http: httpx.AsyncClient) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b'{"input": "'
        for _ in range(9):
            yield b"x" * (LIMIT // 8)
        yield b'"}'

    answer = await http.post("/responses", content=chunks(), headers=JSON)
    read_error_answer(answer, status=413, code="request_too_large")


async def test_a_body_in_chunks(http: httpx.AsyncClient) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b'{"input": '
        yield b'"Hello"}'

    assert (await http.post("/responses", content=chunks(), headers=JSON)).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "bad host"])
async def test_a_host_that_is_not_ours(http: httpx.AsyncClient, host: str) -> None:
    answer = await http.get("/models", headers={"host": host})
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert "ALLOWED_HOSTS" in error["message"]
    read_message(error["message"])
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("headers", [{}, bearer("sk-wrong")])
async def test_the_upgrade_is_answered_with_a_plain_401(closed: ClosedServer, headers: dict[str, str]) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await Socket.open(closed.ws_url, additional_headers=headers)
    answer = refused.value.response
    assert answer.status_code == 401
    assert json.loads(answer.body)["error"]["code"] == "invalid_api_key"
    assert answer.headers["x-request-id"]
    assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_a_browser_may_have_its_key_in_a_subprotocol(closed: ClosedServer) -> None:
    key = closed.new_key()
    offered = ["realtime", f"openai-insecure-api-key.{key}"]
    async with await Socket.open(closed.ws_url, subprotocols=offered) as socket:
        assert socket.raw.subprotocol == "realtime"
    with pytest.raises(InvalidStatus):
        await Socket.open(closed.ws_url, subprotocols=["realtime", "openai-insecure-api-key.sk-wrong"])
