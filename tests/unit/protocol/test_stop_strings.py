"""Stop strings: they end a text wherever its chunks are cut, and no part of one is ever said."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from responses_app.protocol.stop_strings import StopStrings

ALPHABET = "abN\n"
TEXTS = st.text(ALPHABET, max_size=40)
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=5), min_size=1, max_size=4)


def said(chunks: list[str], stops: list[str]) -> tuple[str, str | None]:
    """Return what is said of a text in chunks, and what ended it."""
    watched = StopStrings(stops)
    told = "".join(map(watched.feed, chunks))
    return told + ("" if watched.matched else watched.rest()), watched.matched


@given(TEXTS, STOPS, st.lists(st.integers(0, 40), max_size=8))
@example("aab", ["ab"], [1, 2])
@example("abab", ["b", "abab"], [3])
def test_any_chunking_says_the_same(text: str, stops: list[str], cuts: list[int]) -> None:
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    chunks = [text[begin:end] for begin, end in itertools.pairwise(places)]
    assert said(chunks, stops) == said([text], stops) == said(list(text), stops)


@given(TEXTS, STOPS)
def test_what_is_said_ends_where_the_first_stop_string_is_complete(text: str, stops: list[str]) -> None:
    told, matched = said([text], stops)
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    if not ends:
        assert (told, matched) == (text, None)
    else:
        longest = max((stop for stop in stops if text[: ends[0]].endswith(stop)), key=len)
        assert (told, matched) == (text[: ends[0] - len(longest)], longest)


def test_what_may_begin_a_stop_string_is_held_back_and_nothing_else() -> None:
    watched = StopStrings(["\n\n", "END"])
    assert [watched.feed(chunk) for chunk in ("Hi E", "VE", "ND!", "more")] == ["Hi ", "EV", "", ""]
    assert watched.matched == "END"


@pytest.mark.parametrize("length", [1, 100])
def test_nothing_is_lost_at_the_end(length: int) -> None:
    watched = StopStrings(["x" * (length + 1)])
    assert watched.feed("x" * length) == ""
    assert watched.rest() == "x" * length
    assert watched.matched is None
