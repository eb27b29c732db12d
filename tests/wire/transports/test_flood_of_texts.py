"""Long texts of one project, and a short request of another one beside them, on a real server."""

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from tests.kit.closed import ClosedServer, bearer
from tests.kit.server import KINDS
from tests.kit.waiting import eventually

PATH = "/responses/input_tokens"
MANY = 8  # more than there are threads
CONTEXT = 20_000  # tokens
LONG = " " * 2_000_000  # seconds of work; it may fit the context, so it is tokenised
TOO_LONG = " " * 3_000_000  # of which even the longest tokens are too many


@pytest.mark.parametrize("kind", KINDS)
async def test_a_flood_of_long_texts_holds_up_no_other_project(kind: str, tmp_path: Path) -> None:
    options = json.dumps({"max_model_len": CONTEXT})
    with ClosedServer(tmp_path, kind=kind, auth="on", engine_options=options) as server:
        greedy, modest = (server.new_key("--project", name) for name in ("greedy", "modest"))
        async with httpx.AsyncClient(base_url=server.base_url, timeout=60, verify=False) as http:

            async def ask(key: str, text: str, path: str = PATH) -> httpx.Response:
                return await http.post(path, json={"input": text}, headers=bearer(key))

            refused = await ask(greedy, TOO_LONG)
            assert refused.json()["error"]["code"] == "context_length_exceeded"
            assert "at least" in refused.json()["error"]["message"]
            before = server.cpu_seconds()
            flood = [asyncio.create_task(ask(greedy, LONG)) for _ in range(MANY)]
            await eventually(lambda: server.cpu_seconds() - before > 1)  # it has more to do than to read
            for _ in range(2):
                assert (await ask(modest, "word " * 12_000)).json()["object"] == "response.input_tokens"
            ended = sum(each.done() for each in flood)
            assert ended < 3, f"{ended} long texts were tokenised before a short one was"
            for each in flood:
                each.cancel()
            await asyncio.gather(*flood, return_exceptions=True)
            assert (await ask(modest, "word " * 60_000)).is_success  # a long one, which has a thread at once
