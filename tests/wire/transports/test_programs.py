"""A program of the model's that calls an MCP server's tools, with a real sandbox and a real server."""

import json
import re
import shlex
import sys
from pathlib import Path

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
ENDLESS = "while True: call_tool('sums.add', a=1, b=1)"


def program(code: str) -> str:
    return f"<|channel|>commentary to=program code<|message|>{code}<|call|>"


SCRIPT: list[Entry] = [
    {"when": "[loop]", "say": program(LOOP)},
    {"when": "[endless]", "say": program(ENDLESS)},
    {"when": "5050", "say": "<|channel|>final<|message|>It is 5050.<|return|>"},
    {"when": "no more tools", "say": "<|channel|>final<|message|>It was stopped.<|return|>"},
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


def test_a_program_without_an_end_is_stopped_and_the_response_goes_on(server: Server) -> None:
    response = asked(server, "[endless]", max_tool_calls=10).json()
    (output,) = [item for item in response["output"] if item["type"] == "program_output"]
    assert "no more tools may be called" in output["result"]
    assert [item["type"] for item in response["output"]].count("mcp_call") == 9
    assert response["output"][-1]["content"][0]["text"] == "It was stopped."


PAUSES = """
print(call_tool("sums.add", a=20, b=1), call_tools([("stock", {"n": 1}), ("stock", {"n": 2})]), call_tool("stock", n=3))
"""


def test_a_paused_program_goes_on_on_another_worker_when_its_own_was_killed(tmp_path: Path) -> None:
    servers = {"sums": shlex.join([sys.executable, "-m", MCP_PROGRAM])}
    script: list[Entry] = [
        {"when": "[pauses]", "say": program(PAUSES)},
        {"when": "21 [1, 2] 3", "say": "<|channel|>final<|message|>It went on.<|return|>"},
    ]
    function = {"type": "function", "name": "stock", "allowed_callers": ["programmatic"]}
    fields: dict[str, object] = {"input": "[pauses]", "tools": [*TOOLS, function]}
    mcp_calls, legs = 0, 0
    while True:
        with Server(tmp_path, script=script, sandbox="bubblewrap", mcp_servers=json.dumps(servers)) as worker:
            response = worker.post("/responses", **fields).json()
            assert response["status"] == "completed", response
            worker.kill()
        legs += 1
        kinds = [item["type"] for item in response["output"]]
        mcp_calls += kinds.count("mcp_call")
        calls = [item for item in response["output"] if item["type"] == "function_call"]
        if not calls:
            break
        outputs = [
            {
                "type": "function_call_output",
                "call_id": call["call_id"],
                "output": str(json.loads(call["arguments"])["n"]),
            }
            for call in calls
        ]
        fields = {**fields, "input": outputs, "previous_response_id": response["id"]}
    assert response["output"][-1]["content"][0]["text"] == "It went on."
    assert (legs, mcp_calls) == (3, 1), "what the server was asked is not asked again"
