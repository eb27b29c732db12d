"""SERVER_TOOL_EARLY=predicted on a real vLLM: a call that the model would have written next begins while one runs.

Only this finds a prediction that a real vLLM samples in another way than the turn.
"""

import asyncio
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from mcp.server.mcpserver import MCPServer

from responses_app.protocol.errors import JsonObject
from tests.kit.clients import http_client
from tests.kit.laws import assert_laws
from tests.kit.mcp_program import READS
from tests.kit.mcp_servers import serving
from tests.kit.oracle import validate_event
from tests.kit.sdk import MODEL, PATIENCE, server_sent
from tests.kit.server import Server
from tests.system.vllm.chat_servers import QwenServer

ID = re.compile(r"\b(resp|mcp|mcpl|msg|rs|item)_[0-9a-f]{20,}")
USED = re.compile(r'respsite_early_tool_calls_total\{how="(\w+)",.*\} (\S+)')
CHANGING = ("sequence_number", "created_at", "completed_at", "input_tokens_details")  # from one run to the next


class Looks:
    """A tool that only reads. Where it is `predicted`, the first look waits until the second one has begun."""

    def __init__(self) -> None:
        self.predicted = False
        self.heard = Counter[str]()
        self.second = asyncio.Event()
        self.server = MCPServer("tests")
        self.server.tool(annotations=READS)(self.look)

    async def look(self, text: str) -> str:
        self.heard[text] += 1
        if text == "there":
            self.second.set()
        elif self.predicted:
            async with asyncio.timeout(PATIENCE):
                await self.second.wait()
        return f"saw {text}"


async def asked(front: Server, url: str) -> tuple[list[JsonObject], list[JsonObject], dict[str, float]]:
    """Return the events of a response with two looks, those of its replay, and how its early calls ended."""
    tool = {"type": "mcp", "server_label": "tests", "server_url": f"{url}/mcp", "require_approval": "never"}
    body = {"model": MODEL, "input": "Look twice!", "tools": [tool], "stream": True}
    async with http_client(front) as http:
        live = server_sent((await http.post("/responses", json=body)).text.splitlines())
        path = f"/responses/{live[-1]['response']['id']}?stream=true"  # type: ignore[index, call-overload]
        again = server_sent((await http.get(path)).text.splitlines())
        metrics = (await http.get(httpx.URL(front.url).join("/metrics"))).text
    return live, again, {how: float(count) for how, count in USED.findall(metrics)}


def told(events: list[JsonObject]) -> list[JsonObject]:
    """Return events without what differs between two runs: ids, times, and how a text is cut into deltas."""

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: without(each) for name, each in value.items() if name not in CHANGING}
        return [without(each) for each in value] if isinstance(value, list) else value

    kept = [without(event) for event in events if not str(event["type"]).endswith(".delta")]
    return json.loads(ID.sub(r"\1", json.dumps(kept)))  # type: ignore[no-any-return]


async def test_a_predicted_call_is_used_and_changes_nothing_that_is_told(
    qwen_server: QwenServer, tmp_path: Path
) -> None:
    looks, told_of = Looks(), dict[str, list[JsonObject]]()
    async with serving(looks.server.streamable_http_app()) as running:
        for early in ("off", "predicted"):
            looks.predicted = early == "predicted"
            looks.heard.clear()
            looks.second.clear()
            settings = {**qwen_server.settings, "server_tool_early": early, "mcp_allowed_hosts": "127.0.0.1"}
            front = Server(tmp_path / early, **settings)
            await asyncio.to_thread(front.start)
            try:
                live, again, ended = await asked(front, running.url)
            finally:
                await asyncio.to_thread(front.stop)
            for event in live:
                validate_event(event)
            assert_laws(live)
            assert told(live) == told(again)
            assert looks.heard == {"here": 1, "there": 1}
            assert {how for how, count in ended.items() if count} == ({"used"} if looks.predicted else set())
            told_of[early] = told(live)
    assert told_of["predicted"] == told_of["off"]
    last: Any = told_of["off"][-1]["response"]
    assert [item["type"] for item in last["output"] if item["type"] != "reasoning"] == [
        "mcp_list_tools",
        "mcp_call",
        "mcp_call",
        "message",
    ]
