"""A search, and the code interpreter, by tools of MCP servers: real servers, whatever their tools take and give."""

import contextlib
import io
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from engine.formats.harmony.encoding import decode_tokens
from responses_app.extensions.containers.code_interpreter import McpInterpreter
from responses_app.extensions.containers.tools import interpreter_of
from responses_app.kit.retention import Retentions
from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.settings.conf import from_environ
from responses_app.tools.base import BaseTool, ToolParts
from responses_app.tools.browser.searching import (
    BaseSearch,
    DdgsSearch,
    McpSearch,
    SearchFailed,
    SearxngSearch,
    read_results,
)
from responses_app.tools.browser.tool import BrowserTool
from responses_app.tools.mcp.tool import McpTool
from responses_app.tools.settings import ServerAccess
from responses_app.wiring.server_tools import server_tools
from tests.kit.fakes import ANSWER, FakeEngine, Site
from tests.kit.mcp_servers import mcp_tool, serving
from tests.kit.memory_stores import MemoryResponseStore

FOUND = [("https://a.example/", "A", "of a"), ("https://b.example/x", "B", "of b")]
AS_JSON = {"web": {"results": [{"title": "A", "url": "https://a.example/", "description": "of a"}]}, "more": []}


def searcher() -> MCPServer:
    """Return a server with tools that search, and one that does not."""
    server = MCPServer("searcher")

    @server.tool()
    def other(x: int) -> str:
        return "x"

    @server.tool()
    def web_search(q: str, max_results: int = 5) -> str:
        return json.dumps([{"link": "https://a.example/", "name": q, "snippet": str(max_results)}])

    @server.tool()
    def broken_search(q: str) -> str:
        raise ValueError("out of quota")

    return server


@asynccontextmanager
async def called(label: str, server: MCPServer) -> AsyncIterator[McpTool]:
    """What calls the servers that are configured: one."""
    async with serving(server.streamable_http_app()) as running:
        access = ServerAccess(transport="http", url=f"{running.url}/mcp")
        async with mcp_tool(mcp_servers={label: access}) as tool:
            yield tool


@pytest.fixture
async def web_mcp() -> AsyncIterator[McpTool]:
    async with called("web", searcher()) as tool:
        yield tool


@pytest.fixture
async def box_mcp() -> AsyncIterator[McpTool]:
    async with called("box", runner()) as tool:
        yield tool


async def test_a_tool_of_the_server_searches(web_mcp: McpTool) -> None:
    for wanted in ("web", "web.web_search"):
        (found,) = await McpSearch(web_mcp, wanted).search("turtles", count=7)
        assert (found.url, found.title, found.snippet) == ("https://a.example/", "turtles", "7")


async def test_what_goes_wrong_in_a_search_is_told_with_the_setting(web_mcp: McpTool) -> None:
    for wanted, reason in (
        ("web.other_search", "SEARCH_MCP has no tool other_search. It has: other, web_search, broken_search"),
        ("web.broken_search", "SEARCH_MCP says: .*broken_search"),
        ("elsewhere", "SEARCH_MCP says: .*not configured"),
    ):
        with pytest.raises(SearchFailed, match=reason):
            await McpSearch(web_mcp, wanted).search("turtles", count=7)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(AS_JSON | {"also": {"href": "https://b.example/x", "title": "B", "highlights": ["of", "b"]}}),
        '{"url": "https://a.example/", "title": "A", "text": "of a"}\n{"url": "https://b.example/x", "name": "B", '
        '"text": "of b"}',
        "Title: A\nDescription: of a\nURL: https://a.example/\n\nTitle: B\nDescription: of b\nURL: https://b.example/x",
        "1. **Title:** A\n   **URL:** https://a.example/\n   **Snippet:** of a\n\n2. **Title:** B\n   **URL:** "
        "https://b.example/x\n   **Snippet:** of b\n",
        "- [A](https://a.example/) of a\n- [B](https://b.example/x) of b\n- [A again](https://a.example/)",
    ],
    ids=["json", "a block each", "lines", "decorated lines", "markdown"],
)
def test_results_are_read_however_they_are_written(text: str) -> None:
    assert [(each.url, each.title, each.snippet) for each in read_results(text)] == FOUND


@pytest.mark.parametrize("text", ["", "nothing", "{}", "[[[[[[[[]]]]]]]]", "null", '{"url": 7}', "Title: x", "URL: /x"])
def test_what_has_no_results_gives_none(text: str) -> None:
    assert read_results(text) == []


def test_bare_addresses_are_results() -> None:
    (found,) = read_results("See https://a.example/x.")
    assert (found.title, found.snippet) == ("a.example", "See")


def tools_by(environ: dict[str, str]) -> Sequence[BaseTool]:
    """Return the server's tools by some settings."""
    stores: Any = {"files": None, "skills": None, "stored_items": MemoryResponseStore().items}
    return server_tools(ToolParts(settings=from_environ(environ)[0], **stores, now=time.time, retentions=Retentions()))


@pytest.mark.parametrize(
    ("environ", "kind"),
    [
        ({"SEARCH_URL": "http://a"}, SearxngSearch),
        ({"SEARCH_URL": "ddgs+http://a"}, DdgsSearch),
        ({"SEARCH_MCP": "a", "MCP_SERVERS": '{"a": "https://a.example"}'}, McpSearch),
        ({}, None),
    ],
)
def test_the_settings_say_what_searches(environ: dict[str, str], kind: type[BaseSearch] | None) -> None:
    browsers = [tool for tool in tools_by(environ) if "web_search" in tool.kinds]
    assert [type(tool._browser._search) for tool in browsers if isinstance(tool, BrowserTool)] == (
        [kind] if kind else []
    )


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


def call(code: str) -> str:
    return f"<|channel|>analysis to=python code<|message|>{code}<|call|>"


async def test_code_runs_there_and_what_fails_is_told(box_mcp: McpTool) -> None:
    site = Site(FakeEngine([call("print(6 * 7)"), call("1 / 0"), ANSWER]), tools=[McpInterpreter(box_mcp, "box")])
    events = await site.events(input="hi", tools=ASKED, include=["code_interpreter_call.outputs"])
    good, bad, _ = events[-1]["response"]["output"]  # type: ignore[index]
    assert (good["status"], good["outputs"]) == ("completed", [{"type": "logs", "logs": "42\n"}])
    assert good["container_id"].startswith("cntr_")
    assert bad["status"] == "failed"
    assert "<|start|>python to=assistant<|channel|>commentary<|message|>42\n<|end|>" in decode_tokens(
        site.engine.prompts[1]
    )
    assert "division by zero" in decode_tokens(site.engine.prompts[2])


async def test_what_goes_wrong_with_code_is_told_with_the_setting(box_mcp: McpTool) -> None:
    for wanted, reason in (("box.walk", "it has no tool walk. It has: other, run_python"), ("away", "not configured")):
        site = Site(FakeEngine([call("1"), ANSWER]), tools=[McpInterpreter(box_mcp, wanted)])
        response = await site.ask(input="hi", tools=ASKED)
        assert response["output"][0]["status"] == "failed"  # type: ignore[index]
        told = decode_tokens(site.engine.prompts[1])
        assert "Error: the MCP server of SANDBOX_MCP says: " in told
        assert reason in told


async def test_it_has_no_containers_that_clients_can_name(box_mcp: McpTool) -> None:
    site = Site(tools=[McpInterpreter(box_mcp, "box")])
    with pytest.raises(ApiError, match="cntr_1") as refused:
        await site.begin(input="hi", tools=[{"type": "code_interpreter", "container": "cntr_1"}])
    assert refused.value.status == 404


def test_the_settings_say_that_it_runs_there() -> None:
    tools = tools_by({"MCP_SERVERS": '{"box": "https://box.example"}', "SANDBOX_MCP": "box"})
    assert [type(tool) for tool in tools if "code_interpreter" in tool.kinds] == [McpInterpreter]
    assert interpreter_of(tools) is None
