"""JSON with numbers of any size: it leaves as it came, and all other JSON is orjson's."""

import copy
import math
import pickle

import orjson as plain
import pytest

from engine import orjson
from engine.orjson import LongNumber

UINT256 = str(2**256 - 1)
LONG = [
    *(UINT256, "-9223372036854775809", "18446744073709551616", "9" * 5000),
    *("1e400", "-1E+400", "-0.12345678901234567890123"),
]
ORDINARY = [
    *("18446744073709551615", "-9223372036854775808", "1.5", "0.1", "1e22", "5e-324", "1e-400", "0"),
    *('"1e400"', f'"{UINT256}"'),
]


@pytest.mark.parametrize("number", LONG, ids=lambda number: number[:24])
@pytest.mark.parametrize("form", ["%s", "[%s]", '{"a":[{"b":%s}]}', '{"é":"\U0001f680","a":[1,%s,"x"]}'])
def test_numbers_leave_as_they_came(number: str, form: str) -> None:
    text = form % number
    for content in (text, text.encode(), bytearray(text.encode()), memoryview(text.encode())):
        assert orjson.dumps(orjson.loads(content)).decode() == text
    value = orjson.loads(text)
    assert orjson.dumps(copy.deepcopy(value)) == orjson.dumps(pickle.loads(pickle.dumps(value))) == text.encode()
    assert orjson.text_kept(orjson.loads_kept(text)) == text


@pytest.mark.parametrize("text", [*ORDINARY, *(f'{{"a":[{each}],"b":null}}' for each in ORDINARY)])
def test_all_other_json_is_read_and_written_as_by_orjson(text: str) -> None:
    value = orjson.loads(text)
    assert value == plain.loads(text)
    assert type(value) is type(plain.loads(text))
    assert orjson.dumps(value) == plain.dumps(value)


def test_numbers_are_numbers() -> None:
    large, exact = orjson.loads(f"[1e400,{UINT256}]")
    assert (large, exact, type(exact)) == (math.inf, 2**256 - 1, int)
    assert isinstance(large, LongNumber)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1e400",
        '{"a":1e400,"b":"\\ud800"}',
        f'[{UINT256},"\\ud800"]',
        "[1e400,NaN]",
        "[1e400,01]",
        "NaN",
        f"[{UINT256},]",
    ],
)
def test_what_is_no_json_is_refused_as_before(text: str) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(text)


def test_what_cannot_be_written_is_refused_as_before() -> None:
    deep: list[object] = [2**70]
    for _ in range(2000):
        deep = [deep]
    for value in ([2**70, {1}], {"a": "\ud800", "b": 2**70}, deep):
        with pytest.raises(orjson.JSONEncodeError):
            orjson.dumps(value)


def test_stores_keep_halves_of_characters_beside_long_numbers() -> None:
    value = ["\ud800é", LongNumber("1e400"), 2**70]
    assert orjson.text_kept(value) == f'["\\ud800\\u00e9",1e400,{2**70}]'
    assert orjson.text_kept(orjson.loads_kept(orjson.text_kept(value))) == orjson.text_kept(value)
