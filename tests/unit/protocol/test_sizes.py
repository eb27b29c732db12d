"""How many values a JSON text has is told without parsing it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from responses_app.protocol import sizes
from responses_app.protocol.sizes import check_lengths, has_more_values, loads_bounded
from tests.unit.protocol.refusals import refusal

TEXTS = st.text(st.sampled_from('\\",[{}]:aé\n'), max_size=12)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=30
)


def counted(value: object) -> tuple[int, int]:
    """Return how many values there are, and how many of them are empty arrays and objects."""
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
    if inner is None:
        return 1, 0
    pairs = [counted(each) for each in inner]
    return 1 + sum(all_ for all_, _ in pairs), (not inner) + sum(empty for _, empty in pairs)


@given(value=VALUES, piece=st.sampled_from([1, 2, 3, 5, 7, 1000]), ascii_only=st.booleans())
def test_the_count_is_that_of_the_parsed_text(value: object, piece: int, ascii_only: bool) -> None:
    """An opening bracket or comma for each value but the first; an empty one counts twice. However it is cut."""
    text = json.dumps([value], ensure_ascii=ascii_only).encode()
    values, empty = counted([value])
    expected = values - 1 + empty
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sizes, "PIECE", piece)
        assert not has_more_values(text, expected)
        assert has_more_values(text, expected - 1)


def test_what_holds_too_much_is_never_parsed() -> None:
    assert loads_bounded(b'["a,[{", 1]', max_values=2) == ["a,[{", 1]
    error = refusal(loads_bounded, b"[1, 2, 3, and no JSON", max_values=2)
    assert error.code == "request_too_complex"
    assert "MAX_JSON_VALUES" in error.message


@pytest.mark.parametrize("name", ["input", "tools"])
def test_long_arrays_are_named(name: str) -> None:
    check_lengths({name: [{}] * 10}, max_items=10)
    error = refusal(check_lengths, {name: [{}] * 5000}, max_items=10)
    assert error.param == name
    assert "5000" in error.message
    check_lengths({name: "text"}, max_items=1)
