"""How many values a JSON text has is told without parsing it; the same JSON is the same, however a client spells it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from responses_app.protocol import json_text
from responses_app.protocol.items.spelling import MAX_CANONICAL, canonical, is_same_json, respelled
from responses_app.protocol.json_text import check_lengths, has_more_values, loads_bounded
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
        patch.setattr(json_text, "PIECE", piece)
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


@pytest.mark.parametrize(
    "spellings",
    [
        (
            '{"a": 1, "b": [1, {"c": "\\u00e4\\/"}]}',
            '{"b":[1,{"c":"ä/"}],"a":1}',
            '\n{"a":1.0,"b":[1e0,{"c":"\\u00E4/"}]}',
        ),
        ("1", "1.0", "1e0", "10e-1", "0.1E+1"),
        ("0", "-0", "0.0", "-0.0", "0e5"),
        ("0.1", "1e-1", "0.10"),
        ("18446744073709551616", "18446744073709551616.0", "1.8446744073709551616e19"),
        ("1e400", "1" + "0" * 400, "10.0e399"),
        ("-1000000000000000000", "-1e18", "-0.1e19"),
        ("1.25e-320", "125e-322"),
        ("9007199254740992", "9.007199254740992e15"),
        ('"\\ud83d\\ude00"', '"😀"'),
    ],
)
def test_the_same(spellings: tuple[str, ...]) -> None:
    assert len(set(map(canonical, spellings))) == 1
    assert all(is_same_json(spellings[0], each) for each in spellings)
    assert all(is_same_json(spellings[0], each) for each in respelled(spellings[-1]))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("9007199254740993", "9007199254740992"),
        ("123456789012345678901234567890", "123456789012345678901234567891"),
        ("0.1000000000000000055", "0.1"),
        ("1e400", "1e401"),
        ("1e-400", "0"),
        ("1", "true"),
        ("1", '"1"'),
        ("[1,2]", "[2,1]"),
        ('{"a":1,"a":2}', '{"a":2}'),
        ('{"a":1,"a":2}', '{"a": 1, "a": 2}'),
        ('{"b":{"a":1,"a":1}}', '{"b":{"a":1}}'),
        ("NaN", "NaN "),
        ('"\\ud800"', '"\\udbff"'),
        ("{", "{ "),
        ("[" * 100_000, "[" * 99_999),
        ("1e999999999999999999999", "1e999999999999999999998"),
    ],
)
def test_not_the_same(one: str, other: str) -> None:
    assert canonical(one) != canonical(other)
    assert not is_same_json(one, other)


def test_what_clients_fill_in_is_no_change_of_a_call() -> None:
    """At the top alone: below it nothing is a tool's argument."""
    assert canonical('{"a": {"b": null}, "c": null, "d": false}') == '{"a":{"b":null}}'
    assert not is_same_json('{"a": null}', "{}")


def test_long_arguments_are_only_what_they_are() -> None:
    long = json.dumps({"a": "x" * MAX_CANONICAL})
    assert canonical(long) == long
    assert respelled(long) == {long}


@pytest.mark.parametrize("number", ["1e400", "1e18", "1e-400", "-0.1000000000000000055", "9" * 40 + ".5"])
def test_one_spelling_is_hardly_longer_than_another(number: str) -> None:
    """What is compared is held as long as a request is read."""
    text = json.dumps([number] * 1000).replace('"', "")
    assert len(canonical(text)) <= 1.1 * len(text)
