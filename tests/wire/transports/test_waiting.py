"""Responses that wait for outputs of their client's tools, over real servers: streams, the WebSocket, background."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.kit.background import begin, get
from tests.kit.clients import Frame, http_client, read_error_answer, server_sent, text_of
from tests.kit.fixtures import server_of_each_kind
from tests.kit.laws import assert_laws
from tests.kit.oracle import validate_response
from tests.kit.pairs import LONG_LEASE, Pair, Reader
from tests.kit.raw_streams import RawStream
from tests.kit.redis_server import RedisServer
from tests.kit.scripts import CALL, HELLO, TWICE, WEATHER
from tests.kit.server import Server
from tests.kit.stored import stored
from tests.kit.waiting import eventually
from tests.wire.transports.conftest import Connect

WAIT = {"Respsite-Tool-Mode": "wait"}
SCRIPT = [{"when": "[weather]", "say": CALL}, {"when": "[twice]", "say": TWICE}, {"say": HELLO}]
TOOLS = [WEATHER]
MAX_OUTPUT = 2048


# It has a short patience for silence and a small bound of outputs.
server = server_of_each_kind(
    "waiting", script=SCRIPT, responses_max_tool_output_bytes=MAX_OUTPUT, responses_ping_interval_seconds=0.1
)


async def give(http: httpx.AsyncClient, response_id: str, call_id: str, output: object = "18 °C") -> httpx.Response:
    """Say what came of a call."""
    return await http.post(f"/responses/{response_id}/tool_outputs", json={"tool_call_id": call_id, "output": output})


def calls_of(events: list[Frame]) -> list[str]:
    """Return the ids of the calls that were said."""
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    return [item["call_id"] for item in done if item["type"] == "function_call"]


async def test_a_stream_goes_on_where_it_waited(server: Server, http: httpx.AsyncClient) -> None:
    body = {"input": "[weather]", "tools": TOOLS, "stream": True}
    async with http.stream("POST", "/responses", json=body, headers=WAIT) as answer:
        events, lines = [], answer.aiter_lines()
        async for line in lines:
            if line == ": ping" and calls_of(events):
                break  # it says that it lives while it waits
            if line.startswith("data: "):
                events.append(json.loads(line[6:]))
        response_id, [call_id] = events[0]["response"]["id"], calls_of(events)
        assert (await get(http, response_id))["status"] == "in_progress"
        parts = [{"type": "output_text", "text": "18 °C"}, {"type": "output_text", "text": "[or so]"}]
        taken = await give(http, response_id, call_id, parts)
        assert (taken.status_code, taken.json()) == (200, {"id": response_id, "status": "in_progress"})
        async for line in lines:
            if line.startswith("data: {"):
                events.append(json.loads(line[6:]))
    assert_laws(events)
    response = events[-1]["response"]
    assert [item["type"] for item in response["output"]] == ["function_call", "function_call_output", "message"]
    validate_response(response)
    kept = await get(http, response_id)
    assert kept == response
    again = [event async for _, event in server_sent_of(http, response_id)]
    assert again == events


async def server_sent_of(http: httpx.AsyncClient, response_id: str) -> AsyncIterator[tuple[str, Frame]]:
    """Read a response's stream again."""
    async with http.stream("GET", f"/responses/{response_id}", params={"stream": "true"}) as answer:
        async for name, event in server_sent(answer):
            if isinstance(event, dict):
                yield name, event


async def test_over_the_websocket_with_two_calls(server: Server, http: httpx.AsyncClient, open_socket: Connect) -> None:
    socket = await open_socket(server, additional_headers=WAIT)
    await socket.create("[twice]", tools=TOOLS, store=False)
    events = await socket.until("response.output_item.done")
    events += await socket.until("response.output_item.done")
    response_id, [first, second] = events[0]["response"]["id"], calls_of(events)
    assert (await give(http, response_id, second, "2")).status_code == 200
    assert (await give(http, response_id, first, "1")).status_code == 200
    events += await socket.answer()
    assert_laws(events)
    outputs = [item["output"] for item in events[-1]["response"]["output"] if "output" in item]
    assert outputs == ["1", "2"]
    following = await socket.ask("And?", previous_response_id=response_id, tools=TOOLS, store=False)
    assert text_of(following) == "Hello there, friend."


async def test_what_does_not_wait(server: Server, http: httpx.AsyncClient, open_socket: Connect) -> None:
    """A plain answer, a stream without the mode, and turns of one id: they end with their calls."""
    body = {"input": "[weather]", "tools": TOOLS}
    plain = (await http.post("/responses", json=body, headers=WAIT)).json()
    assert plain["status"] == "completed"
    call_id = plain["output"][0]["call_id"]
    refused = await give(http, plain["id"], call_id)
    assert "does not wait" in read_error(refused, 409, "response_id")
    one_id = {**WAIT, "Respsite-Dialect": "codex-turn"}
    for headers in ({"Respsite-Tool-Mode": "Complete"}, one_id):
        streamed = await http.post("/responses", json={**body, "stream": True}, headers=headers)
        assert "response.completed" in streamed.text
    socket = await open_socket(server, additional_headers=one_id)
    assert (await socket.ask("[weather]", tools=TOOLS))["output"][-1]["type"] == "function_call"


def read_error(answer: httpx.Response, status: int, param: str) -> str:
    """Check an error that has no code."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    types = {404: "invalid_request_error", 409: "conflict_error"}
    assert (error["type"], error["code"], error["param"]) == (types[status], None, param)
    return str(error["message"])


async def test_bad_input(server: Server, http: httpx.AsyncClient, open_socket: Connect) -> None:
    socket = await open_socket(server, additional_headers=WAIT)
    await socket.create("[weather]", tools=TOOLS)
    events = await socket.until("response.output_item.done")
    response_id, [call_id] = events[0]["response"]["id"], calls_of(events)
    url = f"/responses/{response_id}/tool_outputs"
    read_error(await give(http, response_id, "call_nobody"), 404, "tool_call_id")
    read_error(await give(http, "resp_nobody", call_id), 404, "response_id")
    for output in (7, None, {"text": "x"}, [7], [{"type": "strange"}]):
        answer = await give(http, response_id, call_id, output)
        assert (answer.status_code, answer.json()["error"]["param"].startswith("output")) == (400, True), answer.text
    for body in ({"output": "x"}, {"tool_call_id": 7, "output": "x"}, {"tool_call_id": "", "output": "x"}):
        answer = await http.post(url, json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tool_call_id"), answer.text
    large = await give(http, response_id, call_id, "x" * MAX_OUTPUT)
    message = read_error_answer(large, status=413, code="request_too_large", param="output")
    assert "RESPONSES_MAX_TOOL_OUTPUT_BYTES" in message
    assert (await http.get(url)).status_code == 405
    answers = await asyncio.gather(*(give(http, response_id, call_id, str(number)) for number in range(3)))
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409]
    assert (await socket.answer())[-1]["type"] == "response.completed"
    read_error(await give(http, response_id, call_id), 409, "response_id")


async def test_an_unknown_mode_is_refused(server: Server, http: httpx.AsyncClient, open_socket: Connect) -> None:
    answer = await http.post("/responses", json={"input": "hi"}, headers={"Respsite-Tool-Mode": "hang"})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, "Respsite-Tool-Mode", "invalid_value")
    assert "'complete' and 'wait'" in error["message"]
    socket = await open_socket(server, additional_headers={"Respsite-Tool-Mode": "hang"})
    frame = await socket.error()
    assert (frame["status"], frame["error"]["param"]) == (400, "Respsite-Tool-Mode")
    assert await socket.closed() == 1000


def pair_of(folder: Path, **settings: object) -> Pair:
    """Return two workers on one database, not started."""
    pair = Pair(folder, delay=0, responses_tool_mode="wait", **settings)
    for worker in pair.workers:
        worker.script.write_text(json.dumps(SCRIPT))
    return pair


async def test_through_another_worker(folder: Path, redis: RedisServer) -> None:
    pair = pair_of(folder, redis_url=redis.url, worker_lease_seconds=LONG_LEASE)
    owner, other = pair.workers
    with owner, other:
        for fields in ({}, {"store": False}):
            stream = await RawStream.create(owner, input="[weather]", tools=TOOLS, **fields)
            events = await stream.until("response.output_item.done")
            response_id, [call_id] = events[0]["response"]["id"], calls_of(events)
            async with http_client(other) as http:
                read_error(await give(http, response_id, "call_nobody"), 404, "tool_call_id")
                assert (await give(http, response_id, call_id)).status_code == 200
            events += await stream.rest()
            assert events[-1]["type"] == "response.completed"
        stream = await RawStream.create(owner, input="[weather]", tools=TOOLS)
        events = await stream.until("response.output_item.done")
        async with http_client(other) as http:
            read_error(await give(http, response_id, call_id), 404, "response_id")
            await asyncio.to_thread(owner.kill)
            refused = await give(http, events[0]["response"]["id"], calls_of(events)[0])
            assert refused.status_code == 503, "nobody runs it now"
        stream.kill()


@pytest.mark.parametrize("moment", ["before any output", "between two outputs"])
@pytest.mark.each_database
async def test_its_worker_is_killed_while_it_waits(folder: Path, redis: RedisServer, moment: str) -> None:
    pair = pair_of(folder, redis_url=redis.url)
    owner, heir = pair.workers
    try:
        for worker in pair.workers:
            await asyncio.to_thread(pair.start, worker)
        async with http_client(owner) as http, http_client(heir) as elsewhere:
            response = await begin(http, "[twice]", tools=TOOLS)
            first_reader = await RawStream.resume(owner, response["id"])
            events = await first_reader.until("response.output_item.done")
            events += await first_reader.until("response.output_item.done")
            outputs = list(zip(calls_of(events), ("one", "two"), strict=True))
            if moment == "between two outputs":
                assert (await give(elsewhere, response["id"], *outputs.pop(0))).status_code == 200
            first_reader.kill()
            await asyncio.to_thread(pair.kill, owner)
            for output in outputs:
                await eventually(lambda output=output: was_given(elsewhere, response["id"], output))  # type: ignore[misc]
            reader = Reader(pair, response["id"], chance=random.Random(1))
            await reader.read()
        assert reader.events[: len(events)] == events
        assert_laws(reader.events)
        done = reader.events[-1]["response"]
        assert (done["status"], text_of(done)) == ("completed", "Hello there, friend.")
        assert [item["output"] for item in done["output"] if "output" in item] == ["one", "two"]
        epochs = {row[0]: row[1] for row in stored(heir, "SELECT id, epoch FROM responses_app_response")}
        assert epochs[response["id"]] == 2
    finally:
        for worker in pair.workers:
            if worker.is_running:
                worker.stop()


async def was_given(http: httpx.AsyncClient, response_id: str, output: tuple[str, str]) -> bool:
    """Try as clients do; whether it was taken."""
    answer = await give(http, response_id, *output)
    assert answer.status_code in (200, 503), answer.text
    return answer.status_code == 200
