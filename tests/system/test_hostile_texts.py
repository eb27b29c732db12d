"""No text within the limits, in whatever field, holds up the others: the loop never stops for more than 200 ms.

The one test of time in this suite. `tests.kit.heartbeat` measures inside the server's process; a stop that is too long
is tried twice more, since on a busy machine a thread may hold the interpreter's lock and get no processor.

Only this finds a text that stops the loop for everybody.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import cycle, islice

import httpx
import pytest

from tests.kit import heartbeat
from tests.kit.clients import Frame, Socket, http_client
from tests.kit.fixtures import module_server
from tests.kit.hostile import TEXTS, hostile_text
from tests.kit.server import Server

SIZE = 1_000_000  # bytes of each text
MAX_STOP = 0.2  # seconds
NUMBER = 80

Send = Callable[[httpx.AsyncClient, Server, str], Awaitable[None]]


server = module_server("hostile", application=heartbeat.APPLICATION)


def post(path: str, body: Callable[[str], Frame]) -> Send:
    """Return what posts a body that is made of a text; any answer will do but a failure of the server."""

    async def send(http: httpx.AsyncClient, server: Server, text: str) -> None:
        answer = await http.post(path, json=body(text), timeout=60)
        assert answer.status_code in (200, 400, 413), answer.text[:300]

    return send


def create(body: Callable[[str], Frame]) -> Send:
    return post("/responses", lambda text: {"input": "Hello", "max_output_tokens": 200, **body(text)})


def frame(body: Callable[[str], Frame]) -> Send:
    """Return what sends a `response.create` frame, and reads what comes of it."""

    async def send(http: httpx.AsyncClient, server: Server, text: str) -> None:
        async with await Socket.open(server.ws_url) as socket:
            await socket.create(**{"text": "Hello", "max_output_tokens": 200, **body(text)})
            assert (await socket.answer())[-1]["type"] != "response.failed"

    return send


async def conversation(http: httpx.AsyncClient, server: Server, text: str) -> None:
    """Keep a text in a conversation, and continue that."""
    kept = await http.post("/conversations", json={"items": [{"role": "user", "content": text}]}, timeout=60)
    assert kept.status_code == 200
    await create(lambda _: {"conversation": kept.json()["id"]})(http, server, text)


async def chain(http: httpx.AsyncClient, server: Server, text: str) -> None:
    """Continue a response that was asked with a text, if the model takes it, and look at it."""
    first = await http.post("/responses", json={"input": text, "max_output_tokens": 200}, timeout=60)
    assert first.status_code in (200, 400)
    if first.status_code == 200:
        path = f"/responses/{first.json()['id']}"
        assert (await http.get(path)).status_code == (await http.get(f"{path}/input_items")).status_code == 200
        await create(lambda _: {"previous_response_id": first.json()["id"]})(http, server, text)


def function(**fields: object) -> Frame:
    return {"input": "call lookup for “it", "tools": [{"type": "function", "name": "lookup", **fields}]}


def schema(**fields: object) -> Frame:
    return function(parameters={"type": "object", "properties": {"a": {"type": "string", **fields}}})


CALL = {"type": "function_call", "call_id": "call_1", "name": "lookup", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "1"}


def part(kind: str, text: str) -> list[Frame]:
    return [{"type": kind, "text": text}]


FIELDS: dict[str, Send] = {
    "input": create(lambda text: {"input": text}),
    "a part of the input": create(lambda text: {"input": [{"role": "user", "content": part("input_text", text)}]}),
    "a developer's message": create(lambda text: {"input": [{"role": "developer", "content": text}]}),
    "an assistant's message": create(lambda text: {"input": [{"role": "assistant", "content": text}]}),
    "reasoning": create(
        lambda text: {"input": [{"type": "reasoning", "summary": [], "content": part("reasoning_text", text)}]}
    ),
    "instructions": create(lambda text: {"instructions": text}),
    "arguments": create(lambda text: {"input": [{**CALL, "arguments": text}, OUTPUT]}),
    "a tool's output": create(lambda text: {"input": [CALL, {**OUTPUT, "output": text}]}),
    "a part of a tool's output": create(lambda text: {"input": [CALL, {**OUTPUT, "output": part("input_text", text)}]}),
    "an item that is passed through": create(
        lambda text: {"input": [{"type": "web_search_call", "id": "ws_1", "x": text}, {"role": "user", "content": "a"}]}
    ),
    "a tool's description": create(lambda text: function(description=text)),
    "a tool's name": create(lambda text: function(name=text)),
    "a schema's description": create(lambda text: schema(description=text)),
    "a schema's enum": create(lambda text: schema(enum=[text])),
    "a schema's default": create(lambda text: schema(default={"b": [text]})),
    "a schema's name": create(lambda text: function(parameters={"type": "object", "properties": {text: {}}})),
    "metadata": create(lambda text: {"metadata": {"a": text}}),
    "user": create(lambda text: {"user": text}),
    "model": create(lambda text: {"model": text}),
    "a call's id": create(lambda text: {"input": [{**OUTPUT, "call_id": text}]}),
    "an id before": create(lambda text: {"previous_response_id": text}),
    "an unknown field": create(lambda text: {text: text}),
    "a stream": create(lambda text: {"input": text, "stream": True}),
    "in the background": create(lambda text: {"input": text, "background": True}),
    "truncation": create(lambda text: {"input": text, "truncation": "auto"}),
    "a threshold": create(
        lambda text: {
            "input": [{"role": "user", "content": text}, {"role": "user", "content": "Hello"}],
            "context_management": [{"type": "compaction", "compact_threshold": 1000}],
        }
    ),
    "input tokens": post("/responses/input_tokens", lambda text: {"input": text, "instructions": text[:100_000]}),
    "compact": post("/responses/compact", lambda text: {"model": "demo", "input": text}),
    "compact instructions": post(
        "/responses/compact", lambda text: {"model": "demo", "input": "Hello", "instructions": text}
    ),
    "a conversation": conversation,
    "a conversation's title": post("/conversations", lambda text: {"title": text}),
    "a chain": chain,
    "a frame's input": frame(lambda text: {"text": text}),
    "a frame's instructions": frame(lambda text: {"instructions": text}),
    "a frame's tool": frame(lambda text: function(description=text)),
    "a frame's output": frame(lambda text: {"text": [CALL, {**OUTPUT, "output": text}], "store": False}),
    "a frame's lane": frame(lambda text: {"extra": text}),
}
ORDER = (*TEXTS[::2], *TEXTS[1::2])  # so that a part of them has every end, and every other block with each
CORPUS = list(islice(zip(cycle(ORDER), cycle(FIELDS), strict=False), NUMBER))


@pytest.fixture
async def http(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with http_client(server) as client:
        yield client


async def test_no_text_stops_the_loop(server: Server, http: httpx.AsyncClient) -> None:
    stops = {}
    for name, field in CORPUS:
        stop = await stop_of(server, http, name, field)
        if stop > MAX_STOP:
            stop = min(stop, *[await stop_of(server, http, name, field) for _ in range(2)])
        stops[name, field] = stop
    too_long = {each: round(stop, 3) for each, stop in stops.items() if stop > MAX_STOP}
    assert not too_long
    assert len(stops) == NUMBER
    assert "Traceback" not in server.output


async def stop_of(server: Server, http: httpx.AsyncClient, name: str, field: str) -> float:
    """Send a text in a field, and return how long the loop stood still meanwhile."""
    text = hostile_text(name, SIZE)
    heartbeat.longest_stop(server)
    await FIELDS[field](http, server, text)
    return heartbeat.longest_stop(server)


def test_every_text_meets_a_field_and_every_field_several_texts() -> None:
    assert len(set(CORPUS)) == NUMBER
    assert {name for name, _ in CORPUS} >= set(ORDER[: NUMBER - 1])
    assert Counter(field for _, field in CORPUS).keys() == FIELDS.keys()


async def test_the_heartbeat_notices() -> None:
    beat = heartbeat.Heartbeat()
    await asyncio.sleep(0.05)
    beat.longest, end = 0.0, time.thread_time() + 0.1
    while time.thread_time() < end:
        pass
    await asyncio.sleep(0.05)
    assert beat.longest > 0.09
