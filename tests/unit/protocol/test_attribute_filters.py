"""Filters over the attributes of files."""

from typing import Any

import pytest

from responses_app.protocol.errors import ApiError
from responses_app.protocol.files.searches import Filter

BOOK = {"team": "red", "year": 2024, "rating": 4.5, "open": True}


def one(type: str, key: str, value: object) -> dict[str, Any]:
    """Return a comparison."""
    return {"type": type, "key": key, "value": value}


@pytest.mark.parametrize(
    ("wanted", "stays"),
    [
        (one("eq", "team", "red"), True),
        (one("eq", "team", "blue"), False),
        (one("eq", "nothing", "red"), False),
        (one("eq", "year", 2024.0), True),
        (one("eq", "open", 1), False),
        (one("ne", "team", "blue"), True),
        (one("ne", "nothing", "red"), True),
        (one("gt", "year", 2023), True),
        (one("gte", "year", 2024), True),
        (one("lt", "rating", 4.5), False),
        (one("lte", "rating", 4.5), True),
        (one("gt", "team", "blue"), True),
        (one("gt", "team", 1), False),
        (one("lt", "open", 5), False),
        (one("lt", "nothing", 5), False),
        (one("in", "team", ["blue", "red"]), True),
        (one("in", "nothing", ["red"]), False),
        (one("nin", "team", ["blue", 1]), True),
        ({"type": "and", "filters": [one("eq", "team", "red"), one("gt", "year", 2030)]}, False),
        ({"type": "or", "filters": [one("eq", "team", "red"), one("gt", "year", 2030)]}, True),
        ({"type": "and", "filters": [{"type": "or", "filters": [one("eq", "year", 2024)]}]}, True),
    ],
)
def test_a_filter_lets_files_stay(wanted: dict[str, Any], stays: bool) -> None:
    assert Filter(wanted).matches(BOOK) is stays


def nested(depth: int) -> dict[str, Any]:
    """Return filters in each other."""
    return one("eq", "a", 1) if depth == 1 else {"type": "and", "filters": [nested(depth - 1)]}


@pytest.mark.parametrize(
    ("wanted", "param"),
    [
        ("red", "filters"),
        ({}, "filters.type"),
        (one("like", "a", "b"), "filters.type"),
        (one("eq", "a", ["b"]), "filters.value"),
        (one("in", "a", "b"), "filters.value"),
        (one("gt", "a", True), "filters.value"),
        (one("eq", "k" * 65, "b"), "filters.key"),
        (one("in", "a", ["b"] * 101), "filters.value"),
        ({"type": "and", "filters": []}, "filters.filters"),
        ({"type": "or", "filters": [one("eq", "a", 1), 7]}, "filters.filters[1]"),
        ({"type": "or", "filters": [one("eq", "a", 1)] * 100}, "filters.filters[99]"),
        (nested(6), ".".join(["filters", *["filters[0]"] * 5])),
    ],
)
def test_what_is_no_filter_is_named(wanted: Any, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        Filter(wanted)
    assert (refused.value.param or "").startswith(param)
    assert Filter(nested(5)).matches({"a": 1})
