"""MCP servers of both eras: listed, called and kept; in responses, along chains; who holds an approval."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import orjson
import pytest

from responses_app.kit.errors import StoreError
from responses_app.protocol.errors import ApiError, JsonObject, overloaded
from responses_app.stores.approvals import ApprovalHolder, ApprovalStore
from responses_app.stores.base import AcceptedResponse
from responses_app.tools.base import ToolFailed, ToolImage
from responses_app.tools.mcp.tool import McpTool
from responses_app.tools.network import NOTHING_ALLOWED
from responses_app.tools.settings import ServerAccess
from tests.contracts.store_life import Clock
from tests.kit.fakes import ANSWER, NOW, FakeEngine, FakeStore, Site
from tests.kit.mcp_servers import STDIO, McpServer, call_of, mcp_server, mcp_tool, use_of
from tests.kit.waiting import eventually
from tests.unit.runs.test_server_tools import prompt_of

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


def call(tool: str, arguments: str) -> str:
    return f"<|channel|>commentary to=tests.{tool} <|constrain|>json<|message|>{arguments}<|call|>"


ADD = call("add", '{"a":2,"b":3}')


def declared(server: McpServer, **fields: object) -> list[JsonObject]:
    return [{"type": "mcp", "server_label": "tests", "server_url": server.url, "require_approval": "never", **fields}]


def output_of(events: list[JsonObject]) -> list[JsonObject]:
    return events[-1]["response"]["output"]  # type: ignore[index,no-any-return]


async def test_a_server_is_listed_and_called(tool: McpTool, running: McpServer) -> None:
    site = Site(FakeEngine([ADD, ANSWER]), tools=[tool])
    events = await site.events(tools=declared(running, server_description="For tests."))
    listed, made, message = output_of(events)
    assert (listed["type"], listed["server_label"], "error" in listed) == ("mcp_list_tools", "tests", False)
    assert (made["name"], made["arguments"], made["output"], "error" in made) == ("add", '{"a":2,"b":3}', "5", False)
    assert message["type"] == "message"
    _, developer, *_ = prompt_of(site, 0).split("<|end|>")
    assert "## tests\n\n// For tests.\nnamespace tests {\n\n// Adds two numbers.\ntype add = (_: {" in developer
    assert "<|start|>tests.add to=assistant<|channel|>commentary<|message|>5<|end|>" in prompt_of(site, 1)
    usage = events[-1]["response"]["usage"]  # type: ignore[index]
    assert usage["output_tokens_details"]["tool_output_tokens"] > 0  # type: ignore[index]


async def test_what_continues_it_does_not_list_again(tool: McpTool, running: McpServer) -> None:
    site = Site(FakeEngine([ANSWER]), tools=[tool])
    tools = declared(running, allowed_tools=["add", "say"])
    first = await site.ask(input="hi", tools=tools)
    assert types_of(first) == ["mcp_list_tools", "message"]
    second = await site.ask(input="hi", tools=tools, previous_response_id=first["id"])
    assert types_of(second) == ["message"]
    assert "type add = " in prompt_of(site, 1)
    assert "type draw = " not in prompt_of(site, 1)
    replayed = [*first["output"], {"role": "user", "content": "hi"}]  # type: ignore[misc]
    third = await site.ask(input=replayed, tools=tools, store=False)
    assert types_of(third) == ["message"]
    assert "omitted" not in prompt_of(site, 2)
    wider = await site.ask(input="hi", tools=declared(running), previous_response_id=second["id"])
    assert types_of(wider) == ["message"]


# Approvals.


async def asked(site: Site, tools: list[JsonObject], **fields: object) -> tuple[JsonObject, JsonObject]:
    """Let the model call a tool that needs approval; return the response and the request for approval."""
    events = await site.events(tools=tools, **fields)
    *_, request = output_of(events)
    assert (request["type"], request["name"], request["server_label"]) == ("mcp_approval_request", "add", "tests")
    assert events[-1]["type"] == "response.completed"
    return events[-1]["response"], request  # type: ignore[return-value]


def answer_to(request: JsonObject, *, approve: bool, **fields: object) -> list[JsonObject]:
    return [{"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": approve, **fields}]


@dataclass
class Asking:
    """A site whose model has called a tool that needs approval, with what it said."""

    site: Site
    tools: list[JsonObject]
    first: JsonObject
    request: JsonObject

    def answered(self, *, approve: bool = True, **fields: object) -> dict[str, Any]:
        """Return a request that answers the one for approval."""
        answer = answer_to(self.request, approve=approve, **fields)
        return {"input": answer, "tools": self.tools, "previous_response_id": self.first["id"]}


class WatchedApprovals(ApprovalStore):
    """Tells who holds which request. Its next claim is answered when `going` is set, and each 61 s of a clock late."""

    def __init__(self, alias: str) -> None:
        super().__init__(using=alias, now=lambda: NOW)
        self.held: dict[str, ApprovalHolder] = {}
        self.going: asyncio.Event | None = None
        self.stands_still: Clock | None = None

    async def claim(self, project: str, request_id: str, response_id: str, *, instead_of: str = "") -> ApprovalHolder:
        holder = await super().claim(project, request_id, response_id, instead_of=instead_of)
        self.held[request_id] = holder
        if self.going is not None:
            going, self.going = self.going, None
            await going.wait()
        if self.stands_still is not None:
            self.stands_still.now += 61
        return holder

    async def release(self, project: str, request_id: str, response_id: str) -> None:
        await super().release(project, request_id, response_id)
        if request_id in self.held and self.held[request_id].response_id == response_id:
            del self.held[request_id]


@pytest.fixture(autouse=True)
async def approvals(sqlite_alias: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WatchedApprovals]:
    """Of all sites of a test."""
    store = WatchedApprovals(sqlite_alias)
    monkeypatch.setitem(Site.lent, "approvals", store)
    yield store
    await store.aclose()


async def asking_at(site: Site, running: McpServer) -> Asking:
    tools = declared(running, require_approval="always")
    return Asking(site, tools, *await asked(site, tools))


@pytest.fixture
async def asking(tool: McpTool, running: McpServer) -> Asking:
    return await asking_at(Site(FakeEngine([ADD, ANSWER]), tools=[tool]), running)


def types_of(response: JsonObject) -> list[str]:
    return [item["type"] for item in response["output"]]  # type: ignore[attr-defined, index, misc]


@pytest.mark.parametrize("how", ["by its id", "with its items", "on another worker"])
async def test_an_approved_call_is_made_first(tool: McpTool, running: McpServer, how: str) -> None:
    tools = declared(running, require_approval="always", authorization="secret-token")
    site = Site(FakeEngine([ADD, ANSWER]), tools=[tool])
    first, request = await asked(site, tools)
    given: dict[str, object] = {"previous_response_id": first["id"], "input": answer_to(request, approve=True)}
    if how == "with its items":
        given = {"input": [*first["output"], *answer_to(request, approve=True)], "store": False}  # type: ignore[misc]
    if how == "on another worker":
        site = Site(FakeEngine([ADD, ANSWER]), tools=[tool], store=site.store)
        site.engine.turns = [[ANSWER]]
    events = await site.events(tools=tools, **given)
    made, message = output_of(events)
    assert (made["type"], made["output"], made["approval_request_id"]) == ("mcp_call", "5", request["id"])
    assert message["type"] == "message"
    prompt = prompt_of(site, -1)
    assert prompt.count("to=tests.add") == 1
    assert "<|call|><|start|>tests.add to=assistant<|channel|>commentary<|message|>5<|end|>" in prompt
    assert "secret-token" not in str(site.store._responses) + str(events)


async def test_it_is_made_once_however_often_it_is_approved(asking: Asking) -> None:
    site, given = asking.site, asking.answered()
    second = await site.ask(**given)
    again = await site.ask(**{**given, "previous_response_id": second["id"]})
    assert types_of(again) == ["message"]
    more = {"role": "user", "content": "more"}
    whole = [*asking.first["output"], *given["input"], *second["output"], more]  # type: ignore[misc]
    assert types_of(await site.ask(input=whole, tools=asking.tools)) == ["message"]


async def test_what_is_approved_twice_at_the_same_time_is_called_once(asking: Asking) -> None:
    site, given = asking.site, asking.answered()
    site.engine.turns = [[ANSWER], [ANSWER]]
    begun = await site.begin(transport="sse", **given)
    refused = await site.refusal(transport="sse", **given)
    assert (refused.status, refused.code) == (409, "approval_in_use")
    assert str(asking.request["id"]) in refused.message
    made = output_of(await begun.to_the_end())
    assert [item["type"] for item in made] == ["mcp_call", "message"]
    assert types_of(await site.ask(**given)) == ["mcp_call", "message"], "another branch has its own call"


async def test_a_response_that_is_refused_holds_no_approval(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    site, given = asking.site, asking.answered()

    async def refuse(_: object) -> None:
        raise overloaded("Too many are running.", retry_after=1)

    with monkeypatch.context() as patch:
        patch.setattr(site.service.admission, "admit", refuse)
        with pytest.raises(ApiError, match="Too many"):
            await site.begin(**given)
    assert (await site.ask(**given))["status"] == "completed"


async def test_each_branch_of_a_conversation_is_approved_by_itself(asking: Asking) -> None:
    """Who continues the response that asked a second time has a conversation of its own, which has made no call."""
    for approve, kinds in ((True, ["mcp_call", "message"]), (False, ["message"]), (True, ["mcp_call", "message"])):
        assert types_of(await asking.site.ask(**asking.answered(approve=approve))) == kinds


@pytest.mark.parametrize("approve", [True, False])
async def test_another_project_answers_no_request_for_approval(asking: Asking, approve: bool) -> None:
    site, given = asking.site, asking.answered(approve=approve)
    id = given.pop("previous_response_id")
    for named in ({"previous_response_id": id}, {}):
        refused = await site.refusal(project="another", **given, **named)
        same = await site.refusal(project="another", **given, **dict.fromkeys(named, f"resp_{'0' * 32}"))
        assert (refused.status, refused.code) == (same.status, same.code)
    done = await site.ask(**asking.answered())
    assert done["output"][0]["output"] == "5"  # type: ignore[index]


async def test_a_refused_call_is_told_to_the_model(asking: Asking) -> None:
    second = await asking.site.ask(**asking.answered(approve=False, reason="too dear"))
    assert types_of(second) == ["message"]
    assert "<|start|>tests.add to=assistant" in prompt_of(asking.site, 1)
    assert "did not approve this call: too dear" in prompt_of(asking.site, 1)


async def test_a_call_that_nobody_answers_is_told_once_and_can_be_approved_later(asking: Asking) -> None:
    site, tools = asking.site, asking.tools
    second = await site.ask(input="something else", tools=tools, previous_response_id=asking.first["id"])
    third = await site.ask(input="and more", tools=tools, previous_response_id=second["id"])
    told = "<|start|>tests.add to=assistant<|channel|>commentary<|message|>[the user has not approved this call"
    assert [prompt_of(site, turn).count(told) for turn in (1, 2)] == [1, 1]
    assert f"<|call|>{told}" in prompt_of(site, 2)
    fourth = await site.ask(**{**asking.answered(), "previous_response_id": third["id"]})
    assert fourth["output"][0]["output"] == "5"  # type: ignore[index]


async def test_what_nobody_asked_cannot_be_approved(asking: Asking) -> None:
    unknown = await asking.site.refusal(input=answer_to({"id": "mcpr_0"}, approve=True), tools=asking.tools)
    assert (unknown.param, "mcpr_0" in unknown.message) == ("input[0].approval_request_id", True)
    given = asking.answered()
    undeclared = await asking.site.refusal(input=given["input"], previous_response_id=asking.first["id"])
    assert (undeclared.param, "not in 'tools'" in undeclared.message) == ("tools", True)


@pytest.mark.parametrize(
    ("approval", "asks"),
    [
        (None, True),
        ("always", True),
        ("never", False),
        ({"never": {"tool_names": ["add"]}}, False),
        ({"never": {"tool_names": ["say"]}}, True),
        ({"never": {"read_only": True}}, False),
        ({"always": {"tool_names": ["say"]}}, False),
        ({"always": {"tool_names": ["add"]}}, True),
        ({"always": {"read_only": True}, "never": {"tool_names": ["add"]}}, True),
    ],
)
async def test_what_needs_approval(tool: McpTool, running: McpServer, approval: object, asks: bool) -> None:
    site = Site(FakeEngine([ADD, ANSWER]), tools=[tool])
    events = await site.events(tools=declared(running, require_approval=approval))
    assert output_of(events)[1]["type"] == ("mcp_approval_request" if asks else "mcp_call")


# What goes wrong.


async def test_without_its_server_the_model_goes_on(tool: McpTool) -> None:
    away = McpServer("http://127.0.0.1:9/mcp")
    site = Site(FakeEngine([ANSWER]), tools=[tool])
    events = await site.events(tools=declared(away))
    listed, message = output_of(events)
    assert (listed["tools"], "could not be reached" in str(listed["error"])) == ([], True)
    assert message["type"] == "message"
    site.engine.supports_grammar = True
    demanded = {"type": "mcp", "server_label": "tests"}
    events = await site.events(tools=declared(away), tool_choice=demanded)
    assert events[-1]["type"] == "response.failed"
    assert "could not be reached" in str(events[-1]["response"]["error"])  # type: ignore[index]


async def test_a_call_that_fails_has_a_typed_error(tool: McpTool, running: McpServer) -> None:
    site = Site(FakeEngine([call("fail", "{}"), call("refuse", "{}"), ANSWER]), tools=[tool])
    events = await site.events(tools=declared(running))
    _, first, second, message = output_of(events)
    assert [item["status"] for item in (first, second, message)] == ["failed", "failed", "completed"]
    assert first["error"]["type"] == "mcp_tool_execution_error"  # type: ignore[index]
    assert second["error"] == {"type": "mcp_protocol_error", "code": -32042, "message": "Not today."}
    assert "It is a bad day." in prompt_of(site, 1)
    assert "Error: Not today." in prompt_of(site, 2)


async def test_nothing_of_its_access_is_kept_or_echoed(tool: McpTool, running: McpServer) -> None:
    store = FakeStore()
    site = Site(FakeEngine([ADD, ANSWER]), tools=[tool], store=store)
    url = running.url.replace("http://", "http://user:pass-word@") + "?key=in-the-query"
    secret = {"authorization": "a-token", "headers": {"X-Key": "in-a-header"}, "server_url": url}
    response = await site.ask(input="hi", tools=declared(running, **secret), background=True)
    (echoed,) = response["tools"]  # type: ignore[misc]
    assert echoed["server_url"] == running.url + "?<redacted>"  # type: ignore[index]
    kept = str(store._responses) + str(store.saved) + orjson.dumps(response).decode()
    for said in ("a-token", "in-a-header", "in-the-query", "pass-word"):
        assert said not in kept
    assert any(headers.get("x-key") == "in-a-header" for _, headers in running.requests)


class _SlowStore(FakeStore):
    """Its next acceptance waits for `going`, and fails then."""

    def __init__(self) -> None:
        super().__init__()
        self.going: asyncio.Event | None = None

    async def accept(self, accepted: AcceptedResponse) -> None:
        if self.going is not None:
            going, self.going = self.going, None
            await going.wait()
            raise StoreError("away")
        await super().accept(accepted)


async def _leave(site: Site, given: dict[str, Any], *, once: Callable[[], bool]) -> None:
    """Begin a response, and leave it as soon as `once` says so, before it has begun."""
    begun = asyncio.create_task(site.begin(**given))
    await eventually(once)
    begun.cancel()
    with pytest.raises(asyncio.CancelledError):
        await begun


async def test_whose_client_left_before_it_was_accepted_holds_no_approval(
    tool: McpTool, running: McpServer, approvals: WatchedApprovals
) -> None:
    store = _SlowStore()
    site = Site(FakeEngine([ADD, ANSWER]), store, tools=[tool])
    given = (await asking_at(site, running)).answered()
    store.going = going = asyncio.Event()
    await _leave(site, given, once=lambda: store.going is None)
    with pytest.raises(ApiError, match="approval"):
        await site.begin(**given)
    going.set()
    await eventually(lambda: not approvals.held)
    assert (await site.ask(**given))["status"] == "completed"


async def test_whose_client_left_while_it_was_claimed_holds_no_approval(
    tool: McpTool, running: McpServer, approvals: WatchedApprovals
) -> None:
    site = Site(FakeEngine([ADD, ANSWER]), tools=[tool])
    given = (await asking_at(site, running)).answered()
    approvals.going = going = asyncio.Event()
    await _leave(site, given, once=lambda: approvals.going is None)
    going.set()
    await eventually(lambda: not approvals.held)
    assert (await site.ask(**given))["status"] == "completed"


async def test_one_that_is_not_stored_holds_its_approval_until_it_ends(
    tool: McpTool, running: McpServer, approvals: WatchedApprovals
) -> None:
    clock, store, end = Clock(), FakeStore(), asyncio.Event()
    approvals._now = clock
    one = Site(FakeEngine([ADD, [end, ANSWER]]), store, tools=[tool])
    other = Site(FakeEngine([ANSWER]), store, tools=[tool], new_id=one.new_id)
    one.service.approving.renew_seconds = 0.01
    other.service.approving._now = clock
    given = (await asking_at(one, running)).answered()
    begun = await one.begin(transport="sse", **given, store=False)
    clock.now += 61
    holders = approvals.held
    await eventually(lambda: [each.claimed_at for each in holders.values()] == [clock.now])
    refused = await other.refusal(**given)
    assert (refused.status, refused.code) == (409, "approval_in_use")
    end.set()
    await begun.to_the_end()
    await eventually(lambda: not holders)
    assert (await other.ask(**given))["status"] == "completed"
    await eventually(lambda: not holders)


@pytest.mark.parametrize("stored", [False, True])
async def test_one_that_stood_still_for_so_long_that_another_may_have_made_its_call_makes_it_not(
    tool: McpTool,
    running: McpServer,
    monkeypatch: pytest.MonkeyPatch,
    approvals: WatchedApprovals,
    stored: bool,
) -> None:
    """Of a stored one everybody knows that it runs, and its log tells whether it is still this worker's."""
    clock = approvals.stands_still = Clock()
    monkeypatch.setattr("responses_app.runs.admission.own_clock", clock)
    site = Site(FakeEngine([call("say", '{"text":"hi"}'), ANSWER]), tools=[tool])
    tools = declared(running, require_approval="always")
    first = await site.ask(input="hi", tools=tools)
    *_, request = first["output"]  # type: ignore[misc]
    given = {"input": answer_to(request, approve=True), "tools": tools, "previous_response_id": first["id"]}
    response = await site.ask(**given, store=stored)
    made, message = response["output"]  # type: ignore[misc]
    assert (made["status"], message["type"]) == ("completed" if stored else "failed", "message")
    assert stored or "the approval may have been used elsewhere" in str(made["error"])
