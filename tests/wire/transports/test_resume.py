"""Streams that are picked up again: clients die at any moment, and miss nothing and get nothing twice."""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.formats.harmony.encoding import encode_harmony
from tests.kit.clients import Frame, Socket, http_client, raw_connection, ready, text_of
from tests.kit.laws import assert_laws
from tests.kit.raw_streams import RawStream
from tests.kit.scripts import BEGIN, Entry, gate, main_script, release
from tests.kit.server import KINDS, Server
from tests.kit.waiting import eventually

KILLS = 50
SLOW = f"{BEGIN}{' '.join(str(number) for number in range(150))}<|return|>"
LAG = 512 * 1024  # STREAM_MAX_LAG_BYTES
GRACE = 0.7  # RECONNECT_GRACE_SECONDS, of the one that is in a hurry
MADE = ("background", "sse", "websocket")


def script(folder: Path) -> list[Entry]:
    """Return the main script, `[slow]`, which takes its time, and `[heavy]`: 11.6 MB in 1000 events.

    That is more than the kernel takes for a reader that reads nothing (4 MB), and the bound of the lag.
    """
    line = encode_harmony("-" * 96)
    assert len(line) == 1
    heavy = [*encode_harmony(BEGIN), *(line * 120_000), *encode_harmony("<|return|>")]
    return [
        {"when": "[slow]", "say": SLOW, "delay": 0.002},
        {"when": "[heavy]", "tokens": heavy, "chunk_tokens": 120, "delay": 0.002},
        *main_script(folder),
    ]


@pytest.fixture(scope="module")
def servers(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """Those that were needed so far: one of each kind, and one that keeps little."""
    started: dict[str, Server] = {}
    yield started
    for server in started.values():
        server.stop()
        assert "Traceback" not in server.output, server.log


def _start(servers: dict[str, Server], name: str, factory: pytest.TempPathFactory, **settings: object) -> Server:
    if name not in servers:
        folder = factory.mktemp(name)
        server = Server(folder, script=script(folder), stream_max_lag_bytes=LAG, **settings)  # type: ignore[arg-type]
        servers[name] = server.start()
    return servers[name]


@pytest.fixture(params=KINDS)
def server(
    request: pytest.FixtureRequest, servers: dict[str, Server], tmp_path_factory: pytest.TempPathFactory
) -> Server:
    """A server that waits long for its clients."""
    kind = str(request.param)
    return _start(servers, kind, tmp_path_factory, kind=kind, reconnect_grace_seconds=30)


@pytest.fixture
def brief(servers: dict[str, Server], tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A server that keeps streams for two seconds, and waits `GRACE` for its clients."""
    return _start(servers, "brief", tmp_path_factory, responses_session_ttl=2, reconnect_grace_seconds=GRACE)


@pytest.fixture
def small(servers: dict[str, Server], tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A server that keeps three streams, for long, and waits long for its clients."""
    return _start(servers, "small", tmp_path_factory, responses_max_active_sessions=3, reconnect_grace_seconds=30)


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


async def test_a_slow_reader_is_dropped_and_costs_nobody_anything(server: Server) -> None:
    client = Client(server, "background")
    await client.begin("[heavy]", 4)
    with raw_connection(server.port) as slow:
        slow.sendall(f"GET /v1/responses/{client.response_id}?stream=true HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert b"200" in slow.recv(64)
        await client.finish()
    assert [event["sequence_number"] for event in client.events] == list(range(len(client.events)))
    assert f"response {client.response_id}: a reader fell more than STREAM_MAX_LAG_BYTES behind" in server.output
    assert client.events[-1]["type"] == "response.completed"


# What is kept, and for how long.


async def nobody_came_back(server: Server, response_id: str) -> bool:
    """Say whether a response was cancelled."""
    return bool((await stored(server, response_id))["status"] == "cancelled")


@pytest.mark.parametrize("made", ["sse", "websocket"])
async def test_who_does_not_come_back_in_time_is_not_waited_for(brief: Server, made: str) -> None:
    client = Client(brief, made)
    began = time.monotonic()
    await client.begin("[hang]", 6)
    status = (await stored(brief, client.response_id))["status"]
    assert status == "in_progress" or time.monotonic() - began >= GRACE
    await eventually(lambda: nobody_came_back(brief, client.response_id))
    response = await stored(brief, client.response_id)
    said = "".join(event["delta"] for event in client.events if event["type"] == "response.output_text.delta")
    assert said
    assert text_of(response).startswith(said)
    await client.finish()
    assert_laws(client.events)
    assert "and did not come back" in brief.output


async def test_another_reader_is_enough_to_wait_for(brief: Server) -> None:
    client = Client(brief, "websocket")
    socket = await Socket.open(brief.ws_url)
    await socket.create(gate("c0"))
    client.events = await socket.until("response.output_text.delta")
    stream = await RawStream.resume(brief, client.response_id, client.events[-2]["sequence_number"])
    assert await stream.take(1) == client.events[-1:]
    socket.raw.transport.abort()
    other = Client(brief, "sse")
    await other.begin("[hang]", 5)
    await eventually(lambda: nobody_came_back(brief, other.response_id))  # the grace of another is over by then
    release(brief, "c0")
    client.events += await stream.rest()
    assert client.events[-1]["type"] == "response.completed"
    await hold_to_the_laws(client)


@pytest.mark.each_database
async def test_a_stream_is_read_from_its_log_after_its_time(brief: Server) -> None:
    client = Client(brief, "sse")
    await client.begin("Hello", 1)
    await client.finish()
    assert await replayed(brief, client.response_id) == client.events
    await eventually(lambda: _keeps_none(brief))
    assert await replayed(brief, client.response_id) == client.events
    assert await _keeps_none(brief)
    assert (await stored(brief, client.response_id))["status"] == "completed"


async def _keeps_none(server: Server) -> bool:
    said = await ready(server)
    assert (said["streams_kept"] == 0) == (said["streams_kept_bytes"] == 0)
    return bool(said["streams_kept"] == 0)


async def test_streams_that_are_read_are_never_given_up_for_others(small: Server) -> None:
    sockets = [await Socket.open(small.ws_url) for _ in range(5)]
    for socket in sockets:
        await socket.create(gate("c1"))
        await socket.until("response.output_text.delta")
    assert (await ready(small))["streams_kept"] == 3
    release(small, "c1")
    for socket in sockets:
        assert (await socket.answer())[-1]["type"] == "response.completed"
        await socket.raw.close()
