"""A tool that the server runs inside a response: its item is open while it runs, its result lies between two turns."""

import asyncio
from collections.abc import Callable
from typing import ClassVar

import pytest

from engine.errors import PromptTooLong
from engine.formats.base import ToolNamespace
from engine.formats.harmony.encoding import decode_tokens
from responses_app.kit.errors import StoreError
from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.protocol.items.offers import Offer, OfferedTool
from responses_app.protocol.response.calls import LAST_CALL
from responses_app.runs.driving.tool_calls import LEFT_OUT, cut_text
from responses_app.tools.base import BaseTool, ToolCall, ToolFailed, ToolResult, ToolUse
from tests.kit.fakes import FakeEngine, Site, run_settings
from tests.kit.waiting import eventually

CALL = "<|channel|>analysis to=python code<|message|>1+1<|call|>"
ANSWER = "<|channel|>final<|message|>It is 2.<|return|>"
ASKED = [{"type": "code_interpreter", "container": {"type": "auto"}}]


class Shell(BaseTool):
    """The tool of twenty lines."""

    kinds: ClassVar = ("code_interpreter",)
    idle_seconds = 0.05

    def __init__(
        self,
        gives: Callable[[ToolCall], ToolResult] = lambda call: ToolResult(str(eval(call.arguments))),
        *,
        fails: Exception | None = None,
        hangs: bool = False,
        repeatable: bool = False,
    ) -> None:
        self.gives, self.fails, self.hangs, self.repeatable = gives, fails, hangs, repeatable
        self.ended, self.calls = asyncio.Event(), list[ToolCall]()

    async def offer(self, use: ToolUse) -> Offer:
        tool = OfferedTool(
            name="python",
            item="code_interpreter_call",
            repeatable=self.repeatable,
            fields={"container_id": f"cntr_of_{use.chain_id}"},
        )
        return Offer(ToolNamespace("python", "Runs Python."), [tool])

    async def call(self, call: ToolCall) -> ToolResult:
        self.calls.append(call)
        try:
            if self.hangs:
                await asyncio.Event().wait()
            if self.fails:
                raise self.fails
            return self.gives(call)
        finally:
            self.ended.set()


def site_with(tool: Shell) -> Site:
    return Site(FakeEngine([CALL, ANSWER]), tools=[tool])


def prompt_of(site: Site, turn: int) -> str:
    return decode_tokens(site.engine.prompts[turn])


async def events_of(site: Site) -> list[JsonObject]:
    return await site.events(tools=ASKED)


def items_of(events: list[JsonObject]) -> list[tuple[object, object]]:
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    return [(item["type"], item["status"]) for item in done]  # type: ignore[index]


async def test_its_item_is_open_while_it_runs_and_a_cancellation_ends_it() -> None:
    tool = Shell(hangs=True)
    tool.idle_seconds = 60.0
    site = site_with(tool)
    reading = await site.begin(input="hi", tools=ASKED)
    await eventually(lambda: site.engine.running == 0 and len(site.engine.requests) == 1)
    seen = reading.take()
    assert [event["type"] for event in seen][-1] == "response.code_interpreter_call.interpreting"
    site.registry.cancel(reading.run, reason="a test")
    events = await reading.to_the_end()
    assert tool.ended.is_set()
    assert events[-1]["response"]["status"] == "cancelled"  # type: ignore[index]
    assert items_of(events) == [("code_interpreter_call", "incomplete")]


@pytest.mark.parametrize(
    ("tool", "told"),
    [
        (Shell(fails=ToolFailed("no such file")), "Error: no such file"),
        (Shell(fails=ValueError("secret")), "Error: the tool broke."),
        (Shell(hangs=True), "Error: the tool did not answer within 0.05 s."),
    ],
    ids=["fails", "breaks", "hangs"],
)
async def test_when_it_fails_the_model_is_told_and_goes_on(tool: Shell, told: str) -> None:
    site = site_with(tool)
    events = await events_of(site)
    assert items_of(events) == [("code_interpreter_call", "failed"), ("message", "completed")]
    assert told in prompt_of(site, 1)
    assert "secret" not in prompt_of(site, 1)
    assert tool.ended.is_set()


# What is declared, and what a request may have.


async def test_the_model_is_told_of_it_where_it_was_trained_to_look() -> None:
    site = site_with(Shell())
    await events_of(site)
    system = prompt_of(site, 0).partition("<|end|>")[0]
    assert "## python\n\nRuns Python.\n\n" in system


@pytest.mark.parametrize("choice", [None, {"type": "code_interpreter"}])
async def test_where_there_is_none_the_request_is_refused_with_the_setting(choice: object) -> None:
    with pytest.raises(ApiError, match="SANDBOX") as refused:
        await Site().begin(input="hi", tools=ASKED, tool_choice=choice)
    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "tools[0].type")


async def test_one_that_cannot_be_used_now_says_why() -> None:
    tool = Shell()
    tool.problem = lambda: "Install bubblewrap."  # type: ignore[method-assign]
    with pytest.raises(ApiError, match="Install bubblewrap"):
        await site_with(tool).begin(input="hi", tools=ASKED)


@pytest.mark.parametrize(
    ("kind", "setting"), [("web_search", "SEARCH_URL or SEARCH_MCP"), ("image_generation", "IMAGE_SERVICE_URL")]
)
async def test_what_agents_declare_unasked_is_left_out_unless_it_is_demanded(kind: str, setting: str) -> None:
    tools: list[JsonObject] = [{"type": kind}, {"type": "computer"}]
    response = await Site().ask(input="hi", tools=tools)
    assert (response["status"], response["tools"]) == ("completed", tools)
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": kind}]}
    for choice in ({"type": kind}, "required", allowed):
        with pytest.raises(ApiError, match=setting) as refused:
            await Site().begin(input="hi", tools=tools, tool_choice=choice)
        assert refused.value.param == "tool_choice"
    # Where another tool can be called, none of these is demanded: only this engine cannot force a call.
    for choice in ("required", {**allowed, "tools": [{"type": kind}, *ASKED]}):
        with pytest.raises(ApiError, match="cannot hold the model to a format or to a call"):
            await site_with(Shell()).begin(input="hi", tools=[*tools, *ASKED], tool_choice=choice)


async def test_where_calls_are_forbidden_it_is_neither_told_nor_run() -> None:
    tool = Shell()
    site = site_with(tool)
    response = await site.ask(input="hi", tools=ASKED, tool_choice="none")
    assert "## python" not in prompt_of(site, 0)
    assert not tool.calls
    assert response["status"] == "completed"


# What comes of a call.


async def test_it_knows_its_request_and_its_chain() -> None:
    tool = Shell()
    site = site_with(tool)
    first = await site.ask(input="hi", tools=ASKED, include=["code_interpreter_call.outputs"])
    site.engine.requests.clear()
    second = await site.ask(input="hi", tools=ASKED, previous_response_id=first["id"])
    uses = [call.use for call in tool.calls]
    assert [use.response_id for use in uses] == [first["id"], second["id"]]
    assert {use.chain_id for use in uses} == {first["id"]}
    assert [list(use.include) for use in uses] == [["code_interpreter_call.outputs"], []]
    assert uses[0].declared == ASKED[0]
    assert first["output"][0]["container_id"] == second["output"][0]["container_id"]  # type: ignore[index]


async def test_what_it_leaves_later_calls_know() -> None:
    tool = Shell(lambda call: ToolResult("ok", state={"calls": (call.state or {"calls": 0})["calls"] + 1}))  # type: ignore[operator]
    site = Site(FakeEngine([CALL, CALL, ANSWER]), tools=[tool])
    first = await site.ask(input="hi", tools=ASKED)
    unrelated = await site.ask(input="hi", previous_response_id=first["id"])
    site.engine.requests.clear()
    await site.ask(input="hi", tools=ASKED, previous_response_id=unrelated["id"])
    assert [call.state for call in tool.calls] == [None, {"calls": 1}, {"calls": 2}, {"calls": 3}]


async def test_a_client_can_name_its_items_by_their_ids() -> None:
    site = site_with(Shell())
    first = await site.ask(input="hi", tools=ASKED)
    call, answer = first["output"]  # type: ignore[misc]
    site.engine.turns[:] = [[ANSWER]]
    again = [
        {"role": "user", "content": "hi"},
        *({"type": "item_reference", "id": each["id"]} for each in (call, answer)),
    ]
    await site.ask(input=[*again, {"role": "user", "content": "more"}])
    read = prompt_of(site, -1)
    assert "to=python code<|message|>1+1<|call|>" in read
    assert "It is 2.<|end|><|start|>user" in read


async def test_what_it_shows_is_the_items() -> None:
    tool = Shell(lambda call: ToolResult("2", {"outputs": [{"type": "logs", "logs": "2"}]}))
    response = await site_with(tool).ask(input="hi", tools=ASKED)
    item = response["output"][0]  # type: ignore[index]
    assert (item["code"], item["outputs"], item["id"]) == (
        "1+1",
        [{"type": "logs", "logs": "2"}],
        tool.calls[0].item_id,
    )


async def test_the_model_is_told_which_call_is_its_last() -> None:
    site = Site(FakeEngine([CALL, CALL, ANSWER]), tools=[Shell()])
    await site.ask(input="hi", tools=ASKED, max_tool_calls=2)
    assert "<|message|>2<|end|>" in prompt_of(site, 1)
    assert f"<|message|>2\n{LAST_CALL}<|end|>" in prompt_of(site, 2)


async def test_an_output_is_cut_to_what_the_context_has_room_for() -> None:
    tool = Shell(lambda call: ToolResult("many words, " * 5000))
    site = Site(FakeEngine([CALL, CALL, CALL, ANSWER], max_model_len=2000), tools=[tool])
    events = await events_of(site)
    assert items_of(events) == [*[("code_interpreter_call", "completed")] * 3, ("message", "completed")]
    assert "more bytes are left out]<|end|>" in prompt_of(site, 1)
    assert prompt_of(site, 3).endswith(f"{LEFT_OUT}<|end|><|start|>assistant")
    assert [len(prompt) for prompt in site.engine.prompts][-1] < 2000
    assert 1300 < len(site.engine.prompts[1]) <= 1500, "a quarter of it is left for the answer"


async def test_a_response_whose_context_is_full_ends_there() -> None:
    full = PromptTooLong(prompt_tokens=2001, max_model_len=2000)
    site = Site(FakeEngine([CALL, [full]]), tools=[Shell()])
    events = await events_of(site)
    assert items_of(events) == [("code_interpreter_call", "completed")]
    response = events[-1]["response"]
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})  # type: ignore[index]
    site.engine.turns[:] = [[ANSWER]]
    more = await site.ask(input="short", previous_response_id=response["id"])  # type: ignore[index]
    assert more["status"] == "completed"


async def test_of_a_long_text_the_model_reads_as_much_as_is_set() -> None:
    tool = Shell(lambda call: ToolResult("é" * 1000))
    site = Site(FakeEngine([CALL, ANSWER]), tools=[tool], settings=run_settings(server_tool_max_output_bytes=11))
    await site.ask(input="hi", tools=ASKED)
    assert f"{'é' * 5}\n[1989 more bytes are left out]<|end|>" in prompt_of(site, 1)


def test_a_text_is_cut_between_characters() -> None:
    assert cut_text("abc", 3) == "abc"
    assert cut_text("a👍", 4) == "a\n[1 more bytes are left out]"
    assert cut_text("\ud800", 4) == "?"


@pytest.mark.parametrize("shown", [{"outputs": "x" * 5_000_000}, {"outputs": object()}], ids=["too large", "no JSON"])
async def test_an_item_that_cannot_be_shown_has_failed(shown: JsonObject) -> None:
    tool = Shell(lambda call: ToolResult("2", shown))
    events = await events_of(site_with(tool))
    assert items_of(events) == [("code_interpreter_call", "failed"), ("message", "completed")]


async def test_a_report_gives_it_more_time() -> None:
    class Slow(Shell):
        idle_seconds = 1.0

        async def call(self, call: ToolCall) -> ToolResult:
            clock = asyncio.get_running_loop().time
            began = clock()
            while clock() < began + 1.5 * self.idle_seconds:
                await asyncio.sleep(0.01)
                call.report({})
            return ToolResult("2")

    events = await events_of(site_with(Slow()))
    assert items_of(events) == [("code_interpreter_call", "completed"), ("message", "completed")]


async def test_reports_give_it_no_more_than_the_whole_time() -> None:
    class Endless(Shell):
        idle_seconds, max_seconds = 60.0, 0.1

        async def call(self, call: ToolCall) -> ToolResult:
            while True:
                await asyncio.sleep(0.01)
                call.report({})

    site = site_with(Endless())
    assert items_of(await events_of(site)) == [("code_interpreter_call", "failed"), ("message", "completed")]
    assert "Error: the tool did not answer within 0.1 s." in prompt_of(site, 1)


async def test_of_its_calls_as_many_are_made_as_the_request_allows() -> None:
    tool = Shell()
    site = Site(FakeEngine([CALL, CALL, CALL, ANSWER]), tools=[tool])
    events = await site.events(tools=ASKED, max_tool_calls=2)
    kinds = [kind for kind, _ in items_of(events)]
    assert kinds == ["code_interpreter_call", "code_interpreter_call", "reasoning", "message"]
    assert len(tool.calls) == 2
    assert "(max_tool_calls)" in prompt_of(site, 3)


class Homeless(Shell):
    """A tool that looks into the store, which is away, for what a request names."""

    async def offer(self, use: ToolUse) -> Offer:
        raise StoreError("away")


async def test_a_tool_that_cannot_reach_the_store_is_to_be_asked_for_again() -> None:
    error = await Site(tools=[Homeless()]).refusal(input="hi", tools=ASKED)
    assert (error.status, error.retry_after is not None) == (503, True)


@pytest.mark.parametrize(("name", "kind"), [("search", "search"), ("open", "open_page"), ("find", "find_in_page")])
@pytest.mark.parametrize("declared", ["web_search", "web_search_preview"])
async def test_a_search_that_nothing_runs_is_an_item_that_has_failed(declared: str, name: str, kind: str) -> None:
    call = f'<|channel|>commentary to=browser.{name} code<|message|>{{"query": "turtles"}}<|call|>'
    site = Site(FakeEngine([[call], [ANSWER], [ANSWER]]))
    tools = [{"type": declared}]
    events = await (await site.begin(input="hi", tools=tools, store=False)).to_the_end()
    assert [str(event["type"]).removeprefix("response.") for event in events[2:7]] == [
        "output_item.added",
        *(f"web_search_call.{each}" for each in ("in_progress", "searching", "completed")),
        "output_item.done",
    ]
    item, message = events[-1]["response"]["output"]  # type: ignore[index]
    assert events[6]["item"] == item
    assert (item["type"], item["status"], item["action"]["type"]) == ("web_search_call", "failed", kind)
    assert "SEARCH_URL" in item["error"]["message"]
    assert message["content"][0]["text"] == "It is 2."
    assert "Error: this tool does not exist" in decode_tokens(site.engine.requests[1].prompt_token_ids)
    again = [{"role": "user", "content": "hi"}, item, message, {"role": "user", "content": "And?"}]
    await site.ask(input=again, tools=tools)
    assert '"message":"Nothing searches the web here' in decode_tokens(site.engine.requests[2].prompt_token_ids)
