"""Lists: what is asked for, and the page that is answered."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from responses_app.protocol.errors import ApiError
from responses_app.protocol.requests.pages import (
    ListQuery,
    list_page,
    page_behind,
    parse_include_query,
    parse_list_query,
    unknown_cursor,
)
from tests.unit.protocol.refusals import refusal

ITEMS: list[dict[str, object]] = [{"id": "a"}, {"id": "b"}, {"id": "c"}]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, ListQuery(limit=20, descending=True, after=None)),
        ({"limit": ["1"], "order": ["asc"]}, ListQuery(limit=1, descending=False)),
        ({"limit": ["100"], "order": ["desc"], "after": ["msg_1"]}, ListQuery(limit=100, after="msg_1")),
        ({"limit": ["007"]}, ListQuery(limit=7)),
        ({"limit": ["0", "5"], "order": ["up", "asc"]}, ListQuery(limit=5, descending=False)),
        ({"after": [""], "before": ["x"], "limit": []}, ListQuery()),
    ],
)
def test_what_is_asked_for(query: dict[str, list[str]], expected: ListQuery) -> None:
    assert parse_list_query(query) == expected


@pytest.mark.parametrize(
    ("param", "says", "values"),
    [
        ("limit", "from 1 to 100", ("0", "101", "0000000101", "000000001000", "-1", "", " 5", "5.0", "1e1", "ten")),
        ("limit", "from 1 to 100", ("٥", "²", "9" * 5000, "0" * 5000)),
        ("order", "'asc' and 'desc'", ("", "ASC", "up", "desc ")),
    ],
)
def test_a_wrong_limit_or_order_is_told(param: str, says: str, values: Sequence[str]) -> None:
    for value in values:
        error = refusal(parse_list_query, {param: [value]})
        assert (error.status, error.param, error.code) == (400, param, "invalid_value"), value
        assert says in error.message
        assert len(error.message) < 300


@given(st.dictionaries(st.sampled_from(["limit", "order", "after"]), st.lists(st.text())))
def test_any_query_is_read_or_refused(query: dict[str, list[str]]) -> None:
    try:
        wanted = parse_list_query(query)
    except ApiError as refused:
        assert refused.param in query  # noqa: PT017 - both are fine
    else:
        assert 1 <= wanted.limit <= 100


@pytest.mark.parametrize("name", ["include", "include[]"])
def test_include_is_known_or_told(name: str) -> None:
    assert parse_include_query({}) == []
    parse_include_query({name: ["reasoning.encrypted_content", "message.output_text.logprobs"]})
    error = refusal(parse_include_query, {name: ["reasoning.encrypted_content", "all"]})
    assert error.param == "include[1]"
    assert "reasoning.encrypted_content" in error.message


@pytest.mark.parametrize(("items", "first", "last"), [(ITEMS, "a", "c"), ([], "", "")])
def test_a_page(items: list[dict[str, object]], first: str, last: str) -> None:
    page = {"object": "list", "data": items, "first_id": first, "last_id": last, "has_more": bool(items)}
    assert list_page(items, has_more=bool(items)) == page


FIRST, GONE, LAST = (f"msg_{at:012x}7{'0' * 19}" for at in (1, 2, 3))


@pytest.mark.parametrize(
    ("query", "expected"),
    [({"order": "asc"}, [LAST]), ({"order": "desc"}, [FIRST]), ({"after": "x"}, None), ({"after": "msg_1"}, None)],
)
def test_a_whole_list_goes_on_behind_what_is_gone(query: dict[str, str], expected: list[str] | None) -> None:
    wanted = parse_list_query({name: [value] for name, value in {"after": GONE, **query}.items()})
    if expected is None:
        with pytest.raises(ApiError, match="the id of an item of this list"):
            page_behind([{"id": FIRST}, {"id": LAST}], wanted)
    else:
        assert [each["id"] for each in page_behind([{"id": FIRST}, {"id": LAST}], wanted)["data"]] == expected


def test_an_unknown_cursor_is_told() -> None:
    error = unknown_cursor("x" * 1000)
    assert (error.status, error.param, len(error.message) < 200) == (400, "after", True)
