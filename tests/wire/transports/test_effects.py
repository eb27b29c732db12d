"""A call that must not be made twice is not, whatever becomes of its worker: killed at any moment, or stopped for long.

Two workers on one database, and an MCP server that counts what it hears. `EFFECT_KILLS` and `EFFECT_STOPS` say how
often a worker is killed, and stopped beyond its lease, within 50 ms around calls.
"""

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
import pytest

from tests.kit.background import is_idle, until
from tests.kit.clients import Frame, http_client
from tests.kit.databases import postgres_url
from tests.kit.raw_streams import RawStream
from tests.kit.sandboxes import host_process, needs_bubblewrap
from tests.kit.server import Server, manage
from tests.kit.stored import stored
from tests.kit.threads import in_a_thread
from tests.kit.waiting import eventually
from tests.wire.transports.effects import Hearing, call_of, hearing, nothing
from tests.wire.transports.test_takeover import LEASE, Pair

KILLS = int(os.environ.get("EFFECT_KILLS", "2"))
STOPS = int(os.environ.get("EFFECT_STOPS", "1"))
AT_ONCE = 4  # calls around each kill and stop
AROUND = 0.05  # seconds behind the release of the calls
SPARE = 4  # calls of the other tests
PATIENCE = 60.0
TRIES = 5
CUT = "the server stopped while the tool ran"
SETTINGS = {"mcp_allowed_hosts": "127.0.0.1"}
REFUSE = b"""
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'No space left on device' USING ERRCODE = 'disk_full'; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON responses_app_logpart FOR EACH ROW EXECUTE FUNCTION refuse();
"""


class House:
    """Two workers, and the MCP server that they call. `numbers` are those of calls that were not asked for yet."""

    def __init__(self, pair: Pair, hears: Hearing) -> None:
        self.pair = pair
        self.hears = hears
        self.numbers = count()

    async def begin(self, worker: Server, text: object, **fields: object) -> str:
        """Begin a response in the background, and return its id."""
        async with http_client(worker) as http:
            answer = await http.post("/responses", json={"input": text, "background": True, **fields})
            assert answer.status_code == 200, answer.text
            return str(answer.json()["id"])

    async def end(self, worker: Server, response_id: str) -> Frame:
        """Wait for the end of a response."""
        async with http_client(worker) as http:
            return await until(http, response_id, "completed", "failed", timeout=PATIENCE)

    async def to_approve(self, worker: Server, number: int) -> dict[str, Any]:
        """Return what approves of a call, and so has it made."""
        asked = self.hears.tools(require_approval="always")
        first = await self.end(worker, await self.begin(worker, f"[book {number}]", tools=asked))
        request = first["output"][-1]
        approval = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}
        return {"text": [approval], "previous_response_id": first["id"], "tools": asked}

    async def ready_to_call(self, worker: Server) -> dict[int, str]:
        """Begin responses whose calls are to be released; return their ids by the calls' numbers."""
        ids = {}
        for number in (next(self.numbers) for _ in range(AT_ONCE)):
            ids[number] = await self.begin(worker, f"[wait {number}]", tools=self.hears.tools())
        async with http_client(worker) as http:
            for response_id in ids.values():
                await until(http, response_id, "in_progress", timeout=PATIENCE)
        return ids

    async def made_once_at_most(self, worker: Server, ids: dict[int, str]) -> None:
        """Check that each call was heard once, or not at all and its item says so."""
        for number, response_id in ids.items():
            done = await self.end(worker, response_id)
            assert done["status"] == "completed", "the model goes on"
            call, heard = call_of(done), self.hears.heard[str(number)]
            assert heard <= 1
            assert heard == 1 or CUT in str(call["error"])
            assert (call["status"] == "failed") == (CUT in str(call["error"]))


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Two workers that live; each test leaves them so."""
    folder = tmp_path_factory.mktemp("effects")
    # Its path is short, as that of a socket has to be.
    with in_a_thread(hearing(folder)) as hears, TemporaryDirectory() as short, host_process(Path(short)):
        script = hears.script((3 * KILLS + STOPS) * AT_ONCE + SPARE)
        pair = Pair(folder, script=script, sandbox_hosts=f"{short}/socket", **SETTINGS)
        try:
            for worker in pair.workers:
                pair.start(worker)
            yield House(pair, hears)
            for worker in pair.workers:
                assert "Traceback" not in worker.output, worker.output[-4000:]
        finally:
            for worker in pair.workers:
                if worker.process is not None and worker.is_running:
                    worker.kill()


@pytest.mark.parametrize("how", ["the model's", "approved"])
async def test_a_worker_that_dies_as_its_call_is_heard_has_made_the_only_one(house: House, how: str) -> None:
    pair, hears, number = house.pair, house.hears, next(house.numbers)
    victim, heir = pair.workers

    async def kill(_: str) -> None:
        hears.on_call = nothing
        pair.kill(victim)

    body: dict[str, Any] = {"text": f"[book {number}]", "tools": hears.tools()}
    if how == "approved":
        body = await house.to_approve(heir, number)
    hears.on_call = kill
    try:
        done = await house.end(heir, await house.begin(victim, **body))
    finally:
        await asyncio.to_thread(pair.start, victim)
    assert hears.heard[str(number)] == 1
    assert done["status"] == "completed", "the model goes on"
    call = call_of(done)
    assert (call["status"], CUT in str(call["error"])) == ("failed", True)


@contextmanager
def full_disk(worker: Server) -> Iterator[None]:
    """Have the database refuse what would make a log longer, as PostgreSQL does without room for it."""
    url = worker.environ["DATABASE_URL"]
    with psycopg.connect(url, autocommit=True) as database:
        database.execute(REFUSE)
        try:
            yield
        finally:
            database.execute(b"DROP FUNCTION refuse CASCADE")


@pytest.mark.any_database  # it is on PostgreSQL by itself
@pytest.mark.parametrize("has_patience", [True, False])
async def test_while_the_disk_is_full_no_call_is_made(has_patience: bool, tmp_path: Path) -> None:
    """In the foreground: with patience it waits for room; else the model reads that the call was not made."""
    url = postgres_url(tmp_path, manage)
    patience = PATIENCE if has_patience else 0
    async with hearing(tmp_path) as hears:
        script = hears.script(1)
        worker = Server(tmp_path, script=script, **SETTINGS, database_url=url, database_patience_seconds=patience)
        with worker:
            stream = await RawStream.create(worker, input="[wait 0]", tools=hears.tools())
            await stream.until("response.output_item.done")  # its tools are listed
            with full_disk(worker):
                hears.release(0)
                if has_patience:
                    await eventually(lambda: "cannot be kept now" in worker.output, timeout=PATIENCE)
                else:
                    events = await stream.until("response.mcp_call.failed")
                    assert "was not called" in str((await stream.next())["item"]["error"])  # type: ignore[index]
                assert not hears.heard
            events = await stream.rest()
            assert events[-1]["type"] == "response.completed" or not has_patience, "its end is to be kept, too"
            assert hears.heard == ({"0": 1} if has_patience else {})


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
