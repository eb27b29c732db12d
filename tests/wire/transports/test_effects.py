"""A call that must not be made twice is not, where its worker dies as it is heard.

Two workers on one database, and an MCP server that counts what it hears. `tests/system/takeover/test_effects.py` has
them killed at any moment around calls.
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.kit.background import until
from tests.kit.clients import Frame, http_client
from tests.kit.pairs import Pair
from tests.kit.sandboxes import host_process
from tests.kit.server import Server
from tests.kit.stored import end_lease, owner_of
from tests.kit.threads import in_a_thread
from tests.kit.waiting import eventually
from tests.wire.transports.effects import Hearing, call_of, hearing, nothing

KILLS = int(os.environ.get("EFFECT_KILLS", "2"))
STOPS = int(os.environ.get("EFFECT_STOPS", "1"))
AT_ONCE = 4  # calls around each kill and stop
SPARE = 4  # calls of the other tests
PATIENCE = 60.0
CUT = "the server stopped while the tool ran"
SETTINGS = {"mcp_allowed_hosts": "127.0.0.1"}


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
            assert heard == 1 or CUT in str(call.get("error"))
            assert (call["status"] == "failed") == (CUT in str(call.get("error")))


@contextmanager
def two_workers(folder: Path) -> Iterator[House]:
    """Run two workers, a host of containers and the MCP server; nothing breaks in the workers."""
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


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Two workers that live; each test leaves them so."""
    with two_workers(tmp_path_factory.mktemp("effects")) as house:
        yield house


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
        response_id = await house.begin(victim, **body)
        await eventually(lambda: victim not in pair.alive)
        end_lease(heir, owner_of(heir, response_id))
        done = await house.end(heir, response_id)
    finally:
        await asyncio.to_thread(pair.start, victim)
    assert hears.heard[str(number)] == 1
    assert done["status"] == "completed", "the model goes on"
    call = call_of(done)
    assert (call["status"], CUT in str(call.get("error"))) == ("failed", True)
