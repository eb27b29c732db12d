"""Clients whose responses wait for the engine, on a real server: they hear of it, and hear that they are not forgotten.

The engine does one turn at a time here, and something has it until a test lets that go.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from tests.kit.clients import Socket, http_client, read_error_frame, server_sent, text_of
from tests.kit.fixtures import module_server
from tests.kit.scripts import gate, main_script, release
from tests.kit.server import Server
from tests.kit.waiting import eventually

BEGINNING = ["response.created", "response.queued", "response.in_progress"]


server = module_server(
    "queued",
    script=main_script,
    journal=True,
    engine_max_running=1,
    engine_max_queued="2,flex=1",
    responses_ping_interval_seconds=0.1,
)


@asynccontextmanager
async def busy(server: Server, http: httpx.AsyncClient, name: str) -> AsyncIterator[None]:
    """Have the engine with a response that goes on once `release(server, name)` was called, and is waited for."""
    asked = asyncio.create_task(http.post("/responses", json={"input": gate(name)}))
    await in_flight(server, http, 1)
    yield
    release(server, name)
    assert (await asked).json()["status"] == "completed"
    assert (await http.get(f"{server.url}/ready")).json()["engine_queued"] == 0


async def in_flight(server: Server, http: httpx.AsyncClient, count: int) -> None:
    """Wait until so many responses run or wait."""
    async with asyncio.timeout(15):
        while (await http.get(f"{server.url}/ready")).json()["responses_in_flight"] != count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_stream_says_that_it_waits_beats_meanwhile_and_goes_on(server: Server, http: httpx.AsyncClient) -> None:
    lines: list[str] = []
    async with (
        busy(server, http, "a0"),
        http.stream("POST", "/responses", json={"input": "Hello", "stream": True}) as answer,
    ):
        async for line in answer.aiter_lines():
            lines.append(line)
            if line.startswith('data: {"type":"response.queued"'):
                response_id = json.loads(line.removeprefix("data: "))["response"]["id"]
                assert (await http.get(f"/responses/{response_id}")).json()["status"] == "queued"
            if lines[-4:].count(": ping") == 2:
                release(server, "a0")
            if line == "data: [DONE]":
                break
    events = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    assert events[:3] == BEGINNING
    assert events[-1] == "response.completed"
    async with http.stream("GET", f"/responses/{response_id}", params={"stream": "true"}) as again:
        told = [data async for _, data in server_sent(again)]
    assert told == [json.loads(line[6:]) if "{" in line else "[DONE]" for line in lines if line.startswith("data: ")]


async def test_lanes_wait_are_steered_and_cancelled(server: Server, http: httpx.AsyncClient) -> None:
    async with busy(server, http, "b0"), await Socket.open(server.ws_url) as socket:
        await socket.create("Hello", "steered")
        queued = (await socket.until("response.queued", "steered"))[-1]["response"]
        assert queued["status"] == "queued"
        await socket.send({"type": "response.steer", "previous_response_id": queued["id"], "input": "and more"})
        ended = (await socket.answer("steered"))[-1]["response"]
        assert (ended["status"], ended["incomplete_details"]) == ("incomplete", {"reason": "steered"})
        successor = (await socket.until("response.queued", "steered"))[-1]["response"]
        assert successor["previous_response_id"] == ended["id"]
        await socket.create("Hello", "cancelled")
        queued = (await socket.until("response.queued", "cancelled"))[-1]["response"]
        await socket.send({"type": "response.cancel", "response_id": queued["id"]})
        cancelled = (await socket.answer("cancelled"))[-1]
        assert (cancelled["type"], cancelled["response"]["status"]) == ("response.incomplete", "cancelled")
        await eventually(lambda: socket.raw.pings > 0)
        release(server, "b0")
        completed = (await socket.answer("steered"))[-1]["response"]
        assert (completed["id"], text_of(completed)) == (successor["id"], "Hello there, friend.")


async def test_where_too_many_wait_one_more_hears_when_to_come_back(server: Server, http: httpx.AsyncClient) -> None:
    async with busy(server, http, "c0"), await Socket.open(server.ws_url) as socket:
        for lane in ("one", "two"):
            await socket.create("Hello", lane)
            await socket.until("response.queued", lane)
        refused = await http.post("/responses", json={"input": "Hello"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_is_overloaded")
        assert "ENGINE_MAX_QUEUED" in refused.json()["error"]["message"]
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        await socket.create("Hello", "three")
        read_error_frame(await socket.error("three"), status=503, code="server_is_overloaded")
        await socket.create("Hello", "flex", service_tier="flex")
        tier = (await socket.until("response.queued", "flex"))[-1]["response"]["service_tier"]
        assert tier == "flex"
        await socket.create("Hello", "more", service_tier="flex")
        message = read_error_frame(await socket.error("more"), status=503, code="server_is_overloaded")
        assert "'flex'" in message
        release(server, "c0")
        for lane in ("one", "two", "flex"):
            assert (await socket.answer(lane))[-1]["type"] == "response.completed"


def test_a_stop_while_some_wait_tells_them_to_come_back(tmp_path: Path) -> None:
    with Server(tmp_path, script=[{"say": "", "hang_after": 0}], engine_max_running=1) as server:

        async def ask() -> list[httpx.Response]:
            async with http_client(server) as http:
                asked = [asyncio.create_task(http.post("/responses", json={"input": "Hello"})) for _ in range(3)]
                await in_flight(server, http, 3)
                await asyncio.to_thread(server.stop)
                return list(await asyncio.gather(*asked))

        answers = asyncio.run(ask())
    assert [answer.status_code for answer in answers] == [503] * 3
    assert {answer.json()["error"]["code"] for answer in answers} == {"server_is_overloaded"}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers)
