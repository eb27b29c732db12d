"""Lists: what is asked for, and the page that is answered."""

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

ITEMS: list[dict[str, object]] = [{"id": "a"}, {"id": "b"}, {"id": "c"}]


def test_the_newest_twenty_come_first() -> None:
    assert parse_list_query({}) == ListQuery(limit=20, descending=True, after=None)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
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
    "limit",
    [
        *("0", "101", "0000000101", "000000001000", "-1", "", " 5", "5.0", "1e1", "ten", "٥", "²"),
        "9" * 5000,
        "0" * 5000,
    ],
)
def test_a_wrong_limit_is_told(limit: str) -> None:
    with pytest.raises(ApiError, match="from 1 to 100") as refused:
        parse_list_query({"limit": [limit]})
    assert (refused.value.status, refused.value.param, refused.value.code) == (400, "limit", "invalid_value")
    assert len(refused.value.message) < 300


@pytest.mark.parametrize("order", ["", "ASC", "up", "desc "])
def test_a_wrong_order_is_told(order: str) -> None:
    with pytest.raises(ApiError, match="'asc' and 'desc'") as refused:
        parse_list_query({"order": [order]})
    assert refused.value.param == "order"


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
    with pytest.raises(ApiError, match=r"reasoning\.encrypted_content") as refused:
        parse_include_query({name: ["reasoning.encrypted_content", "all"]})
    assert refused.value.param == "include[1]"


def test_a_page() -> None:
    page = list_page(ITEMS, has_more=True)
    assert page == {"object": "list", "data": ITEMS, "first_id": "a", "last_id": "c", "has_more": True}


def test_an_empty_page() -> None:
    assert list_page([], has_more=False) == {
        "object": "list",
        "data": [],
        "first_id": "",
        "last_id": "",
        "has_more": False,
    }


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
    assert (error.status, error.param) == (400, "after")
    assert len(error.message) < 200
