"""A program of the model's that calls an MCP server's tools, with a real sandbox and a real server."""

import json
import re
import shlex
import sys

import httpx

from tests.kit.fixtures import module_server
from tests.kit.mcp_servers import PROGRAM as MCP_PROGRAM
from tests.kit.sandboxes import needs_bubblewrap
from tests.kit.scripts import Entry
from tests.kit.server import Server

pytestmark = needs_bubblewrap

LOOP = """
total = sum(call_tool("sums.add", a=n, b=1) for n in range(100))
try:
    call_tool("sums.fail")
except ToolError as problem:
    print("failed")
print(call_tool("sums.say", {"text": "hello"}), total)
"""


def program(code: str) -> str:
    return f"<|channel|>commentary to=program code<|message|>{code}<|call|>"


SCRIPT: list[Entry] = [
    {"when": "[loop]", "say": program(LOOP)},
    {"when": "5050", "say": "<|channel|>final<|message|>It is 5050.<|return|>"},
]
TOOLS = [
    {"type": "programmatic_tool_calling"},
    {"type": "mcp", "server_label": "sums", "require_approval": "never", "allowed_callers": ["programmatic"]},
]


server = module_server(
    "programs",
    script=SCRIPT,
    journal=True,
    sandbox="bubblewrap",
    mcp_servers=json.dumps({"sums": shlex.join([sys.executable, "-m", MCP_PROGRAM])}),
)


def asked(server: Server, question: str, **fields: object) -> httpx.Response:
    return server.post("/responses", input=question, tools=TOOLS, **fields)


def test_a_loop_of_a_hundred_calls_is_one_turn(server: Server) -> None:
    response = asked(server, "[loop]").json()
    kinds = [item["type"] for item in response["output"]]
    assert response["status"] == "completed", response
    assert (kinds.count("program"), kinds.count("mcp_call"), kinds.count("program_output")) == (1, 102, 1)
    (output,) = [item for item in response["output"] if item["type"] == "program_output"]
    assert re.search(r"failed\n.*hello.* 5050", output["result"]), output
    assert response["output"][-1]["content"][0]["text"] == "It is 5050."
