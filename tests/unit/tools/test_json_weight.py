"""How much JSON there is, counted as it comes, in whatever parts."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from responses_app.tools.httpx_network import JsonWeight, TooManyValues

TEXTS = st.text('\\"ab,{[é', max_size=12)
JSON = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
CUTS = st.lists(st.integers(0, 9999), max_size=6)


def weight(value: object) -> int:
    """Return what JSON counts as: its texts, its arrays and objects, and what stands between values."""
    if isinstance(value, str):
        return 1
    if isinstance(value, dict):
        return 1 + max(0, len(value) - 1) + sum(1 + weight(each) for each in value.values())
    if isinstance(value, list):
        return 1 + max(0, len(value) - 1) + sum(map(weight, value))
    return 0


def parts(body: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})
    return [body[start:end] for start, end in pairwise(places)]


def is_taken(most: int, body: bytes, cuts: list[int], *, events: bool = False) -> bool:
    weighs = JsonWeight(most, events=events)
    try:
        for part in parts(body, cuts):
            weighs.add(part)
    except TooManyValues:
        return False
    return True


@given(JSON, CUTS, st.booleans(), st.booleans())
def test_it_counts_what_is_there_however_it_is_cut(value: object, cuts: list[int], indented: bool, ascii: bool) -> None:
    body = json.dumps(value, indent=2 if indented else None, ensure_ascii=ascii).encode()
    expected = weight(value)
    assert is_taken(expected, body, cuts)
    assert expected == 0 or not is_taken(expected - 1, body, cuts)


@given(
    st.lists(JSON, min_size=1, max_size=4), st.lists(st.integers(0, 9999), max_size=6), st.sampled_from(["\n", "\r\n"])
)
def test_each_event_counts_for_itself(values: list[object], cuts: list[int], line: str) -> None:
    stream = b"".join(f"event: message{line}data: {json.dumps(each)}{line}{line}".encode() for each in values)
    most = max(map(weight, values))
    whole = len(cuts) < 2  # in one part, all of its events are counted together
    assert is_taken(sum(map(weight, values)) if whole else most * len(values), stream, cuts, events=True)
    assert most == 0 or not is_taken(most - 1, stream, cuts, events=True)


def test_a_quote_that_is_not_closed_hides_nothing_behind_its_line() -> None:
    assert not is_taken(5, b': "\r\ndata: [1,2,3,4,5,6,7]', [], events=True)
    assert not is_taken(5, b'"\\\n[1,2,3,4,5,6,7]"\n[1,2,3,4,5,6,7]', [1, 2, 3])


@pytest.mark.parametrize("size", [1, 7, 65536])
def test_long_texts_weigh_nothing(size: int) -> None:
    body = json.dumps({"text": 'a,"[{\\' * 20_000}).encode()
    assert is_taken(3, body, list(range(0, len(body), size)))
