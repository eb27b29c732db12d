"""A worker is killed while calls that only read have begun early: another one goes on, and changes nothing twice.

Only this finds an early call that a death repeats with another result.
"""

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from mcp.server.mcpserver import MCPServer

from tests.kit.background import until
from tests.kit.clients import http_client
from tests.kit.mcp_program import READS
from tests.kit.mcp_servers import serving
from tests.kit.pairs import two_workers
from tests.kit.sandboxes import needs_bubblewrap
from tests.kit.scripts import Entry
from tests.kit.stored import end_lease, owner_of
from tests.wire.transports.test_programs import program

pytestmark = needs_bubblewrap

CODE = """
looked = call_tools([("tests.look", {"text": text}) for text in "abc"])
print(looked, call_tool("tests.book", text="x"))
"""
SCRIPT: list[Entry] = [
    {"when": "[go]", "say": program(CODE)},
    {"say": "<|channel|>final<|message|>Done.<|return|>"},
]


@pytest.mark.parametrize("at", ["look", "book"])
async def test_killed_in_the_middle_of_a_program(at: str, tmp_path: Path) -> None:
    server, heard = MCPServer("tests"), Counter[str]()
    all_look, booking, killed = (asyncio.Event() for _ in range(3))

    @server.tool(annotations=READS)
    async def look(text: str) -> str:
        heard[text] += 1
        if len(heard) == 3:
            all_look.set()
        await all_look.wait()  # one after another they would wait for ever
        if at == "look":
            await killed.wait()
        return f"saw {text}"

    @server.tool()
    async def book(text: str) -> str:
        """Books what must not be booked twice."""
        heard[text] += 1
        booking.set()
        if at == "book":
            await killed.wait()
        return f"booked {text}"

    async with (
        serving(server.streamable_http_app()) as running,
        two_workers(tmp_path, script=SCRIPT, sandbox="bubblewrap", mcp_allowed_hosts="127.0.0.1") as pair,
    ):
        declared = {"type": "mcp", "server_label": "tests", "server_url": f"{running.url}/mcp"}
        mcp = {**declared, "require_approval": "never", "allowed_callers": ["programmatic"]}
        victim, heir = pair.workers
        body = {"input": "[go]", "background": True, "tools": [{"type": "programmatic_tool_calling"}, mcp]}
        async with http_client(victim) as http:
            answer = await http.post("/responses", json=body)
        assert answer.status_code == 200, answer.text
        async with asyncio.timeout(60):
            await (all_look if at == "look" else booking).wait()
        response_id = answer.json()["id"]
        owner = owner_of(heir, response_id)
        await asyncio.to_thread(pair.kill, victim)
        end_lease(heir, owner)
        killed.set()
        async with http_client(heir) as http:
            done = await until(http, response_id, "completed", "failed")
    assert done["status"] == "completed", done
    assert heard["x"] == 1, "booked once, whoever booked it"
    calls = [item for item in done["output"] if item["type"] == "mcp_call"]
    assert [item["name"] for item in calls] == ["look", "look", "look", "book"]
    assert [item["output"] for item in calls[:3]] == ["saw a", "saw b", "saw c"]
    assert (calls[3]["status"] == "completed") == (at == "look")
