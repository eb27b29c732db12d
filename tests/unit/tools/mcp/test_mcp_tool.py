"""MCP servers of both eras, over streamable HTTP, SSE and stdio: listed, called, and kept."""

import pytest

from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.tools.base import ToolFailed, ToolImage
from responses_app.tools.mcp.tool import McpTool
from responses_app.tools.network import NOTHING_ALLOWED
from responses_app.tools.settings import ServerAccess
from tests.kit.mcp_servers import STDIO, McpServer, call_of, mcp_server, mcp_tool, use_of

NAMES = {"add", "say", "fail", "refuse", "draw", "process", "leave", "count", "wait", "look", "long"}


@pytest.mark.parametrize("kind", ["http", "old http", "sse", "stdio"])
async def test_servers_of_every_kind_are_listed_and_called(kind: str) -> None:
    if kind == "stdio":
        async with mcp_tool(mcp_servers={"tests": STDIO}) as tool:
            await listed_and_called(tool, None)
        return
    async with mcp_server(kind) as server, mcp_tool() as tool:  # type: ignore[arg-type]
        await listed_and_called(tool, server.url)
        sessions = {headers.get("mcp-session-id") for _, headers in server.requests} - {None}
        assert len(sessions) == (1 if kind == "old http" else 0)


async def listed_and_called(tool: McpTool, url: str | None) -> None:
    use = use_of(url)
    assert await tool.offer(use) is None
    tools = (await tool.list_tools(use)).tools
    assert {each["name"] for each in tools} == NAMES
    (add,) = [each for each in tools if each["name"] == "add"]
    assert add["description"] == "Adds two numbers."
    assert add["annotations"] == {"readOnlyHint": True}
    (say,) = [each for each in tools if each["name"] == "say"]
    assert say["annotations"] == {}, "Vercel's AI SDK refuses a response with null here"
    assert add["input_schema"]["required"] == ["a", "b"]  # type: ignore[index]
    result = await tool.call(call_of(use, "add", '{"a": 2, "b": 3}'))
    assert (result.text, result.shown, result.failed) == ("5", {"output": "5"}, False)


# One client is kept.


async def test_it_is_connected_once_and_lists_once(tool: McpTool, running: McpServer) -> None:
    use = use_of(running.url)
    before = len(running.requests)
    for number in range(3):
        await tool.list_tools(use)
        assert (await tool.call(call_of(use, "add", f'{{"a": {number}, "b": 1}}'))).text == str(number + 1)
    methods = [headers.get("mcp-method") for method, headers in running.requests[before:] if method == "POST"]
    assert methods == ["server/discover", "tools/list", *["tools/call"] * 3]


async def test_projects_and_credentials_share_no_client(tool: McpTool, running: McpServer) -> None:
    before = len(running.requests)
    for use in (
        use_of(running.url, project="a"),
        use_of(running.url, project="b"),
        use_of(running.url, project="b", authorization="key-1"),
        use_of(running.url, project="b", headers={"X-Key": "2"}),
    ):
        await tool.list_tools(use)
    seen = [headers for _, headers in running.requests[before:]]
    assert len([each for each in seen if each.get("mcp-method") == "server/discover"]) == 4
    assert {each.get("authorization") for each in seen} == {None, "Bearer key-1"}
    assert {each.get("x-key") for each in seen} == {None, "2"}


@pytest.mark.parametrize("kind", ["http", "old http"])
async def test_a_server_that_was_restarted_is_called_again(tool: McpTool, kind: str) -> None:
    async with mcp_server(kind) as server:  # type: ignore[arg-type]
        use, port = use_of(server.url), int(server.url.rpartition(":")[2].partition("/")[0])
        assert (await tool.call(call_of(use, "say", '{"text": "1"}'))).text == "1"
    with pytest.raises(ToolFailed, match="could not be reached"):
        await tool.call(call_of(use, "say", '{"text": "2"}'))
    async with mcp_server(kind, port=port):  # type: ignore[arg-type]
        assert (await tool.call(call_of(use, "say", '{"text": "3"}'))).text == "3"


async def test_a_program_that_ended_is_started_again() -> None:
    async with mcp_tool(mcp_servers={"tests": STDIO}) as tool:
        use = use_of(None)
        first, again = [(await tool.call(call_of(use, "process"))).text for _ in range(2)]
        assert first == again
        with pytest.raises(ToolFailed):
            await tool.call(call_of(use, "leave"))
        assert (await tool.call(call_of(use, "process"))).text != first


# What comes of a call.


async def test_what_is_no_text_is_named(tool: McpTool, running: McpServer) -> None:
    result = await tool.call(call_of(use_of(running.url), "draw"))
    assert result.text == "A drawing:\n[image omitted: this model cannot see images]"
    [text, image] = result.seen
    assert text == "A drawing:"
    assert isinstance(image, ToolImage), "for a model that sees"


async def test_progress_is_reported(tool: McpTool, running: McpServer) -> None:
    reports: list[JsonObject] = []
    result = await tool.call(call_of(use_of(running.url), "count", report=reports.append))
    assert result.text == "counted to 3"
    assert [report["progress"] for report in reports] == [1, 2, 3]


@pytest.mark.parametrize("arguments", ["[1]", "{", '"text"'])
async def test_arguments_that_are_no_object_are_not_sent(tool: McpTool, running: McpServer, arguments: str) -> None:
    with pytest.raises(ToolFailed, match="not a JSON object") as failed:
        await tool.call(call_of(use_of(running.url), "say", arguments))
    assert failed.value.shown["error"]["code"] == -32602  # type: ignore[index]
    assert not running.requests


# What may be reached, and how.


async def test_a_private_address_is_refused_and_the_setting_named(running: McpServer) -> None:
    async with mcp_tool(mcp_allowed_hosts=NOTHING_ALLOWED) as tool:
        for url in (running.url, "http://169.254.169.254/mcp", "http://[::1]:1/mcp", "http://localhost:1/mcp"):
            with pytest.raises(ToolFailed, match="MCP_ALLOWED_HOSTS"):
                await tool.list_tools(use_of(url))


async def test_where_the_operators_servers_are_no_request_may_go_by_itself(running: McpServer) -> None:
    own = {"tests": ServerAccess(transport="http", url=running.url)}
    async with mcp_tool(mcp_allowed_hosts=NOTHING_ALLOWED, mcp_servers=own) as tool:
        assert (await tool.list_tools(use_of(None))).tools
        with pytest.raises(ToolFailed, match="MCP_ALLOWED_HOSTS"):
            await tool.list_tools(use_of(running.url))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"server_url": None}, "MCP_SERVERS"),
        ({"headers": {"Host": "x"}}, "'Host'"),
        ({"headers": {"mcp-session-id": "x"}}, "'mcp-session-id'"),
        ({"headers": {"X-A": "a\r\nX-B: b"}}, "'X-A'"),
        ({"authorization": "a\r\nX-B: b"}, "authorization"),
    ],
)
async def test_a_wrong_declaration_is_refused(tool: McpTool, fields: dict[str, object], said: str) -> None:
    url = fields.pop("server_url", "http://127.0.0.1:1/mcp")
    with pytest.raises(ApiError, match=said) as refused:
        await tool.offer(use_of(url, **fields))  # type: ignore[arg-type]
    assert refused.value.status == 400


async def test_urls_can_be_switched_off_and_labels_need_no_credentials() -> None:
    async with mcp_tool(mcp_servers={"tests": STDIO}, mcp_server_urls=False) as tool:
        with pytest.raises(ApiError, match=r"MCP_SERVER_URLS=off.*: tests\."):
            await tool.offer(use_of("https://mcp.example/mcp"))
        with pytest.raises(ApiError, match="configured here"):
            await tool.offer(use_of(None, authorization="key"))
