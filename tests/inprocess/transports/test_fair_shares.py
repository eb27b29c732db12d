"""Projects share a full engine on a real server."""

import asyncio
from pathlib import Path

import httpx

from tests.kit.closed import bearer
from tests.kit.inprocess import ClosedServer
from tests.kit.scripts import HELLO, SPOKEN
from tests.kit.waiting import PATIENCE, eventually

MANY = 16  # requests of the greedy project


async def test_a_project_that_floods_the_engine_does_not_make_others_wait_for_all_of_it(tmp_path: Path) -> None:
    """Of the flood the engine answers half once `first` is there, and none of the others before `rest` is."""
    first, rest = tmp_path / "first", tmp_path / "rest"
    held = {"when": "[greedy]", "say": HELLO, "hang_after": SPOKEN}
    script = [
        {**held, "wait_for_file": str(first), "times": MANY // 2},
        {**held, "wait_for_file": str(rest)},
        {"say": HELLO},
    ]
    settings = {"script": script, "engine_max_running": 2, "engine_max_queued": MANY - 2}
    with ClosedServer(tmp_path, auth="on", **settings) as server:
        greedy, modest = (server.new_key("--project", name) for name in ("greedy", "modest"))

        async with httpx.AsyncClient(base_url=server.base_url, timeout=PATIENCE, verify=False) as http:

            async def ask(key: str, text: str) -> httpx.Response:
                return await http.post("/responses", json={"input": text, "store": False}, headers=bearer(key))

            async def waiting() -> int:
                return int((await http.get(f"{server.url}/ready")).json()["engine_queued"])

            async def waits(count: int) -> bool:
                return await waiting() == count

            flood = [asyncio.create_task(ask(greedy, "[greedy]")) for _ in range(MANY)]
            await eventually(lambda: waits(MANY - 2))
            refused = await ask(greedy, "[greedy]")
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "server_is_overloaded"
            assert 1 <= int(refused.headers["retry-after"]) <= 60
            asked = asyncio.create_task(ask(modest, "Hello"))
            await eventually(lambda: waits(MANY - 1))
            first.touch()
            assert (await asked).status_code == 200, "it waited for all of the flood"
            rest.touch()
            assert {answer.status_code for answer in await asyncio.gather(*flood)} == {200}
            assert await waiting() == 0
