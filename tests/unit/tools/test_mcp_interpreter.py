"""The code interpreter by an MCP server's tool: a real server that runs code, inside responses."""

import contextlib
import io
from collections.abc import AsyncIterator

import pytest
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from engine.formats.harmony.encoding import decode_tokens
from responses_app.extensions.containers.code_interpreter import McpInterpreter
from responses_app.extensions.containers.tools import interpreter_of
from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.tools.mcp.tool import McpTool
from responses_app.tools.settings import ServerAccess
from tests.kit.fakes import ANSWER, FakeEngine, Site
from tests.kit.mcp_servers import mcp_tool, serving
from tests.unit.tools.test_mcp_search import tools_by

ASKED: list[JsonObject] = [{"type": "code_interpreter", "container": {"type": "auto"}}]


def runner() -> MCPServer:
    """Return a server with a tool that runs code, and one that does not."""
    server = MCPServer("runner")

    @server.tool()
    def other(code: str) -> str:
        return "x"

    @server.tool()
    def run_python(timeout: int = 5, python_code: str = "") -> str:
        try:
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(python_code, {})
        except ZeroDivisionError as error:
            raise ToolError(str(error)) from None
        return printed.getvalue()

    return server


@pytest.fixture
async def mcp() -> AsyncIterator[McpTool]:
    """What calls the servers that are configured: one."""
    async with serving(runner().streamable_http_app()) as running:
        access = ServerAccess(transport="http", url=f"{running.url}/mcp")
        async with mcp_tool(mcp_servers={"box": access}) as tool:
            yield tool


def call(code: str) -> str:
    return f"<|channel|>analysis to=python code<|message|>{code}<|call|>"


async def test_code_runs_there_and_what_fails_is_told(mcp: McpTool) -> None:
    site = Site(FakeEngine([call("print(6 * 7)"), call("1 / 0"), ANSWER]), tools=[McpInterpreter(mcp, "box")])
    events = await site.events(input="hi", tools=ASKED, include=["code_interpreter_call.outputs"])
    good, bad, _ = events[-1]["response"]["output"]  # type: ignore[index]
    assert (good["status"], good["outputs"]) == ("completed", [{"type": "logs", "logs": "42\n"}])
    assert good["container_id"].startswith("cntr_")
    assert bad["status"] == "failed"
    assert "<|start|>python to=assistant<|channel|>commentary<|message|>42\n<|end|>" in decode_tokens(
        site.engine.prompts[1]
    )
    assert "division by zero" in decode_tokens(site.engine.prompts[2])


async def test_what_goes_wrong_is_told_with_the_setting(mcp: McpTool) -> None:
    for wanted, reason in (("box.walk", "it has no tool walk. It has: other, run_python"), ("away", "not configured")):
        site = Site(FakeEngine([call("1"), ANSWER]), tools=[McpInterpreter(mcp, wanted)])
        response = await site.ask(input="hi", tools=ASKED)
        assert response["output"][0]["status"] == "failed"  # type: ignore[index]
        told = decode_tokens(site.engine.prompts[1])
        assert "Error: the MCP server of SANDBOX_MCP says: " in told
        assert reason in told


async def test_it_has_no_containers_that_clients_can_name(mcp: McpTool) -> None:
    site = Site(tools=[McpInterpreter(mcp, "box")])
    with pytest.raises(ApiError, match="cntr_1") as refused:
        await site.begin(input="hi", tools=[{"type": "code_interpreter", "container": "cntr_1"}])
    assert refused.value.status == 404


def test_the_settings_say_that_it_runs_there() -> None:
    tools = tools_by({"MCP_SERVERS": '{"box": "https://box.example"}', "SANDBOX_MCP": "box"})
    assert [type(tool) for tool in tools if "code_interpreter" in tool.kinds] == [McpInterpreter]
    assert interpreter_of(tools) is None
