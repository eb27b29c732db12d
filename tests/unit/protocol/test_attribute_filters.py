"""Searches of files: filters over their attributes, and how a text is cut into chunks."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from responses_app.protocol.files.searches import Chunking, Filter, chunks_of
from tests.unit.protocol.refusals import refusal

BOOK = {"team": "red", "year": 2024, "rating": 4.5, "open": True}


def one(type: str, key: str, value: object) -> dict[str, Any]:
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
    assert (refusal(Filter, wanted).param or "").startswith(param)
    assert Filter(nested(5)).matches({"a": 1})


def cut(text: str, size: int, overlap: int) -> list[str]:
    return list(chunks_of(text, Chunking(size, overlap)))


def test_chunks_overlap_and_miss_nothing() -> None:
    words = [f"w{number}" for number in range(10)]  # of two tokens each
    assert cut(" ".join(words), 8, 4) == ["w0 w1 w2 w3", "w2 w3 w4 w5", "w4 w5 w6 w7", "w6 w7 w8 w9"]
    assert cut(" ".join(words), 100, 50) == [" ".join(words)]
    assert cut(" \n ", 8, 4) == []


def test_a_chunk_ends_where_a_paragraph_does_if_one_ends_in_its_second_half() -> None:
    assert cut("One two three. Four\n\nfive six seven", 6, 0) == ["One two three. Four", "five six seven"]
    assert cut("One. two three four five six seven", 6, 0)[0] == "One. two three four five", "not before"


def test_languages_without_spaces_are_cut_too() -> None:
    assert cut("海龟的壳是骨头。它们生活在海洋中。", 10, 0) == ["海龟的壳是骨头。", "它们生活在海洋中。"]
    assert [len(chunk) for chunk in cut("x" * 95, 10, 0)] == [90, 5]


@given(st.text(alphabet="ab. \n界,1", max_size=400), st.integers(2, 30), st.integers(0, 15))
def test_every_word_is_in_a_chunk_and_they_are_bounded(text: str, size: int, overlap: int) -> None:
    chunks = cut(text, size, min(overlap, size // 2))
    assert all(chunk.strip() == chunk != "" for chunk in chunks)
    assert set("".join(text.split())) == set("".join("".join(chunks).split()))
    assert len(chunks) <= max(1, len(text)) * 2
    if overlap == 0:
        assert "".join("".join(chunks).split()) == "".join(text.split())
