"""Projects share a full engine on a real server."""

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from tests.kit.closed import ClosedServer, bearer
from tests.kit.server import KINDS

pytestmark = [pytest.mark.any_database, pytest.mark.any_server]

MANY = 16  # requests of the greedy project


@pytest.mark.parametrize("kind", KINDS)
async def test_a_project_that_floods_the_engine_does_not_make_others_wait_for_all_of_it(
    kind: str, tmp_path: Path
) -> None:
    pace = json.dumps({"tokens_per_second": 40, "chunk_tokens": 1})
    settings = {"engine_max_running": 2, "engine_max_queued": MANY - 2, "engine_options": pace}
    ended: list[str] = []
    with ClosedServer(tmp_path, kind=kind, auth="on", **settings) as server:
        greedy, modest = (server.new_key("--project", name) for name in ("greedy", "modest"))

        async with httpx.AsyncClient(base_url=server.base_url, timeout=30, verify=False) as http:

            async def ask(key: str, name: str) -> httpx.Response:
                body = {"input": "Hello", "max_output_tokens": 16, "store": False}
                answer = await http.post("/responses", json=body, headers=bearer(key))
                ended.append(name)
                return answer

            async def waiting() -> int:
                return int((await http.get(f"{server.url}/ready")).json()["engine_queued"])

            flood = [asyncio.create_task(ask(greedy, "greedy")) for _ in range(MANY)]
            async with asyncio.timeout(10):
                while await waiting() < MANY - 2:  # noqa: ASYNC110 (the server has no event to wait for)
                    await asyncio.sleep(0.01)
            refused = await ask(greedy, "refused")
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "server_is_overloaded"
            assert 1 <= int(refused.headers["retry-after"]) <= 60
            assert (await ask(modest, "modest")).status_code == 200
            assert ended.index("modest") <= 8, ended
            assert {answer.status_code for answer in await asyncio.gather(*flood)} == {200}
            assert await waiting() == 0
