"""The search for tools that this server runs: what the model is told, what it finds, and what it can call then."""

import orjson
import pytest

from engine.types import AnyText, JsonSchema
from responses_app.protocol.errors import JsonObject
from tests.kit.fakes import ANSWER, THOUGHT, FakeEngine, Site
from tests.kit.laws import assert_laws
from tests.kit.oracle import validate_event, validate_response
from tests.unit.formats.families import QWEN
from tests.unit.formats.test_chat_template import FamilySite
from tests.unit.runs.readers import rules_of
from tests.unit.runs.test_client_tools import GrammarEngine
from tests.unit.runs.test_listed_tools import Servers
from tests.unit.runs.test_server_tools import prompt_of
from tests.unit.runs.test_takeover import TokenEngine, assert_the_same_wherever_it_is_cut, undisturbed

SEARCH: JsonObject = {"type": "tool_search"}
CRM: JsonObject = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers and their orders.",
    "tools": [
        {
            "type": "function",
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {"customer_id": {"type": "string"}},
                "required": ["customer_id"],
                "additionalProperties": False,
            },
            "strict": True,
            "defer_loading": True,
        }
        for name, description in (("get_profile", "Fetches a customer."), ("list_open_orders", "Lists open orders."))
    ],
}
ALONE: JsonObject = {"type": "function", "name": "eta", "description": "When a parcel comes.", "defer_loading": True}
WIKI: JsonObject = {
    "type": "mcp",
    "server_label": "wiki",
    "server_url": "https://mcp.example/",
    "server_description": "All that is known.",
    "defer_loading": True,
    "require_approval": "never",
}


def said(name: str, text: str) -> str:
    return f"{THOUGHT}<|channel|>commentary to={name} <|constrain|>json<|message|>{text}<|call|>"


def search(**arguments: object) -> str:
    return said("tool_search.search", orjson.dumps({"query": "", **arguments}).decode())


CALL = said("functions.crm.list_open_orders", '{"customer_id":"c1"}')


def kinds(response: JsonObject) -> list[str]:
    return [item["type"] for item in response["output"] if item["type"] != "reasoning"]  # type: ignore[attr-defined]


def of_kind(response: JsonObject, kind: str) -> JsonObject:
    (item,) = [item for item in response["output"] if item["type"] == kind]  # type: ignore[attr-defined]
    return item


async def test_what_is_deferred_is_not_in_the_prompt_until_it_is_found() -> None:
    site = Site(GrammarEngine([search(query="open orders"), CALL]))
    tools = [CRM, ALONE, SEARCH]
    events = await site.events(tools=tools)
    for event in events:
        validate_event(event)
    response = events[-1]["response"]
    assert isinstance(response, dict)
    validate_response(response)
    assert kinds(response) == ["tool_search_call", "tool_search_output", "function_call"]
    call, output = of_kind(response, "tool_search_call"), of_kind(response, "tool_search_output")
    assert (call["execution"], call["call_id"], call["arguments"]) == ("server", None, {"query": "open orders"})
    assert output["tools"] == [{**CRM, "tools": [CRM["tools"][1]]}]  # type: ignore[index]
    called = of_kind(response, "function_call")
    assert (called["name"], called["namespace"]) == ("list_open_orders", "crm")
    before, behind = prompt_of(site, 0), prompt_of(site, 1)
    assert "- crm: Customers and their orders." in before
    assert not any(word in before for word in ("list_open_orders", "get_profile", "eta", "customer_id"))
    assert behind.startswith(before.removesuffix("<|start|>assistant"))  # the engine's prefix cache has it
    assert "crm.list_open_orders" in behind
    assert "get_profile" not in behind
    first, second = (request.grammar for request in site.engine.requests)
    assert [rule.name for rule in first.rules.calls] == ["tool_search.search"]
    rules = {rule.name: rule.content for rule in second.rules.calls}
    assert rules.keys() == {"tool_search.search", "crm.list_open_orders"}
    assert isinstance(rules["crm.list_open_orders"], JsonSchema)


async def continued(site: Site, first: JsonObject, *, replays: bool) -> str:
    """Answer the call of a response; return the prompt of the next one."""
    call_id = of_kind(first, "function_call")["call_id"]
    output: JsonObject = {"type": "function_call_output", "call_id": call_id, "output": "none"}
    tools = [CRM, ALONE, SEARCH]
    if replays:
        question: JsonObject = {"role": "user", "content": "hi"}
        await site.ask(input=[question, *first["output"], output], tools=tools)  # type: ignore[misc]
    else:
        await site.ask(input=[output], tools=tools, previous_response_id=first["id"])
    return prompt_of(site, -1)


@pytest.mark.parametrize("replays", [False, True])
async def test_a_continuation_reads_exactly_what_was_sampled(*, replays: bool) -> None:
    spaced = said("tool_search.search", '{ "query":  "open orders" }')
    site = Site(GrammarEngine([spaced, CALL, ANSWER]))
    first = await site.ask(input="hi", tools=[CRM, ALONE, SEARCH])
    prompt = await continued(site, first, replays=replays)
    assert prompt.startswith(prompt_of(site, 1))
    assert spaced.partition("commentary")[2] in prompt
    assert {rule.name for rule in rules_of(site).calls} == {"tool_search.search", "crm.list_open_orders"}


async def test_a_function_in_no_namespace_is_marked_as_openai_does_in_every_response() -> None:
    site = Site(FakeEngine([search(query="eta"), said("functions.eta", "{}"), said("functions.eta", "{}")]))
    first = await site.ask(input="hi", tools=[ALONE, SEARCH])
    output = {"type": "function_call_output", "call_id": of_kind(first, "function_call")["call_id"], "output": "1"}
    second = await site.ask(input=[output], tools=[ALONE, SEARCH], previous_response_id=first["id"])
    assert [of_kind(each, "function_call").get("namespace") for each in (first, second)] == ["eta", "eta"]


async def test_tools_of_a_server_are_found_and_run() -> None:
    tool = Servers()
    turns = [search(paths=["wiki"]), said("wiki.ask", '{"q":"a"}'), ANSWER, said("wiki.ask", '{"q":"b"}'), ANSWER]
    site = Site(GrammarEngine(turns), tools=[tool])
    first = await site.ask(input="hi", tools=[WIKI, SEARCH])
    validate_response(first)
    assert kinds(first) == ["mcp_list_tools", "tool_search_call", "tool_search_output", "mcp_call", "message"]
    (found,) = of_kind(first, "tool_search_output")["tools"]  # type: ignore[misc]
    assert (found["server_label"], found["allowed_tools"]) == ("wiki", ["ask"])
    assert "- wiki: All that is known." in prompt_of(site, 0)
    assert "Asks." not in prompt_of(site, 0)
    assert "to=NAME" in prompt_of(site, 1)
    assert '"name":"wiki.ask"' in prompt_of(site, 1)
    first_rules = site.engine.requests[0].grammar
    assert [rule.name for rule in first_rules.rules.calls] == ["tool_search.search"]
    # Found once, it can be called in the whole chain, also where the client sends the items again.
    await site.ask(input="and?", tools=[WIKI, SEARCH], previous_response_id=first["id"])
    question: JsonObject = {"role": "user", "content": "hi"}
    await site.ask(input=[question, *first["output"], question], tools=[WIKI, SEARCH])  # type: ignore[misc]
    assert [call.name for call in tool.calls] == ["wiki.ask", "wiki.ask"]
    for request in site.engine.requests[1:]:
        assert {rule.name for rule in request.grammar.rules.calls} == {"tool_search.search", "wiki.ask"}


CASES: dict[str, tuple[list[str], dict[str, object]]] = {
    "a namespace": ([search(query="orders"), CALL], {"tools": [CRM, ALONE, SEARCH]}),
    "with seals": (
        [search(query="orders"), CALL],
        {"tools": [CRM, SEARCH], "include": ["reasoning.encrypted_content"]},
    ),
    "a server": ([search(query="ask"), said("wiki.ask", '{"q":"a"}'), ANSWER], {"tools": [WIKI, SEARCH]}),
    "nothing": ([search(query="zzz"), ANSWER], {"tools": [CRM, SEARCH]}),
    "no calls left": ([search(query="orders"), search(query="orders"), ANSWER], {"tools": [CRM, SEARCH]}),
}


@pytest.mark.parametrize("case", CASES)
async def test_cut_anywhere_the_stream_is_the_one_of_an_undisturbed_run(case: str) -> None:
    turns, fields = CASES[case]
    accepted, events = await undisturbed(turns, {**fields, "max_tool_calls": 2}, tools=[Servers()])
    await assert_the_same_wherever_it_is_cut(accepted, events, lambda: TokenEngine(turns), tools=[Servers()])


@pytest.mark.parametrize("arguments", ["", "[1]", "{", '{"query": 5, "paths": "crm"}', '{"paths": [1, {}]}'])
async def test_arguments_that_say_nothing_find_nothing(arguments: str) -> None:
    site = Site(FakeEngine([said("tool_search.search", arguments), ANSWER]))
    events = await site.events(tools=[CRM, SEARCH])
    assert_laws(events)
    response = events[-1]["response"]
    assert isinstance(response, dict)
    validate_response(response)
    assert of_kind(response, "tool_search_output")["tools"] == []
    assert "Nothing was found." in prompt_of(site, 1)


async def test_what_is_found_fits_into_the_context() -> None:
    members = [{**ALONE, "name": f"f{n}", "description": "order " * 400} for n in range(40)]
    huge: JsonObject = {"type": "namespace", "name": "huge", "description": "", "tools": members}
    site = Site(FakeEngine([search(paths=["huge"]), ANSWER]))
    response = await site.ask(input="hi", tools=[huge, SEARCH])
    assert response["status"] == "completed"
    ((group,),) = [of_kind(response, "tool_search_output")["tools"]]  # type: ignore[misc]
    assert 0 < len(group["tools"]) < 40


async def test_a_schema_that_cannot_be_enforced_is_only_shown_once_it_is_found() -> None:
    broken = {**ALONE, "strict": True, "parameters": {"type": "object", "properties": {"a": {"pattern": "("}}}}
    site = Site(GrammarEngine([search(query="eta"), ANSWER, ANSWER]))
    first = await site.ask(input="hi", tools=[broken, SEARCH])
    await site.ask(input="and?", tools=[broken, SEARCH], previous_response_id=first["id"])
    for request in site.engine.requests[1:]:
        assert {rule.name: type(rule.content) for rule in request.grammar.rules.calls}["eta"] is AnyText


async def test_a_search_obeys_the_choice() -> None:
    allowed: JsonObject = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "get_profile", "namespace": "crm"}],
    }
    site = Site(GrammarEngine([search(paths=["crm"]), ANSWER]))
    response = await site.ask(input="hi", tools=[CRM, SEARCH], tool_choice=allowed)
    (group,) = of_kind(response, "tool_search_output")["tools"]  # type: ignore[misc]
    assert [tool["name"] for tool in group["tools"]] == ["get_profile"]
    await site.ask(input="hi", tools=[CRM, SEARCH], tool_choice="none")
    assert "tool_search" not in prompt_of(site, -1)
    await site.ask(input="hi", tools=[CRM, SEARCH], tool_choice="required")
    assert rules_of(site).must_call


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([SEARCH, SEARCH], "tools[1]"),
        ([{"type": "tool_search", "execution": "client"}, SEARCH], "tools[1]"),
        ([CRM, CRM, SEARCH], "tools[1].tools[0].name"),
    ],
)
async def test_declarations_that_cannot_be_are_refused(tools: list[JsonObject], param: str) -> None:
    error = await Site().refusal(input="hi", tools=tools)
    assert (error.status, error.param) == (400, param)


async def test_where_nothing_is_deferred_there_is_no_search() -> None:
    site = Site(FakeEngine([ANSWER]))
    await site.ask(input="hi", tools=[{**ALONE, "defer_loading": False}, SEARCH])
    assert "tool_search" not in prompt_of(site, 0)


async def test_a_model_that_calls_what_is_not_there_is_not_told_what_is_deferred() -> None:
    site = Site(FakeEngine([said("browser.open", "{}"), ANSWER]))
    await site.ask(input="hi", tools=[CRM, ALONE, SEARCH])
    assert "Available tools: tool_search.search." in prompt_of(site, 1)


async def test_a_model_with_a_chat_template_searches_too() -> None:
    """Its calls are JSON objects between tags, and its tools have no namespaces."""
    calls = [
        '{"name": "tool_search.search", "arguments": {"query": "open orders"}}',
        '{"name": "crm.list_open_orders", "arguments": {"customer_id": "c1"}}',
    ]
    site = FamilySite(QWEN)
    site.engine.supports_grammar = True
    site.engine.turns = [[f"<tool_call>\n{each}\n</tool_call>{QWEN.end}"] for each in calls] + [[f"None.{QWEN.end}"]]
    tools = [CRM, ALONE, SEARCH]
    first = await site.ask(input="hi", tools=tools)
    assert kinds(first) == ["tool_search_call", "tool_search_output", "function_call"]
    called = of_kind(first, "function_call")
    assert (called["name"], called["namespace"]) == ("list_open_orders", "crm")
    output = {"type": "function_call_output", "call_id": called["call_id"], "output": "none"}
    question: JsonObject = {"role": "user", "content": "hi"}
    for more in (
        {"input": [output], "previous_response_id": first["id"]},
        {"input": [question, *first["output"], output]},
    ):  # type: ignore[misc]
        await site.ask(tools=tools, **more)
        request = site.engine.requests[-1]
        assert {rule.name for rule in request.grammar.rules.calls} == {"tool_search.search", "crm.list_open_orders"}
        before = site.engine.requests[1].prompt_token_ids
        assert list(request.prompt_token_ids[: len(before)]) == list(before)
