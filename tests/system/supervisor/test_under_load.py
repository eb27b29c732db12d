"""Workers behind one socket with a Redis between them: what runs survives, whoever is killed, replaced or told to stop.

Only this finds an answer that is lost between two workers while clients of all kinds are at work.

Clients here do what real ones do: where a connection breaks or the server says 503, they come again. Everything else
that goes wrong is a failure.
"""

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus

from tests.kit.background import begin, get, until
from tests.kit.clients import Frame, Socket, http_client, text_of
from tests.kit.laws import assert_laws
from tests.kit.raw_streams import CUT, RawStream, Refused
from tests.kit.redis_server import RedisServer
from tests.kit.scripts import BEGIN
from tests.kit.served import Supervised
from tests.kit.waiting import eventually

NUMBERS = " ".join(str(number) for number in range(100))
SCRIPT = [
    {"when": "[long]", "say": f"{BEGIN}{NUMBERS}<|return|>", "delay": 0.015},
    {"when": "[longer]", "say": f"{BEGIN}{NUMBERS}<|return|>", "delay": 0.03},
    {"when": "[hang]", "say": f"{BEGIN}Hello<|return|>", "hang_after": 4},
    {"say": f"{BEGIN}Hello.<|return|>"},
]
WORKERS = 2
PAUSE = 0.2  # seconds between what one client does and what it does next
RETRIED = {  # by every client; all but the first three are what it sees where its connection ends as it asks
    *("503", "503 frame", "WebSocket 1012", "WebSocket 1006", "InvalidMessage"),
    *("RemoteProtocolError", "ReadError", "ConnectionResetError", "BrokenPipeError", "IncompleteReadError"),
}
PATIENCE = 120.0  # seconds in which some answers come on a machine that is busy
ENDS = ("response.completed", "response.incomplete", "response.failed")


@contextmanager
def workers(folder: Path, redis: RedisServer, **settings: object) -> Iterator[Supervised]:
    """Serve with several workers."""
    usual = {"worker_lease_seconds": 5.0, "background_max_running": 40, "shutdown_grace_seconds": 60}
    with Supervised(folder, workers=WORKERS, script=SCRIPT, redis_url=redis.url, **{**usual, **settings}) as server:
        yield server
    for noise in ("Traceback", "was never", "Task was destroyed", "Unhandled"):
        assert noise not in server.output, server.output[-3000:]


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory, redis: RedisServer) -> Iterator[Supervised]:
    """Workers that let what runs end. A test may replace or kill some, and leaves as many, which serve."""
    with workers(tmp_path_factory.mktemp("patient"), redis) as server:
        yield server


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory, redis: RedisServer) -> Iterator[Supervised]:
    """Workers that wait for nothing as they stop, and take six WebSockets. A test leaves them running."""
    with workers(tmp_path_factory.mktemp("hasty"), redis, shutdown_grace_seconds=0, max_websocket_connections=6) as one:
        yield one


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
            with suppress(*CUT, Refused):
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
            except (*CUT, Refused) as error:
                self.come_again("503" if isinstance(error, Refused) else type(error).__name__)
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
            except InvalidStatus as refused:
                self.come_again(str(refused.response.status_code))
            except (ConnectionError, InvalidMessage) as error:
                self.come_again(type(error).__name__)

    async def run(self, during: Callable[[], object]) -> None:
        """Load the server while `during` happens, on a thread."""
        async with asyncio.timeout(4 * PATIENCE):
            async with http_client(self.server) as http:
                for _ in range(8):
                    self.background[(await begin(http, "[long]"))["id"]] = []
            clients = [asyncio.create_task(each()) for each in (self.ask, self.stream, self.talk) for _ in range(3)]
            readers = [asyncio.create_task(self.read(each)) for each in self.background]
            await eventually(lambda: self.completed >= 20, timeout=PATIENCE)
            await asyncio.to_thread(during)
            before = self.completed
            await eventually(lambda: self.completed >= before + 20, timeout=PATIENCE)
            self.enough = True
            await asyncio.gather(*clients, *readers)

    async def hold_to_the_promises(self) -> None:
        """Check that every background response is complete, as its reader and the store have it."""
        async with http_client(self.server) as http:
            for response_id, events in self.background.items():
                assert_laws(events)
                assert text_of(events[-1]["response"]) == NUMBERS
                assert await get(http, response_id) == events[-1]["response"]


async def test_a_rolling_replacement_fails_nothing(patient: Supervised) -> None:
    before = patient.pids()
    load = Load(patient)

    def roll() -> None:
        began = time.monotonic()
        patient.hup()
        patient.wait_for_line("all workers are replaced", seconds=PATIENCE)
        patient.wait_for(lambda: len(patient.pids()) == WORKERS, PATIENCE)
        print(f"replaced in {time.monotonic() - began:.1f} s; {load.completed} completed, again: {load.again}")

    await load.run(roll)
    assert not set(before) & set(patient.pids())
    await load.hold_to_the_promises()
    assert [each["error"] for each in load.failed] == [], "what ran was waited for"
    assert set(load.again) <= RETRIED, load.again
    assert load.again.get("WebSocket 1012"), "each of the old ones said goodbye"


async def test_a_worker_that_is_killed_costs_nothing_in_the_background(patient: Supervised) -> None:
    chance = random.Random(11)
    load = Load(patient)
    before = patient.output.count(" serves\n")

    def kill() -> None:
        for number in range(2):
            os.kill(chance.choice(patient.pids()), signal.SIGKILL)
            patient.wait_for_line(" serves\n", count=before + number + 1, seconds=PATIENCE)
        print(f"{load.completed} completed, again: {load.again}")

    await load.run(kill)
    await load.hold_to_the_promises()
    assert [each["error"] for each in load.failed] == [], "the streams of a killed worker are cut, and come again"


async def test_a_background_response_outlives_all_workers(hasty: Supervised) -> None:
    async with http_client(hasty) as http:
        ids = [(await begin(http, "[longer]"))["id"] for _ in range(6)]
    await asyncio.to_thread(hasty.stop)
    assert "goes to another worker: the server stops" in hasty.output
    await asyncio.to_thread(hasty.start)
    async with http_client(hasty) as http:
        for response_id in ids:
            assert text_of(await until(http, response_id, "completed", timeout=PATIENCE)) == NUMBERS


async def test_what_one_worker_runs_any_other_cancels_and_follows(hasty: Supervised) -> None:
    before = len(hasty.output)
    sockets = [await Socket.open(hasty.ws_url) for _ in range(6)]
    async with await Socket.open(hasty.ws_url) as one_more:
        assert (await one_more.error())["error"]["code"] == "websocket_connection_limit_reached"
    for number, socket in enumerate(sockets):
        assert (await socket.ask("Hello", f"lane{number}"))["status"] == "completed"
        await socket.raw.close()
    assert len(hasty.answered_by(since=before)) > 1, "the limit is one over several workers"

    async with http_client(hasty) as http:
        followed = await begin(http, "[long]")
        cancelled = [await begin(http, "[hang]") for _ in range(9)]
    streams = [await RawStream.resume(hasty, followed["id"]) for _ in range(9)]
    first, *others = await asyncio.gather(*(stream.rest() for stream in streams))
    assert_laws(first)
    assert others == [first] * 8

    for response in cancelled:
        async with http_client(hasty) as http:  # a connection of its own, to whichever worker takes it
            answer = await http.post(f"/responses/{response['id']}/cancel")
            assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
