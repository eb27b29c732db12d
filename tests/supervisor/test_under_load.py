"""Workers behind one socket with a Redis between them: what runs survives, whoever is killed, replaced or told to stop.

Clients here do what real ones do: where a connection breaks or the server says 503, they come again. Everything else
that goes wrong is a failure.
"""

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage

from tests.clients import Frame, Socket, http_client, text_of
from tests.protocol.laws import assert_laws
from tests.redis_server import RedisServer
from tests.supervisor.served import Supervised
from tests.transports.background import begin, get, until
from tests.transports.raw_streams import CUT, RawStream
from tests.transports.scripts import BEGIN
from tests.waiting import eventually

NUMBERS = " ".join(str(number) for number in range(150))
SCRIPT = [
    {"when": "[long]", "say": f"{BEGIN}{NUMBERS}<|return|>", "delay": 0.03},
    {"when": "[hang]", "say": f"{BEGIN}Hello<|return|>", "hang_after": 4},
    {"say": f"{BEGIN}Hello.<|return|>"},
]
WORKERS = 3
PAUSE = 0.1  # seconds between what one client does and what it does next
RETRIED = {  # by every client; the last three are what it sees where its connection ends as it asks
    *("503", "503 frame", "WebSocket 1012"),
    *("RemoteProtocolError", "ReadError", "ConnectionResetError"),
}
ENDS = ("response.completed", "response.incomplete", "response.failed")


@asynccontextmanager
async def workers(folder: Path, redis: RedisServer, **settings: object) -> AsyncIterator[Supervised]:
    """Serve with several workers."""
    usual = {"worker_lease_seconds": 5.0, "background_max_running": 40, "shutdown_grace_seconds": 60}
    server = Supervised(folder, workers=WORKERS, script=SCRIPT, redis_url=redis.url, **{**usual, **settings})
    await asyncio.to_thread(server.start)
    try:
        yield server
    finally:
        await asyncio.to_thread(server.stop)
    for noise in ("Traceback", "was never", "Task was destroyed", "Unhandled"):
        assert noise not in server.output, server.output[-3000:]


@asynccontextmanager
async def cutting(opening: Awaitable[RawStream]) -> AsyncIterator[RawStream]:
    """Open a stream, and leave nothing open."""
    stream = await opening
    try:
        yield stream
    finally:
        stream.kill()


class Load:
    """Clients of all kinds, until `enough`; what they were told, and how often they had to come again."""

    def __init__(self, server: Supervised) -> None:
        self.server = server
        self.enough = False
        self.completed = 0
        self.again: dict[str, int] = {}
        self.failed: list[Frame] = []
        self.background: dict[str, list[Frame]] = {}

    def come_again(self, why: str) -> None:
        """Note an error that clients try again after."""
        self.again[why] = self.again.get(why, 0) + 1

    async def read(self, response_id: str) -> None:
        """Read a background response's stream to its end, over as many connections as it takes."""
        events = self.background[response_id]
        while not events or events[-1]["type"] not in ENDS:
            last = events[-1]["sequence_number"] if events else None
            with suppress(*CUT):
                async with cutting(RawStream.resume(self.server, response_id, last)) as stream:
                    while (event := await stream.next()) is not None:
                        events.append(event)
            await asyncio.sleep(PAUSE)

    async def ask(self) -> None:
        """Ask for JSON over a connection that is kept."""
        async with http_client(self.server) as http:
            while not self.enough:
                try:
                    answer = await http.post("/responses", json={"input": "Hello"})
                except httpx.TransportError as error:
                    self.come_again(type(error).__name__)
                    continue
                self.look_at(answer)
                await asyncio.sleep(PAUSE)

    def look_at(self, answer: httpx.Response) -> None:
        """Count an answer; anything but 200 and 503 is a failure."""
        if answer.status_code == 503:
            assert "retry-after" in answer.headers
            self.come_again("503")
            return
        assert answer.status_code == 200, answer.text
        self.end(answer.json())

    def end(self, response: Frame) -> None:
        """Count a response that has ended."""
        if response["status"] == "completed":
            self.completed += 1
        else:
            self.failed.append(response)

    async def stream(self) -> None:
        """Stream, each time over a new connection."""
        while not self.enough:
            try:
                async with cutting(RawStream.create(self.server, input="[long]")) as stream:
                    events = await stream.rest()
            except (*CUT, AssertionError) as error:
                self.come_again(type(error).__name__)
                await asyncio.sleep(PAUSE)
                continue
            assert_laws(events)
            self.end(events[-1]["response"])

    async def talk(self) -> None:
        """Continue a chain over WebSockets; where one is closed, go on over the next."""
        parent: str | None = None
        while not self.enough:
            try:
                async with await Socket.open(self.server.ws_url) as socket:
                    while not self.enough:
                        await socket.create("Hello", **({"previous_response_id": parent} if parent else {}))
                        last = (await socket.answer())[-1]
                        if last["type"] == "error":
                            assert last["status"] == 503, last
                            self.come_again("503 frame")
                            continue
                        self.end(last["response"])
                        parent = last["response"]["id"] if last["type"] == "response.completed" else parent
                        await asyncio.sleep(PAUSE)
            except ConnectionClosed as closed:
                self.come_again(f"WebSocket {closed.rcvd.code if closed.rcvd else 1006}")
            except (OSError, InvalidHandshake, InvalidMessage) as error:
                self.come_again(type(error).__name__)

    async def run(self, during: Callable[[], object]) -> None:
        """Load the server while `during` happens, on a thread."""
        async with asyncio.timeout(240):
            async with http_client(self.server) as http:
                for _ in range(8):
                    self.background[(await begin(http, "[long]"))["id"]] = []
            clients = [asyncio.create_task(each()) for each in (self.ask, self.stream, self.talk) for _ in range(3)]
            readers = [asyncio.create_task(self.read(each)) for each in self.background]
            await eventually(lambda: self.completed >= 20, timeout=30)
            await asyncio.to_thread(during)
            before = self.completed
            await eventually(lambda: self.completed >= before + 20, timeout=30)
            self.enough = True
            await asyncio.gather(*clients, *readers)

    async def hold_to_the_promises(self) -> None:
        """Check that every background response is complete, as its reader and the store have it."""
        async with http_client(self.server) as http:
            for response_id, events in self.background.items():
                assert_laws(events)
                assert text_of(events[-1]["response"]) == NUMBERS
                assert await get(http, response_id) == events[-1]["response"]


async def test_a_rolling_replacement_fails_nothing(tmp_path: Path, redis: RedisServer) -> None:
    async with workers(tmp_path, redis) as server:
        before = server.pids()
        load = Load(server)

        def roll() -> None:
            began = time.monotonic()
            server.hup()
            server.wait_for_line("all workers are replaced", seconds=120)
            server.wait_for(lambda: len(server.pids()) == WORKERS, 60)
            print(f"replaced in {time.monotonic() - began:.1f} s; {load.completed} completed, again: {load.again}")

        await load.run(roll)
        assert not set(before) & set(server.pids())
        await load.hold_to_the_promises()
        assert [each["error"] for each in load.failed] == [], "what ran was waited for"
        assert set(load.again) <= RETRIED, load.again
        assert load.again.get("WebSocket 1012"), "each of the old ones said goodbye"


async def test_a_worker_that_is_killed_costs_nothing_in_the_background(tmp_path: Path, redis: RedisServer) -> None:
    async with workers(tmp_path, redis) as server:
        chance = random.Random(11)
        load = Load(server)

        def kill() -> None:
            for number in range(2):
                os.kill(chance.choice(server.pids()), signal.SIGKILL)
                server.wait_for_line(" serves\n", count=WORKERS + number + 1, seconds=60)
            print(f"{load.completed} completed, again: {load.again}")

        await load.run(kill)
        await load.hold_to_the_promises()
        assert [each["error"] for each in load.failed] == [], "the streams of a killed worker are cut, and come again"


async def test_a_background_response_outlives_all_workers(tmp_path: Path, redis: RedisServer) -> None:
    async with workers(tmp_path, redis, shutdown_grace_seconds=0) as server:
        async with http_client(server) as http:
            ids = [(await begin(http, "[long]"))["id"] for _ in range(6)]
        await asyncio.to_thread(server.stop)
        assert "goes to another worker: the server stops" in server.output
        await asyncio.to_thread(server.start)
        async with http_client(server) as http:
            for response_id in ids:
                assert text_of(await until(http, response_id, "completed", timeout=30)) == NUMBERS


async def test_what_one_worker_runs_any_other_cancels_and_follows(tmp_path: Path, redis: RedisServer) -> None:
    async with workers(tmp_path, redis, max_websocket_connections=6) as server:
        sockets = [await Socket.open(server.ws_url) for _ in range(6)]
        async with await Socket.open(server.ws_url) as one_more:
            assert (await one_more.error())["error"]["code"] == "websocket_connection_limit_reached"
        for number, socket in enumerate(sockets):
            assert (await socket.ask("Hello", f"lane{number}"))["status"] == "completed"
            await socket.raw.close()
        assert len(server.answered_by()) > 1, "the limit is one over several workers"

        async with http_client(server) as http:
            followed = await begin(http, "[long]")
            cancelled = [await begin(http, "[hang]") for _ in range(9)]
        streams = [await RawStream.resume(server, followed["id"]) for _ in range(9)]
        first, *others = await asyncio.gather(*(stream.rest() for stream in streams))
        assert_laws(first)
        assert others == [first] * 8

        for response in cancelled:
            async with http_client(server) as http:  # a connection of its own, to whichever worker takes it
                answer = await http.post(f"/responses/{response['id']}/cancel")
                assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
