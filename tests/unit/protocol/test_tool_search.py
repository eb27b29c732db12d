"""What a search for tools finds: by words, by names, and among tools of any number and size."""

import pytest

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.tool_search import (
    MAX_FOUND,
    MAX_FOUND_BYTES,
    MAX_NAMED,
    MAX_TOLD,
    MAX_TOLD_CHARACTERS,
    ToolQuery,
    find,
    groups_of,
    search_offer,
    shown,
)

SEARCH: JsonObject = {"type": "tool_search"}


def function(name: str, description: str = "", *arguments: str) -> JsonObject:
    properties = {each: {"type": "string"} for each in arguments}
    parameters = {"type": "object", "properties": properties}
    return {
        "type": "function",
        "name": name,
        "description": description,
        "parameters": parameters,
        "defer_loading": True,
    }


def namespace(name: str, *tools: JsonObject, description: str = "") -> JsonObject:
    return {"type": "namespace", "name": name, "description": description, "tools": list(tools)}


TOOLS = [
    namespace(
        "crm",
        function("get_profile", "Fetches a customer.", "customer_id"),
        function("listOpenOrders", "All that was not sent yet.", "customer_id"),
        description="Customers.",
    ),
    namespace("mail", function("send", "Sends a letter to a customer.", "recipient"), function("read", "Reads it.")),
    function("eta", "When a parcel comes.", "parcel_number"),
    {**function("shown"), "defer_loading": False},
]


@pytest.mark.parametrize(
    ("wanted", "best"),
    [
        (ToolQuery("list orders"), "crm.listOpenOrders"),
        (ToolQuery("open ORDERS, please"), "crm.listOpenOrders"),
        (ToolQuery("recipient"), "mail.send"),
        (ToolQuery("when does my parcel come"), "eta"),
        (ToolQuery("profile of a customer"), "crm.get_profile"),
        (ToolQuery("eta"), "eta"),
        (ToolQuery("listOpenOrders"), "crm.listOpenOrders"),
        (ToolQuery("crm.get_profile"), "crm.get_profile"),
    ],
)
def test_the_best_comes_first(wanted: ToolQuery, best: str) -> None:
    assert find(wanted, groups_of(TOOLS, {}))[0] == best


def test_a_name_loads_all_of_a_group_or_one_tool() -> None:
    groups = groups_of(TOOLS, {})
    assert find(ToolQuery(paths=["mail"]), groups) == ["mail.send", "mail.read"]
    assert find(ToolQuery(paths=["mail.read", "eta", "gone"]), groups) == ["mail.read", "eta"]
    assert find(ToolQuery("mail"), groups)[:2] == ["mail.send", "mail.read"]
    assert find(ToolQuery(paths=["shown"]), groups) == []


@pytest.mark.parametrize("query", ["", " ", "!?", "zzz", "\0", "é" * 100_000, "a " * 100_000])
def test_any_query_is_answered(query: str) -> None:
    assert len(find(ToolQuery(query), groups_of(TOOLS, {}))) <= MAX_FOUND


def test_what_is_found_and_told_is_bounded() -> None:
    huge = [namespace(f"n{n}", *(function(f"f{m}", "order " * 9_000) for m in range(20))) for n in range(300)]
    groups = groups_of(huge, {})
    assert len(find(ToolQuery("order"), groups)) == MAX_FOUND
    named = find(ToolQuery(paths=[f"n{n}" for n in range(300)]), groups)
    assert len(named) == MAX_NAMED
    sizes = sum(len(str(tool)) for tool in shown(named, groups))
    assert 0 < sizes < 2 * MAX_FOUND_BYTES
    told = [namespace(f"n{n}", function("f"), description="a\n- b: " * 9_000) for n in range(300)]
    offer = search_offer([*told, SEARCH])
    lines = offer.namespace.description.splitlines()
    assert len(lines) == MAX_TOLD + 3
    assert max(map(len, lines)) < MAX_TOLD_CHARACTERS + 20
    assert lines[-1] == f"- and {300 - MAX_TOLD} more"


@pytest.mark.parametrize(
    "tools", [[], [SEARCH], [TOOLS[3], SEARCH], TOOLS, [*TOOLS, {**SEARCH, "execution": "client"}]]
)
def test_there_is_no_search_where_nothing_can_be_found_by_it(tools: list[JsonObject]) -> None:
    assert search_offer(tools) is None
