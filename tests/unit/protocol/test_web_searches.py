"""`web_search` as requests declare it: what it takes, and that it is echoed as it was sent."""

import pytest

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.requests.server_tools import WEB_SEARCH
from responses_app.protocol.requests.tools import parse_tools
from tests.unit.protocol.refusals import refusal


@pytest.mark.parametrize("kind", WEB_SEARCH)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"filters": None, "search_context_size": None, "user_location": None, "external_web_access": None},
        {"filters": {"allowed_domains": ["a.example", "münchen.example"]}, "search_context_size": "low", "newer": [1]},
        {"user_location": {"type": "approximate", "country": "CH", "city": "Bern"}, "external_web_access": False},
    ],
)
def test_it_is_echoed_as_it_was_sent(kind: str, fields: JsonObject) -> None:
    tool: JsonObject = {"type": kind, **fields}
    assert parse_tools([tool]) == [tool]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"search_context_size": "huge"}, "search_context_size"),
        ({"filters": []}, "filters"),
        ({"filters": {"allowed_domains": "a.example"}}, "filters.allowed_domains"),
        ({"filters": {"allowed_domains": ["a.example", "https://b.example"]}}, "filters.allowed_domains[1]"),
        ({"filters": {"allowed_domains": [""]}}, "filters.allowed_domains[0]"),
        ({"filters": {"allowed_domains": ["a.example"] * 101}}, "filters.allowed_domains"),
        ({"user_location": {"city": "x" * 201}}, "user_location.city"),
        ({"user_location": "Bern"}, "user_location"),
        ({"external_web_access": "no"}, "external_web_access"),
        ({"async": True}, "async"),
    ],
)
def test_what_is_wrong_is_named(fields: JsonObject, param: str) -> None:
    assert refusal(parse_tools, [{"type": "web_search", **fields}]).param == f"tools[0].{param}"
