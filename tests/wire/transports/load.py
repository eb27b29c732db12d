"""Clients that talk to a server until it is gone or they are told to stop, and note what they were promised."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
from websockets.exceptions import ConnectionClosed

from tests.kit.clients import Frame, Socket, http_client, server_sent
from tests.kit.raw_streams import CUT, RawStream
from tests.kit.scripts import WEATHER
from tests.kit.server import Server
from tests.kit.waiting import eventually


@dataclass
class Promises:
    """What clients saw: `seen` are responses that ended, `accepted` and `begun` (ids) those in the background."""

    seen: list[Frame] = field(default_factory=list)
    accepted: list[Frame] = field(default_factory=list)
    begun: set[str] = field(default_factory=set)

    @property
    def total(self) -> int:
        """How many of all."""
        return len(self.seen) + len(self.accepted) + len(self.begun)

    @property
    def ids(self) -> set[str]:
        """The ids of all."""
        return {response["id"] for response in (*self.seen, *self.accepted)} | self.begun


def next_turn(parent: Frame | None, turn: int) -> dict[str, Any]:
    """Return what to ask after `parent`: a question, or what its call returned."""
    if parent is None:
        return {"input": f"Hello {turn}", "tools": [WEATHER]}
    known = {"previous_response_id": parent["id"], "tools": [WEATHER]}
    calls = [item for item in parent["output"] if item["type"] == "function_call"]
    if calls:
        output = {"type": "function_call_output", "call_id": calls[0]["call_id"], "output": "sunny"}
        return {"input": [output], **known}
    return {"input": f"[weather] {turn}" if turn % 3 == 0 else f"Hello {turn}", **known}


async def talk_over_websocket(server: Server, seen: list[Frame]) -> None:
    """Hold a conversation until the server is gone, on two lanes; note what was seen completed."""
    async with await Socket.open(server.ws_url) as socket:
        with suppress(ConnectionClosed):
            parents: dict[str, Frame | None] = {"a": None, "b": None}
            for turn in range(10_000):
                for lane in parents:
                    await socket.send({"type": "response.create", "stream_id": lane, **next_turn(parents[lane], turn)})
                for lane in parents:
                    last = (await socket.answer(lane))[-1]
                    assert last["type"] == "response.completed", last
                    parents[lane] = last["response"]
                    seen.append(last["response"])


async def talk_over_http(server: Server, seen: list[Frame], *, stream: bool) -> None:
    """The same over HTTP."""
    parent: Frame | None = None
    async with http_client(server) as http:
        with suppress(httpx.TransportError):
            for turn in range(10_000):
                body = {**next_turn(parent, turn), "stream": stream}
                if not stream:
                    parent = (await http.post("/responses", json=body)).json()
                else:
                    async with http.stream("POST", "/responses", json=body) as answer:
                        async for name, data in server_sent(answer):
                            if name == "response.completed" and isinstance(data, dict):
                                parent = data["response"]
                assert parent["status"] == "completed", parent
                seen.append(parent)


async def ask_in_background(server: Server, promises: Promises) -> None:
    """Create background responses, one after the other, and read none of them."""
    async with http_client(server) as http:
        with suppress(httpx.TransportError):
            for turn in range(10_000):
                answer = await http.post("/responses", json={"input": f"Hello {turn}", "background": True})
                if answer.status_code == 200:
                    promises.accepted.append(answer.json())
                else:
                    assert answer.status_code == 429, answer.text
                    await asyncio.sleep(0.02)


async def begin_streams(server: Server, promises: Promises) -> None:
    """Begin streams, read their first event, and let them go on."""
    with ExitStack() as stack, suppress(*CUT):
        for turn in range(10_000):
            stream = await RawStream.create(server, input=f"Hello {turn}", background=bool(turn % 2))
            stack.callback(stream.kill)
            (created,) = await stream.take(1)
            if created["response"]["background"]:  # another is kept while it runs already
                promises.begun.add(created["response"]["id"])


@asynccontextmanager
async def under_load(server: Server, *, enough: int) -> AsyncIterator[Promises]:
    """Let clients of every kind talk; enter when they were promised `enough`, and wait at the end until they stop."""
    promises = Promises()
    talks = [
        asyncio.create_task(talk)
        for talk in (
            talk_over_websocket(server, promises.seen),
            talk_over_http(server, promises.seen, stream=False),
            talk_over_http(server, promises.seen, stream=True),
            ask_in_background(server, promises),
            begin_streams(server, promises),
        )
    ]
    try:
        await eventually(lambda: promises.total >= enough or any(talk.done() for talk in talks))
        yield promises
    finally:
        if server.is_running:
            for talk in talks:
                talk.cancel()
        results = await asyncio.gather(*talks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result
