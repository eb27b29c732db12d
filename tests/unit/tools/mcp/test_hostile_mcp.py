"""MCP servers that are wrong, slow or hostile: each a typed error, in its time, and nothing of it stays."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson
import pytest

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.offers import mcp_name
from responses_app.protocol.output.hosted_items import ListToolsBuilder
from responses_app.protocol.response.steps import CallTool, ToolReturned
from responses_app.runs.driving.hands import list_tools
from responses_app.runs.driving.tool_calls import call_tool
from responses_app.runs.plan.plan import ToolEntry
from responses_app.runs.plan.settings import RunSettings
from responses_app.tools.base import ToolFailed
from responses_app.tools.mcp.answers import MAX_LIST_BYTES, MAX_TOOLS
from responses_app.tools.mcp.tool import MAX_LISTED, MAX_PAGES, McpTool
from responses_app.tools.settings import ServerAccess
from tests.kit.fakes import counting_ids
from tests.kit.mcp_servers import STDIO, call_of, mcp_server, mcp_tool, serving, use_of

Answer = Callable[[JsonObject], Awaitable[Any] | Any]
EVENTS = b"text/event-stream"
TOOL: JsonObject = {"name": "ask", "inputSchema": {"type": "object"}}


@asynccontextmanager
async def answering(**methods: Answer) -> AsyncIterator[str]:
    """Run a server that answers JSON-RPC by these functions: a dict is a result, bytes and an int are HTTP's own.

    None: it begins to answer, and closes the connection.
    """
    handlers: dict[str, Answer] = {"server/discover": discovered, "tools/list": lambda _: {"tools": [TOOL]}}
    handlers |= {name.replace("_", "/", 1): handler for name, handler in methods.items()}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return
        body = b""
        while (message := await receive()).get("more_body") or "body" in message:
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        asked = orjson.loads(body or b"{}")
        given = handlers.get(asked.get("method"), lambda _: 404)(asked.get("params") or {})
        given = await given if isinstance(given, Awaitable) else given
        if given is None:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", EVENTS)]})
            await send({"type": "http.response.body", "body": b"data: {", "more_body": True})
            return
        status, kind, content = 200, b"application/json", given
        if isinstance(given, tuple):
            status, kind, content = given
        elif isinstance(given, int):
            status, content = given, b""
        if not isinstance(content, bytes):
            result = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", **content}
            content = orjson.dumps({"jsonrpc": "2.0", "id": asked.get("id"), "result": result})
        headers = [(b"content-type", kind), *([(b"location", content)] if status == 307 else [])]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    async with serving(app) as server:
        yield f"{server.url}/mcp"


def discovered(_: JsonObject) -> JsonObject:
    return {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}


async def failure_of(tool: McpTool, url: str, arguments: str = "{}") -> ToolFailed:
    with pytest.raises(ToolFailed) as failed:
        await tool.call(call_of(use_of(url), "ask", arguments))
    assert failed.value.shown["error"]["type"] in ("mcp_protocol_error", "http_error")  # type: ignore[index]
    return failed.value


@pytest.mark.parametrize("status", [401, 403, 500, 503])
async def test_an_http_error_keeps_its_status(tool: McpTool, status: int) -> None:
    async with answering(tools_call=lambda _: status) as url:
        error = (await failure_of(tool, url)).shown["error"]
        assert (error["type"], error["code"]) == ("http_error", status)  # type: ignore[index]


async def called(entry: ToolEntry) -> ToolReturned:
    """Call the tool as a run does."""
    asked = CallTool("tests.ask", "{}", "mcp_1", tool="ask")
    return await call_tool(entry, asked, tell=lambda _: None, settings=RunSettings())


NOT_MCP: dict[str, Any] = {
    "a page": (200, b"text/html", b"<h1>Hello</h1>"),
    "cut JSON": (200, b"application/json", b"{"),
    "another id": (200, b"application/json", b'{"jsonrpc":"2.0","id":99,"result":5}'),
    "cut event": (200, b"text/event-stream", b"data: {\n\n"),
    "no event": (200, b"text/event-stream", b""),
    "accepted": (202, b"application/json", b""),
    "closes": None,
    "no content": {"content": "no list"},
    "wants input": {"resultType": "input_required", "inputRequests": {}},
}


@pytest.mark.parametrize("given", NOT_MCP.values(), ids=NOT_MCP)
async def test_what_is_not_mcp_is_a_failure(tool: McpTool, given: Any) -> None:
    tool.idle_seconds = 1.0
    async with answering(tools_call=lambda _: given) as url:
        returned = await called(ToolEntry(tool, use_of(url), None))
        assert returned.failed
        assert returned.shown["error"]
        assert "Traceback" not in returned.text


async def test_a_redirect_elsewhere_is_not_followed(tool: McpTool) -> None:
    async with answering(tools_call=lambda _: (307, b"text/plain", b"http://169.254.169.254/latest/meta-data")) as url:
        assert "not followed" in str(await failure_of(tool, url))


async def test_a_result_of_fifty_megabytes_is_refused(tool: McpTool) -> None:
    large = {"content": [{"type": "text", "text": "x" * 50_000_000}]}
    async with answering(tools_call=lambda _: large) as url:
        await failure_of(tool, url)
        assert (await tool.list_tools(use_of(url))).tools, "the server can be used again"


async def test_pages_without_an_end_come_to_one(tool: McpTool) -> None:
    pages: list[JsonObject] = []

    def page(params: JsonObject) -> JsonObject:
        pages.append(params)
        return {"tools": [{**TOOL, "name": f"t{len(pages)}"}], "nextCursor": "more"}

    async with answering(tools_list=page) as url:
        assert len((await tool.list_tools(use_of(url))).tools) == MAX_PAGES == len(pages)
    full = [{**TOOL, "name": f"t{number}"} for number in range(2 * MAX_LISTED)]
    async with answering(tools_list=lambda _: {"tools": full, "nextCursor": "more"}) as url:
        assert len((await tool.list_tools(use_of(url))).tools) == MAX_TOOLS
    large = [{**each, "description": "d" * 4000} for each in full]
    async with answering(tools_list=lambda _: {"tools": large}) as url:
        assert 100 < len((await tool.list_tools(use_of(url))).tools) < MAX_LIST_BYTES / 4000


async def test_what_it_says_of_its_tools_is_bounded_and_cleaned(tool: McpTool) -> None:
    deep: JsonObject = {"type": "object"}
    listed = [
        {**TOOL, "description": "d" * 100_000},
        {**TOOL, "name": "large", "inputSchema": {"type": "object", "title": "t" * 100_000}},
        {**TOOL, "name": "a <|call|> b"},
        {**TOOL, "name": "a ?call? b"},
        {**TOOL, "name": "n" * 1000},
        {**TOOL, "name": "deep", "inputSchema": deep},
    ]
    async with answering(tools_list=lambda _: {"tools": listed}) as url:
        use = use_of(url)
        tools = (await tool.list_tools(use)).tools
    assert [each["name"] for each in tools] == ["ask", "large", "a <|call|> b", "a ?call? b", "n" * 1000, "deep"]
    assert len(str(tools[0]["description"])) == 4096
    assert tools[1]["input_schema"] == {"type": "object"}
    offer = tool.offer_listed(use, tools)
    names = [each.name for each in offer.tools]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"tests\.[A-Za-z0-9_.-]{1,128}", name) for name in names), names
    assert [name for name in names if len(name) < 12] == ["tests.ask", "tests.large", "tests.deep"]


NAMED: Sequence[str] = [
    "查询天气",
    "搜索文件",
    "发送邮件",
    "plain",
    "a b",
    "a_b",
    "a-b",
    "a/b",
    "naïve",
    "🚀",
    "🚀🚀",
    "n" * 129,
]


async def test_tools_of_any_name_are_offered_each_under_its_own_and_given_back_as_they_were(tool: McpTool) -> None:
    called: list[JsonObject] = []

    def answer(params: JsonObject) -> JsonObject:
        called.append(params)
        return {"content": [{"type": "text", "text": f"from {params['name']}"}]}

    async with answering(
        tools_list=lambda _: {"tools": [{**TOOL, "name": name} for name in NAMED]}, tools_call=answer
    ) as url:
        use = use_of(url, require_approval={"never": {"tool_names": NAMED[1:]}})
        listed, offer = await list_tools(ToolEntry(tool, use, None))
        assert ([each["name"] for each in listed.tools], listed.error) == ([*NAMED], None)
        assert [each.tool for each in offer.tools] == [*NAMED]
        assert [each.asks for each in offer.tools] == [True, *[False] * (len(NAMED) - 1)]
        names = [each.name for each in offer.tools]
        assert len(set(names)) == len(NAMED)
        # So is one found that stands in a history, or that was approved, whatever else is listed then.
        assert names == [mcp_name("tests", name) for name in NAMED]
        for each in offer.tools:
            result = await tool.call(call_of(use, each.tool))
            assert result.text == f"from {each.tool}"
        # What a name says is told to the model where it cannot call it so.
        told = {function.name: function.description for function in offer.namespace.functions}
        assert [told[name.partition(".")[2]] for name in names[:4]] == ["查询天气", "搜索文件", "发送邮件", ""]
        allowed = use_of(url, allowed_tools=["搜索文件", "a b"])
        assert [each["name"] for each in (await tool.list_tools(allowed)).tools] == ["搜索文件", "a b"]
    assert [params["name"] for params in called] == [*NAMED]


LARGE: JsonObject = {"type": "object", "title": "t" * 33_000}


@pytest.mark.parametrize(
    ("tools", "more", "kept", "said"),
    [
        ([TOOL, TOOL], {}, 1, "'tests' are listed. Listed twice, and left out the second time: 'ask'."),
        ([TOOL, {**TOOL, "name": ""}], {}, 1, "Left out, since it has no name: ''."),
        ([{**TOOL, "inputSchema": LARGE}], {}, 1, "Listed without a schema, since theirs has more than 32 KiB"),
        ([{**TOOL, "name": f"t{n}"} for n in range(MAX_TOOLS + 12)], {}, MAX_TOOLS, "'t256', 't257', "),
        ([{**TOOL, "name": f"t{n}"} for n in range(MAX_TOOLS + 12)], {}, MAX_TOOLS, "'t265' and 2 more."),
        (
            [{**TOOL, "name": f"t{n}", "description": "d" * 4096} for n in range(140)],
            {},
            125,
            "of 512 KiB together: 't1",
        ),
        ([TOOL] * (MAX_LISTED + 1), {}, 1, f"It has more tools: {MAX_LISTED} on {MAX_PAGES} pages are asked for."),
        ([TOOL], {"nextCursor": "more"}, 1, f"It has more tools: {MAX_LISTED} on {MAX_PAGES} pages are asked for."),
    ],
)
async def test_what_is_left_out_of_a_list_is_said_in_its_item(
    tool: McpTool, tools: list[JsonObject], more: JsonObject, kept: int, said: str
) -> None:
    async with answering(tools_list=lambda _: {"tools": tools, **more}) as url:
        listed, offer = await list_tools(ToolEntry(tool, use_of(url), None))
    assert (len(listed.tools), len(offer.tools)) == (kept, kept)
    assert said in str(listed.error), listed.error
    events = []
    builder = ListToolsBuilder(counting_ids(), "tests")
    builder.tools, builder.error = listed.tools, listed.error
    events += builder.closed()
    assert [kind for kind, _ in events] == ["response.mcp_list_tools.completed"]
    assert builder.item("completed")["error"] == listed.error


async def test_what_it_gives_is_not_checked_against_its_own_schema(tool: McpTool) -> None:
    hostile = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
    given = {"content": [], "structuredContent": {"a": "a" * 60 + "b"}}
    async with answering(
        tools_list=lambda _: {"tools": [{**TOOL, "outputSchema": hostile}]}, tools_call=lambda _: given
    ) as url:
        await tool.list_tools(use_of(url))
        async with asyncio.timeout(5):
            result = await tool.call(call_of(use_of(url), "ask"))
        assert result.text.startswith('{"a":"aaa')


async def test_one_that_hangs_is_left_in_time_and_a_cancellation_at_once(tool: McpTool) -> None:
    asked, let_go = asyncio.Event(), asyncio.Event()

    async def hang(_: JsonObject) -> int:
        asked.set()
        await let_go.wait()
        return 500

    async with answering(tools_call=hang, tools_list=hang) as url:
        use = use_of(url)
        entry = ToolEntry(tool, use, None)
        calling = asyncio.create_task(tool.call(call_of(use, "ask")))
        await asked.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        tool.idle_seconds = 0.2
        returned = await called(entry)
        assert "did not answer within 0.2 s" in returned.text
        listed, offer = await list_tools(entry)
        assert (offer.tools, offer.problem, "did not answer within 0.2 s" in offer.problem) == ((), listed.error, True)
        let_go.set()


async def test_a_program_sees_nothing_of_the_servers_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "of the server")
    script = "import os, sys; sys.stderr.write(os.environ.get('SECRET_KEY', 'nothing')); sys.exit(3)"
    for access in (
        ServerAccess(transport="stdio", command=("/no/such/program",)),
        ServerAccess(transport="stdio", command=(STDIO.command[0], "-c", script)),
    ):
        async with mcp_tool(mcp_servers={"tests": access}) as tool:
            with pytest.raises(ToolFailed) as failed:
                await tool.list_tools(use_of(None))
            assert "of the server" not in str(failed.value)
            assert "/no/such" not in str(failed.value)


async def test_what_is_closed_is_used_no_more() -> None:
    async with mcp_tool() as tool:
        async with answering() as url:
            await tool.list_tools(use_of(url))
            await tool.aclose()
            with pytest.raises(ToolFailed):
                await tool.list_tools(use_of(url))
        await tool.aclose()


@pytest.mark.parametrize("kind", [b"application/json", b"text/event-stream"])
@pytest.mark.parametrize("block", [b'{"type":"text","text":""}', b"0"])
async def test_what_would_take_long_to_read_is_not_read(tool: McpTool, kind: bytes, block: bytes) -> None:
    content = b",".join([block] * 31_000)
    body = b'{"jsonrpc":"2.0","id":2,"result":{"resultType":"complete","content":[' + content + b"]}}"
    body = b"event: message\ndata: " + body + b"\n\n" if kind == b"text/event-stream" else body
    async with answering(tools_call=lambda _: (200, kind, body)) as url:
        await failure_of(tool, url)


async def test_an_address_that_is_none_is_a_failure(tool: McpTool) -> None:
    for url in ("http://[:::::]/", "http://[1.2]/mcp", "http://a:99999/"):
        print(url, await failure_of(tool, url))


async def test_a_failure_says_whether_a_server_was_reached(tool: McpTool) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        refused = await failure_of(tool, f"http://127.0.0.1:{nobody.getsockname()[1]}/mcp")
    assert str(refused) == "The MCP server could not be reached (Connection refused)."
    async with answering(tools_call=lambda _: {"content": "no list"}) as url:
        assert str(await failure_of(tool, url)) == "The MCP server's answer is not MCP."


@pytest.mark.parametrize("name", [{}, ["a"], None, 5, "x" * 300, "\ud800"])
async def test_a_list_of_tools_in_the_input_may_say_anything(tool: McpTool, name: object) -> None:
    listed = {"type": "mcp_list_tools", "server_label": "tests", "tools": [{"name": name}, {"name": "ask"}, 5]}
    use = use_of("http://wiki.example/mcp", allowed_tools=["ask"])
    offer = await tool.offer(replace(use, items=[listed]))
    assert offer is not None
    assert [each.tool for each in offer.tools] == ["ask"]


async def test_a_server_cannot_have_a_connection_held_for_what_it_may_want_to_say(tool: McpTool) -> None:
    async with mcp_server("old http") as server:
        await tool.list_tools(use_of(server.url))
        await tool.call(call_of(use_of(server.url), "say", '{"text": "hello"}'))
        assert {method for method, _ in server.requests} == {"POST"}
