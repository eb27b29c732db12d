"""Workers are killed, or stopped beyond their lease, at any moment around calls that must not be made twice.

Only this finds a call that is made again because its worker died between the call and what it wrote of it. Two workers
on one database, and an MCP server that counts what it hears. `EFFECT_KILLS` and `EFFECT_STOPS` say how often a worker
is killed, and stopped, within 50 ms around calls.
"""

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.kit.background import is_idle, until
from tests.kit.clients import http_client
from tests.kit.pairs import LEASE
from tests.kit.sandboxes import needs_bubblewrap
from tests.kit.server import Server
from tests.kit.stored import stored
from tests.kit.waiting import eventually
from tests.wire.transports.test_effects import AT_ONCE, KILLS, PATIENCE, STOPS, House, two_workers

AROUND = 0.05  # seconds behind the release of the calls
TRIES = 5


@pytest.fixture(scope="module")
def house(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Two workers that live; each test leaves them so."""
    with two_workers(tmp_path_factory.mktemp("effects")) as house:
        yield house


@pytest.mark.each_database
async def test_killed_around_their_calls_workers_make_none_twice(house: House) -> None:
    chance = random.Random(f"kills {KILLS}")
    for number in range(KILLS):
        victim = house.pair.workers[number % 2]
        heir = house.pair.other(victim)
        ids = await house.ready_to_call(victim)
        for each in ids:
            house.hears.release(each)
        await asyncio.sleep(chance.uniform(0, AROUND))
        await asyncio.to_thread(house.pair.kill, victim)
        await asyncio.gather(asyncio.to_thread(house.pair.start, victim), house.made_once_at_most(heir, ids))
    print(f"{KILLS} kills: {_figures(house.hears.heard)}")


async def test_killed_around_calls_that_were_approved_workers_make_none_twice(house: House) -> None:
    chance = random.Random(f"approved {KILLS}")
    for number in range(KILLS):
        victim = house.pair.workers[number % 2]
        heir = house.pair.other(victim)
        asked = {next(house.numbers): "" for _ in range(AT_ONCE)}
        bodies = [await house.to_approve(heir, each) for each in asked]
        begun = [asyncio.create_task(house.begin(victim, **each)) for each in bodies]
        await asyncio.wait(begun, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(chance.uniform(0, AROUND))
        await asyncio.to_thread(house.pair.kill, victim)
        ids = dict(zip(asked, await asyncio.gather(*begun, return_exceptions=True), strict=True))
        answered = {each: response_id for each, response_id in ids.items() if isinstance(response_id, str)}
        assert answered, "one was begun"
        await asyncio.gather(asyncio.to_thread(house.pair.start, victim), house.made_once_at_most(heir, answered))
        assert max(house.hears.heard[str(each)] for each in asked) <= 1, "nor those that nobody has an answer of"
    print(f"{KILLS} kills: {_figures(house.hears.heard)}")


@needs_bubblewrap
async def test_killed_around_code_workers_run_none_twice(house: House) -> None:
    """It runs in a container of a host that both workers ask, and writes a letter there each time."""
    chance, written = random.Random(f"code {KILLS}"), Counter[str]()
    for number in range(KILLS):
        victim = house.pair.workers[number % 2]
        heir = house.pair.other(victim)
        async with http_client(heir) as http:
            container = (await http.post("/containers", json={"name": "x"})).json()["id"]
            tools = [{"type": "code_interpreter", "container": container}]
            call = next(house.numbers)
            response_id = await house.begin(victim, f"[run {call}]", tools=tools)
            await until(http, response_id, "in_progress", timeout=PATIENCE)
            house.hears.release(call)
            await asyncio.sleep(chance.uniform(0, AROUND))
            await asyncio.to_thread(house.pair.kill, victim)
            done, _ = await asyncio.gather(house.end(heir, response_id), asyncio.to_thread(house.pair.start, victim))
            assert done["status"] == "completed", "the model goes on"
            files = (await http.get(f"/containers/{container}/files")).json()["data"]
            texts = [(await http.get(f"/containers/{container}/files/{each['id']}/content")).text for each in files]
            assert texts in ([], ["x"]), "it ran once at most"
            written.update(texts)
            await http.delete(f"/containers/{container}")
    print(f"{KILLS} kills: {written['x']} pieces of code have run, each once")


async def test_stopped_beyond_its_lease_around_its_calls_a_worker_makes_none_twice(house: House) -> None:
    sleeper, heir = house.pair.workers
    chance, late = random.Random(f"stops {STOPS}"), 0
    for _ in range(STOPS):
        ids = await house.ready_to_call(sleeper)
        for each in ids:
            house.hears.release(each)
        await asyncio.sleep(chance.uniform(0, AROUND))
        await stop_until_taken_over(sleeper, heir, ids)
        await house.made_once_at_most(heir, ids)
        before = sum(house.hears.heard.values())
        resume(sleeper)
        await eventually(lambda: is_idle(sleeper), timeout=PATIENCE)
        await house.made_once_at_most(heir, ids)
        late += sum(house.hears.heard.values()) - before
    print(f"{STOPS} stops: {_figures(house.hears.heard)}; {late} heard when the worker went on")


async def stop_until_taken_over(sleeper: Server, heir: Server, ids: dict[int, str]) -> None:
    """Stop a worker until the other one has all of its responses that had not ended.

    One that stands still inside a transaction holds the other one up, so then it may go on for a moment.
    """
    assert sleeper.process is not None

    def are_taken_over() -> bool:
        rows = {row[0]: row[1:] for row in stored(heir, "SELECT id, status, epoch FROM responses_app_response")}
        return all(rows[each][0] == "completed" or rows[each][1] > 1 for each in ids.values())

    for _ in range(TRIES):
        os.kill(sleeper.process.pid, signal.SIGSTOP)
        deadline = asyncio.get_running_loop().time() + 10 * LEASE
        while asyncio.get_running_loop().time() < deadline:
            if are_taken_over():
                return
            await asyncio.sleep(0.05)
        resume(sleeper)
        await asyncio.sleep(AROUND)
    raise AssertionError("nobody took over")


def resume(sleeper: Server) -> None:
    """Let a worker go on that was stopped."""
    assert sleeper.process is not None
    os.kill(sleeper.process.pid, signal.SIGCONT)


def _figures(heard: Counter[str]) -> str:
    times = Counter(heard.values())
    return f"{len(heard)} calls were heard, {sum(times[number] for number in times if number > 1)} of them twice"
