"""Schemas that are small as they come and large once they are resolved, or slow to check: refused, and soon."""

import json
import time
from typing import Any

import pytest

from engine.contents.schemas import MAX_BYTES, enforceable
from engine.errors import GrammarRefused
from tests.kit.schemas import check_schema

SECONDS = 8.0  # of CPU: some 2 on a slow machine; what is not bounded takes minutes

Schema = dict[str, Any]


def properties(count: int, schema: Schema) -> Schema:
    return {f"p{number}": schema for number in range(count)}


def referred(count: int, beside: Schema, definition: Schema) -> Schema:
    """Return a schema that refers to one definition again and again, with something beside the reference."""
    return {"properties": properties(count, {"$ref": "#/$defs/a", **beside}), "$defs": {"a": definition}}


def each(names: int) -> list[str]:
    return [f"q{number}" for number in range(names)]


BOTH = {x: {"properties": {name: {"title": x} for name in each(1500)}} for x in "ab"}
LARGE = {
    "properties of themselves": {"properties": properties(2000, {"$ref": "#", "minProperties": 0})},
    "properties merged": {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}] * 750, "$defs": BOTH},
    "names required": referred(2000, {"required": ["z"]}, {"type": "object", "required": each(4000)}),
    "an enum": referred(600, {"type": ["integer", "string"]}, {"enum": list(range(7000))}),
    "an enum of objects": referred(500, {"type": "object"}, {"enum": [{"a": number} for number in range(5000)]}),
    "a long constant": referred(1500, {"type": "string"}, {"const": "x" * 60_000}),
    "a long name": referred(1500, {"minProperties": 0}, {"type": "object", "properties": {"k" * 60_000: {}}}),
    "a long pattern": referred(1500, {"type": "string"}, {"pattern": "(ab|c[x-z]*)" * 600}),
    "patterns of any character": {"properties": {name: {"pattern": "." * 8190} for name in each(15)}},
    "alternatives with long enums": {
        "properties": properties(600, {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}),
        "$defs": {"a": {"enum": list(range(4000))}, "b": {"enum": list(range(4001, 8000))}},
    },
    "alternatives of many tags": {
        "oneOf": [{"$ref": "#/$defs/a", "title": name} for name in each(256)],
        "$defs": {"a": {"required": each(3000), "properties": {name: {"enum": [1, 2, 3]} for name in each(3000)}}},
    },
    "a check of each item": {
        "enum": [[1] * 3000],
        "items": {"anyOf": [*({"const": number} for number in range(2, 240)), {"const": 1}]},
    },
    "unions that go deep": {"allOf": [{"items": {"minimum": number}} for number in range(4000)]},
    "references that go deep": {
        "$ref": "#/$defs/a0",
        "minimum": 1,
        "$defs": {f"a{at}": {"$ref": f"#/$defs/a{at + 1}", "minimum": at} for at in range(2000)} | {"a2000": {}},
    },
}


@pytest.mark.parametrize("schema", LARGE.values(), ids=LARGE)
def test_what_is_large_once_it_is_resolved_is_refused_soon(schema: Schema) -> None:
    assert len(json.dumps(schema, separators=(",", ":"))) <= MAX_BYTES
    began = time.thread_time()
    with pytest.raises(GrammarRefused, match="once its references and combinations are resolved") as caught:
        enforceable(json.dumps(schema, separators=(",", ":")))
    assert time.thread_time() - began < SECONDS
    assert len(caught.value.reason) < 300


SLOW = {
    "objects that are required": {"required": [{"a": number} for number in range(3000)]},
    "types that are not types": {"type": [{"a": number} for number in range(3000)]},
    "items that are all different": {"enum": [[{"a": number} for number in range(8000)]], "uniqueItems": True},
}


@pytest.mark.parametrize("schema", SLOW.values(), ids=SLOW)
def test_two_of_the_same_are_found_without_comparing_all(schema: Schema) -> None:
    began = time.thread_time()
    with pytest.raises(GrammarRefused):
        check_schema(schema)
    assert time.thread_time() - began < SECONDS


@pytest.mark.parametrize("draft", ["draft-04", "draft-07", "draft/2019-09"])
def test_a_part_in_another_draft_is_checked_in_bounded_time_too(draft: str) -> None:
    part = {"$schema": f"http://json-schema.org/{draft}/schema#", "pattern": "^(a|a)*$"}
    part = part | ({"$schema": f"https://json-schema.org/{draft}/schema"} if "/" in draft else {})
    with pytest.raises(GrammarRefused, match="too long to match"):
        check_schema({"enum": [["a" * 40 + "b"]], "items": part})


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"$ref": "#"}, {"type": "integer"}]},
        {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}, {}]}, "b": {}}}
        | {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}, {}]}, "b": {"anyOf": [{}, {"$ref": "#/$defs/a"}]}}},
    ],
)
def test_an_alternative_that_is_the_whole_again_is_refused(schema: Schema) -> None:
    with pytest.raises(GrammarRefused, match="refers to itself without end"):
        check_schema(schema)


@pytest.mark.parametrize("name", ["anyOf", "oneOf", "allOf"])
def test_references_in_circles_beside_an_enum_are_refused(name: str) -> None:
    circle: Schema = {f"d{at}": {name: [{"$ref": f"#/$defs/d{(at + 1) % 7}"}]} for at in range(7)}
    with pytest.raises(GrammarRefused):
        check_schema({"enum": [[1]], "items": {"$ref": "#/$defs/d0"}, "$defs": circle})


def test_long_enums_are_merged() -> None:
    many = [{"enum": list(range(5_000))}, {"enum": [*range(5_000, 4_990, -1), 3.0, True]}]
    assert json.loads(enforceable(json.dumps({"allOf": many}))) == {"enum": [3, *range(4_991, 5_000)]}


def test_a_number_is_not_told_apart_from_itself_by_how_it_is_written() -> None:
    with pytest.raises(GrammarRefused, match="may both fit"):
        check_schema({"oneOf": [{"enum": [1, 2]}, {"enum": [2.0]}]})
    check_schema({"oneOf": [{"enum": [1]}, {"enum": [True]}]})
