"""Roll-outs and people share a full engine on a real server: neither waits behind all of the others."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.kit.inprocess import Server
from tests.kit.scripts import gate, journal, main_script, release

TURNS = 2
MANY = 12


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """An engine of two turns, of which roll-outs have one where people wait."""
    with Server(
        tmp_path,
        script=main_script(tmp_path),
        journal=True,
        engine_max_running=TURNS,
        engine_max_queued=MANY,
    ) as started:
        yield started


async def ask(http: httpx.AsyncClient, text: str, rollout: str = "") -> str:
    """Ask as a person does, or as part of a roll-out; return the response's id."""
    headers = {"x-rollout-id": rollout} if rollout else {}
    answer = await http.post("/responses", json={"input": text}, headers=headers)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


@asynccontextmanager
async def full(http: httpx.AsyncClient, server: Server, gates: tuple[str, str], rollout: str) -> AsyncIterator[None]:
    """Have all turns for roll-outs or for people; the first one goes on at the end of the block, and then the other."""
    holding = [asyncio.create_task(ask(http, gate(each), rollout and f"{rollout}-{each}")) for each in gates]
    await state(http, server, responses_in_flight=TURNS, engine_queued=0)
    yield
    release(server, gates[0])
    await holding[0]
    await state(http, server, engine_queued=0)
    release(server, gates[1])
    await holding[1]


async def state(http: httpx.AsyncClient, server: Server, **wanted: int) -> None:
    """Wait until the server says this of itself."""
    async with asyncio.timeout(30):
        while True:
            ready = (await http.get(f"{server.url}/ready")).json()
            if all(ready[name] == count for name, count in wanted.items()):
                return
            await asyncio.sleep(0.01)


def order(server: Server, people: set[str]) -> str:
    """Return whose turns ended, the first one first: one turn was free, so they began in the same order."""
    return "".join("p" if entry["request_id"].rpartition("-")[0] in people else "r" for entry in journal(server))


async def test_neither_side_waits_for_all_of_the_other(server: Server, http: httpx.AsyncClient) -> None:
    async with full(http, server, ("a0", "a1"), "training"):
        training = [asyncio.create_task(ask(http, "Hello", f"t{number}")) for number in range(MANY)]
        await state(http, server, engine_queued=MANY)
        refused = await http.post("/responses", json={"input": "Hello"}, headers={"x-rollout-id": "one-more"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_is_overloaded")
        assert "roll-outs of this project" in refused.json()["error"]["message"]
        # Roll-outs wait in a queue of their own: a person still comes in, and is served before them.
        person = asyncio.create_task(ask(http, "Hello"))
        await state(http, server, engine_queued=MANY + 1)
    await asyncio.gather(*training)
    seen = order(server, {await person})
    assert seen[:3] == "rpr", "the person had the first turn that ended"
    assert seen.count("r") == MANY + TURNS

    before = len(seen)
    async with full(http, server, ("b0", "b1"), ""):
        people = [asyncio.create_task(ask(http, "Hello")) for _ in range(MANY)]
        await state(http, server, engine_queued=MANY)
        rollout = asyncio.create_task(ask(http, "Hello", "one-of-many"))
        await state(http, server, engine_queued=MANY + 1)
    await asyncio.gather(*people)
    trained = await rollout
    ended = [entry["request_id"].rpartition("-")[0] for entry in journal(server)][before:]
    assert ended.index(trained) == 1, "the roll-out had the first turn that ended"
