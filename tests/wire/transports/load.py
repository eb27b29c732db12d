"""Clients that talk to a server until it is gone or they are told to stop, and note what they were promised."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field

import httpx

from tests.kit.clients import Frame, http_client
from tests.kit.raw_streams import CUT, RawStream
from tests.kit.server import Server
from tests.kit.waiting import eventually
from tests.wire.transports.test_durability import talk_over_http, talk_over_websocket


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
