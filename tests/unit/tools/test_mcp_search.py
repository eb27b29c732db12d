"""A search by an MCP server's tool, whatever it is called, takes and gives back."""

import json
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer

from responses_app.kit.retention import Retentions
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


@pytest.fixture
async def mcp() -> AsyncIterator[McpTool]:
    """What calls the servers that are configured: one."""
    async with serving(searcher().streamable_http_app()) as running:
        access = ServerAccess(transport="http", url=f"{running.url}/mcp")
        async with mcp_tool(mcp_servers={"web": access}) as tool:
            yield tool


async def test_a_tool_of_the_server_searches(mcp: McpTool) -> None:
    for wanted in ("web", "web.web_search"):
        (found,) = await McpSearch(mcp, wanted).search("turtles", count=7)
        assert (found.url, found.title, found.snippet) == ("https://a.example/", "turtles", "7")


async def test_what_goes_wrong_is_told_with_the_setting(mcp: McpTool) -> None:
    for wanted, reason in (
        ("web.other_search", "SEARCH_MCP has no tool other_search. It has: other, web_search, broken_search"),
        ("web.broken_search", "SEARCH_MCP says: .*broken_search"),
        ("elsewhere", "SEARCH_MCP says: .*not configured"),
    ):
        with pytest.raises(SearchFailed, match=reason):
            await McpSearch(mcp, wanted).search("turtles", count=7)


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
