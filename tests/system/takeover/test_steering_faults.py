"""Responses are steered while their worker is killed, stopped beyond its lease or without its database, and by others.

What was accepted is applied or comes back, every lane hears an end and can be used again, and no project touches
another's. Two workers on one database, whose clients have the keys of two projects.

Only this finds accepted input that a death loses.
"""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.inprocess.transports.test_steering import THOUGHT, begin, steer
from tests.kit.background import until
from tests.kit.clients import Frame, Socket, http_client, text_of
from tests.kit.closed import bearer
from tests.kit.pairs import Pair
from tests.kit.scripts import BEGIN, HELLO
from tests.kit.server import Server, manage
from tests.kit.stored import locked, stop_beside_its_writes
from tests.wire.transports.conftest import Connect

NUMBERS = " ".join(map(str, range(300)))
SCRIPT = [
    {"when": "[slow]", "say": f"{THOUGHT}{BEGIN}{NUMBERS}<|return|>", "delay": 0.3},
    {"when": "[talk]", "say": f"{THOUGHT}{BEGIN}{NUMBERS}<|return|>", "delay": 0.05},
    {"when": "[long]", "say": f"{THOUGHT}{BEGIN}{NUMBERS}<|return|>", "delay": 0.01},
    {"say": HELLO},
]
HELD = {"when": "[held]", "say": f"{THOUGHT}{BEGIN}{NUMBERS}<|return|>", "hang_after": 100}
KEYS = """
from responses_app.resources.projects.callers import create_key
print(*(create_key(project)[0] for project in ("own", "foreign")))
"""
LEASE = 3.0  # WORKER_LEASE_SECONDS: a busy machine lets no worker stand still for so long
LANES = (None, "a", "b")
GIVEN = "Shorter!"


class House:
    """Two workers, and a key of each of two projects."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.one, self.other = pair.workers
        folder = {"DATA_DIR": str(self.one.folder)}
        named = {name: self.one.environ[name] for name in ("DATABASE_URL",) if name in self.one.environ}
        *_, self.own, self.foreign = manage("shell", "--no-imports", "-c", KEYS, **folder, **named).split()

    async def has_ended(self, worker: Server, response_id: str) -> Frame:
        """Wait for the end of a response, as the other worker tells it."""
        async with http_client(worker) as http:
            http.headers.update(bearer(self.own))
            return await until(http, response_id, "completed", "incomplete", "failed")


@pytest.fixture(scope="module")
def house(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Two workers that live; each test leaves them so."""
    folder = tmp_path_factory.mktemp("steering")
    held = {**HELD, "wait_for_file": str(folder / "may-end")}
    pair = Pair(folder, script=[held, *SCRIPT], auth="on", worker_lease_seconds=LEASE)
    try:
        for worker in pair.workers:
            pair.start(worker)
        yield House(pair)
        for worker in pair.workers:
            assert "Traceback" not in worker.output, worker.output[-4000:]
    finally:
        for worker in pair.workers:
            if worker.process is not None and worker.is_running:
                worker.kill()


@pytest.fixture
async def socket(house: House, open_socket: Connect) -> Socket:
    """A WebSocket of one project to one worker."""
    return await open_socket(house.one, additional_headers=bearer(house.own))


def came_back(frames: list[Frame]) -> list[object]:
    return [frame["steer"]["input"] for frame in frames if frame["type"] == "response.steer.failed"]


async def test_stopped_beyond_its_lease_each_lane_hears_an_end_and_gets_its_input_back(
    house: House, socket: Socket
) -> None:
    sleeper = house.one.process
    assert sleeper is not None
    # The last one is steered: it stands still long before it has thought to the end, where it would be cut.
    begun = {lane: (await begin(socket, "[slow]", lane))[0]["response"]["id"] for lane in reversed(LANES)}
    await steer(socket, begun[None], GIVEN)
    accepted = await socket.next()
    while accepted["type"] != "response.steer.accepted":
        accepted = await socket.next()
    await asyncio.to_thread(stop_beside_its_writes, house.one)
    try:
        await steer(socket, begun["a"], GIVEN)  # it hears that when it goes on
        for response_id in begun.values():
            assert (await house.has_ended(house.other, response_id))["status"] == "failed"
    finally:
        os.kill(sleeper.pid, signal.SIGCONT)
    for lane in LANES:
        events = await socket.answer(lane)
        assert events[-1]["type"] == "response.failed", events[-1]
        while lane != "b" and not came_back(events):
            events.append(await socket.next(lane))
        assert came_back(events) == ([] if lane == "b" else [GIVEN])
        again = await socket.ask("Hello", lane)
        assert text_of(again) == "Hello there, friend."


@pytest.mark.each_database
async def test_killed_behind_what_it_has_accepted_its_client_goes_on_at_another_worker(
    house: House, socket: Socket, open_socket: Connect
) -> None:
    first = await socket.ask("Hello")
    events = await begin(socket, "[long]", previous_response_id=first["id"])
    steered = events[0]["response"]["id"]
    await steer(socket, steered, "[talk]")
    events = await socket.answer()
    assert events[-1]["response"]["incomplete_details"] == {"reason": "steered"}
    successor = (await socket.until("response.created"))[0]["response"]
    await asyncio.to_thread(house.pair.kill, house.one)
    try:
        elsewhere = await open_socket(house.other, additional_headers=bearer(house.own))
        again = await elsewhere.ask(GIVEN, previous_response_id=steered)
        assert again["previous_response_id"] == steered
        assert (await house.has_ended(house.other, successor["id"]))["status"] == "failed"
        await elsewhere.create(GIVEN, previous_response_id=successor["id"])
        assert (await elsewhere.error())["error"]["code"] == "previous_response_not_found"
        assert (await house.has_ended(house.other, steered))["status"] == "incomplete"
    finally:
        await asyncio.to_thread(house.pair.start, house.one)


async def test_without_its_database_the_input_comes_back_and_the_lane_goes_on(
    folder: Path, open_socket: Connect
) -> None:
    limits = {"database_timeout_seconds": 2, "database_patience_seconds": 1}
    with Server(folder, script=SCRIPT, **limits) as server:
        socket = await open_socket(server)
        events = await begin(socket, "[talk]")
        with locked(server):
            await steer(socket, events[0]["response"]["id"], GIVEN)
            events += await socket.answer()
            while not came_back(events):
                events.append(await socket.next())
        again = await socket.ask("Hello")
        await socket.raw.close()
    assert [each["type"] for each in events if each["type"].startswith("response.steer")] == [
        "response.steer.accepted",
        "response.steer.failed",
    ]
    assert came_back(events) == [GIVEN]
    assert "response.failed" in [each["type"] for each in events]
    assert text_of(again) == "Hello there, friend."
