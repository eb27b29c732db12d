"""Streams that are picked up again: clients die at any moment, and miss nothing and get nothing twice."""

import random

import pytest

from tests.kit.clients import Frame, Socket, http_client
from tests.kit.fixtures import server_of_each_kind
from tests.kit.laws import assert_laws
from tests.kit.raw_streams import RawStream
from tests.kit.scripts import BEGIN
from tests.kit.server import Server

KILLS = 50
SLOW = f"{BEGIN}{' '.join(str(number) for number in range(150))}<|return|>"
MADE = ("background", "sse", "websocket")

# It waits long for its clients.
server = server_of_each_kind(
    "resumed", script=[{"when": "[slow]", "say": SLOW, "delay": 0.002}], reconnect_grace_seconds=30
)


class Client:
    """Reads one response in pieces, each over a connection of its own; `events` is what it has seen."""

    def __init__(self, server: Server, made: str) -> None:
        self.server = server
        self.made = made
        self.events: list[Frame] = []
        self.kills = 0

    @property
    def response_id(self) -> str:
        """The id of the response."""
        return str(self.events[0]["response"]["id"])

    async def begin(self, text: str, count: int) -> None:
        """Create a response, read some events, and die."""
        if self.made == "websocket":
            socket = await Socket.open(self.server.ws_url)
            await socket.create(text)
            self.events += [await socket.next() for _ in range(count)]
            socket.raw.transport.abort()
        else:
            stream = await RawStream.create(self.server, input=text, background=self.made == "background")
            self.events += await stream.take(count)
            stream.kill()
        self.kills += 1

    async def go_on(self, count: int) -> bool:
        """Come back, read some events, and die; return whether there were so many."""
        stream = await RawStream.resume(self.server, self.response_id, self.events[-1]["sequence_number"])
        seen = await stream.take(count)
        stream.kill()
        self.events += seen
        self.kills += 1
        return len(seen) == count

    async def finish(self) -> None:
        """Come back and stay."""
        last = self.events[-1]["sequence_number"] if self.events else None
        self.events += await (await RawStream.resume(self.server, self.response_id, last)).rest()


async def replayed(server: Server, response_id: str) -> list[Frame]:
    """Return all events of a response."""
    return await (await RawStream.resume(server, response_id)).rest()


async def stored(server: Server, response_id: str) -> Frame:
    """Return a response by its id."""
    async with http_client(server) as http:
        response: Frame = (await http.get(f"/responses/{response_id}")).json()
        return response


async def hold_to_the_laws(client: Client) -> None:
    """Check that a client has seen a whole response, just as it is kept."""
    assert_laws(client.events)
    assert client.events == await replayed(client.server, client.response_id)
    assert client.events[-1]["response"] == await stored(client.server, client.response_id)


@pytest.mark.parametrize("made", MADE)
async def test_a_client_that_is_killed_again_and_again_sees_everything_once(server: Server, made: str) -> None:
    chance = random.Random(made)
    client = Client(server, made)
    await client.begin("[slow]", chance.randint(1, 9))
    while client.kills < KILLS and await client.go_on(chance.choice((0, 1, 2, 3, 5, 9))):
        pass
    assert client.kills == KILLS, "the stream was too short"
    await client.finish()
    await hold_to_the_laws(client)
    assert client.events[-1]["type"] == "response.completed"
