"""One project asleep in all the containers that it gets, and another project's code beside it, on a real server."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.kit.closed import ClosedServer, bearer
from tests.kit.sandboxes import needs_bubblewrap
from tests.kit.server import KINDS

pytestmark = [needs_bubblewrap]

MOST = 2


def call_of(response: dict[str, Any]) -> dict[str, Any]:
    (call,) = [item for item in response["output"] if item["type"] == "code_interpreter_call"]
    return dict(call)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_project_asleep_in_its_containers_leaves_one_for_others(kind: str, tmp_path: Path) -> None:
    settings = {"sandbox_max_containers": MOST, "sandbox_wait_seconds": 1, "auth": "on"}
    with ClosedServer(tmp_path, kind=kind, **settings) as server:
        greedy, modest = (server.new_key("--project", name) for name in ("greedy", "modest"))
        async with httpx.AsyncClient(base_url=server.base_url, timeout=60, verify=False) as http:

            async def run(key: str, code: str) -> dict[str, Any]:
                tool = {"type": "code_interpreter", "container": {"type": "auto"}}
                asked = {"tools": [tool], "input": f"python: {code}", "include": ["code_interpreter_call.outputs"]}
                answer: dict[str, Any] = (await http.post("/responses", json=asked, headers=bearer(key))).json()
                return answer

            await run(modest, "1")  # the sandbox is tried once
            asleep = [asyncio.create_task(run(greedy, "import time; time.sleep(600)")) for _ in range(MOST)]
            refused, waiting = await asyncio.wait(asleep, return_when=asyncio.FIRST_COMPLETED)
            assert len(waiting) == 1, "the other one sleeps"
            assert call_of(refused.pop().result())["status"] == "failed"
            done = call_of(await run(modest, "6 * 7"))
            assert done["outputs"] == [{"type": "logs", "logs": "42\n"}]
            made = await http.post("/containers", json={"name": "x"}, headers=bearer(greedy))
            file = {"file": ("a.txt", b"x")}
            full = await http.post(f"/containers/{made.json()['id']}/files", files=file, headers=bearer(greedy))
            assert (full.status_code, "SANDBOX_PROJECT_CONTAINERS" in full.text) == (429, True)
            for each in asleep:
                each.cancel()
            await asyncio.gather(*asleep, return_exceptions=True)
