"""Schemas as clients send them, and the form in which they can be enforced."""

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from jsonschema import Draft202012Validator

from engine.contents.keywords import pattern_of
from engine.contents.samples import smallest_value
from engine.contents.schemas import MAX_BYTES, MAX_DEPTH, enforceable
from engine.contents.validation import problem_of
from engine.errors import GrammarRefused
from engine.types import JsonSchema
from tests.kit.schemas import Schema, check_schema, schemas

NODE = {
    "type": "object",
    "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
    "required": ["value", "next"],
}
REFUSED = [
    (3, "is an object, not int"),
    ({"type": "nonsense"}, "at 'type' is not a valid JSON schema"),
    ({"type": "object", "properties": []}, "at 'properties' is not a valid JSON schema"),
    ({"$ref": "https://example.com/schema.json"}, "outside of the schema"),
    ({"$ref": "other.json#/x"}, "outside of the schema"),
    ({"properties": {"a": {"$ref": "#/$defs/nothing"}}}, "which it does not have"),
    ({"$ref": "#"}, "without end"),
    ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "No finite value"),
    ({"allOf": [{"$ref": "#"}], "type": "object"}, "without end"),
    ({"not": {"type": "integer"}}, "'not'"),
    ({"if": {"type": "integer"}, "then": {"minimum": 3}}, "'if'"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"type": "array", "contains": {"const": 1}}, "'contains'"),
    ({"patternProperties": {"^x": {}}}, "'patternProperties'"),
    ({"dependentRequired": {"a": ["b"]}}, "'dependentRequired'"),
    ({"type": "number", "multipleOf": 0.5}, "multipleOf"),
    ({"type": "string", "pattern": "^a$", "maxLength": 3}, "only one can be enforced"),
    ({"type": "string", "format": "email", "minLength": 3}, "only one can be enforced"),
    ({"type": "string", "pattern": "(?=a)"}, "looks around"),
    ({"type": "string", "pattern": "(a)\\1"}, "refers back"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
    ({"enum": []}, "No value fits"),
    ({"type": "integer", "enum": ["a"]}, "No value fits"),
    ({"type": "integer", "minimum": 3, "maximum": 2}, "No value fits"),
    ({"type": "string", "minLength": 3, "maxLength": 2}, "No value fits"),
    ({"allOf": [{"type": "integer"}, {"type": "string"}]}, "No value fits"),
    ({"type": "object", "required": ["a"], "additionalProperties": False}, "No value fits"),
    (False, "No value fits"),
    ({"type": "array", "items": {"type": "string", "minLength": 99}, "minItems": 99_999}, "longer than"),
    ({"description": "x" * MAX_BYTES}, "characters; at most"),
]


@pytest.mark.parametrize(("schema", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_what_cannot_be_enforced_is_refused_with_a_reason(schema: object, reason: str) -> None:
    with pytest.raises(GrammarRefused) as caught:
        check_schema(schema)
    assert reason in caught.value.reason
    assert len(caught.value.reason) < 500


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 5_000, 200_000])
def test_what_is_nested_too_deeply_is_refused(levels: int) -> None:
    with pytest.raises(GrammarRefused, match=r"nested too deeply|characters; at most"):
        enforceable('{"items":' * levels + "{}" + "}" * levels)


def test_a_product_of_alternatives_is_bounded() -> None:
    either = [{"anyOf": [{"maximum": number + each} for each in range(4)]} for number in range(8)]
    with pytest.raises(GrammarRefused, match="alternatives"):
        check_schema({"allOf": either})


def test_references_that_double_are_bounded() -> None:
    definitions: Schema = {"d0": {"type": "integer"}}
    for level in range(1, 40):
        below = {"$ref": f"#/$defs/d{level - 1}", "description": "x"}
        definitions[f"d{level}"] = {"type": "object", "properties": {"a": {"allOf": [below]}, "b": {"allOf": [below]}}}
    with pytest.raises(GrammarRefused, match="too large"):
        check_schema({"$ref": "#/$defs/d39", "$defs": definitions})


@pytest.mark.parametrize(
    ("level", "reason"),
    [
        (lambda below: {"allOf": [below, below]}, "too large"),
        (lambda below: {"anyOf": [below, below], "type": "string"}, "too large"),
        (lambda below: {"properties": {"a": below, "b": below}, "required": ["a", "b"]}, "longer than"),
        (lambda below: {"type": "array", "items": below, "minItems": 2}, "longer than"),
    ],
    ids=["all of two", "any of two", "two properties", "two items"],
)
def test_two_references_to_one_definition_again_and_again_are_bounded(level: Any, reason: str) -> None:
    definitions: Schema = {f"d{each}": level({"$ref": f"#/$defs/d{each - 1}"}) for each in range(1, 60)}
    with pytest.raises(GrammarRefused, match=reason):
        check_schema({"$ref": "#/$defs/d59", "$defs": {**definitions, "d0": {"type": "string"}}})


@pytest.mark.parametrize(
    ("beside", "reason"),
    [
        ({"pattern": "^(a|a)*$"}, "too long to match"),
        ({"properties": {"a": {"$ref": "#/$defs/d40"}}}, "too large"),
        ({"patternProperties": {"^(a|a)*$": {}}}, "patternProperties"),
        ({"items": {"patternProperties": {"^(a|a)*$": {}}}}, "by pattern"),
        ({"items": {"additionalProperties": False, "patternProperties": {"^(a|a)*$": {}}}}, "by pattern"),
    ],
)
def test_what_stands_beside_an_enum_is_checked_in_bounded_time(beside: Schema, reason: str) -> None:
    twice = {f"d{each}": {"allOf": [{"$ref": f"#/$defs/d{each - 1}"}] * 2} for each in range(1, 41)}
    text = "a" * 40 + "b"
    schema = {"enum": [text, {"a": 1}, [{text: 1}]], **beside, "$defs": {**twice, "d0": {"type": "integer"}}}
    with pytest.raises(GrammarRefused, match=reason):
        check_schema(schema)


@pytest.mark.parametrize("pattern", ["(" * 4000 + ")" * 4000, "a{99999999999999999999999}", "a{1000000}", "(", "[b-a]"])
def test_a_pattern_that_cannot_be_read_is_refused(pattern: str) -> None:
    for schema in ({"type": "string", "pattern": pattern}, {"enum": ["a"], "pattern": pattern}):
        with pytest.raises(GrammarRefused):
            check_schema(schema)


@pytest.mark.parametrize("times", ["1000000", "9" * 5000])
def test_a_pattern_with_too_many_repetitions_is_not_compiled(times: str) -> None:
    began = time.process_time()
    with pytest.raises(GrammarRefused, match="repeats something"):
        check_schema({"type": "string", "pattern": f"^a{{{times}}}$"})
    assert time.process_time() - began < 2


def test_checking_a_large_schema_takes_some_seconds_at_most() -> None:
    began = time.process_time()
    check_schema({"allOf": [{"minimum": each} for each in range(4_000)]})
    assert time.process_time() - began < 8


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (True, {}),
        ({"title": "Any", "examples": [1]}, {}),
        ({"type": "string", "description": "x", "format": "made up"}, {"type": "string"}),
        (
            {"type": "string", "format": "ipv4", "pattern": "^[0-9.]+$"},
            {"type": "string", "pattern": pattern_of("[0-9.]+")},
        ),
        ({"allOf": [{"type": "integer"}, {"minimum": 2.5}]}, {"type": "integer", "minimum": 3}),
        ({"$ref": "#/$defs/x", "minimum": 3, "$defs": {"x": {"type": "integer"}}}, {"type": "integer", "minimum": 3}),
        ({"const": {"a": 1}}, {"enum": [{"a": 1}]}),
        ({"type": "integer", "enum": [1, "a", 2]}, {"enum": [1, 2]}),
        ({"type": ["integer", "number"]}, {"type": "number"}),
        (
            {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 9},
            {"type": "integer", "minimum": 4, "maximum": 8},
        ),
        (
            {"type": "object", "required": ["a"]},
            {"type": "object", "properties": {"a": {}}, "required": ["a"], "additionalProperties": False},
        ),
        (
            {"anyOf": [{"type": "integer"}, {"type": "string"}], "minimum": 3},
            {"anyOf": [{"type": "integer", "minimum": 3}, {"type": "string"}]},
        ),
    ],
)
def test_the_form_that_is_enforced(schema: object, expected: object) -> None:
    assert json.loads(enforceable(json.dumps(schema))) == expected


def test_a_tagged_union_and_recursion_stay() -> None:
    tagged = [{"properties": {"kind": {"const": kind}}, "required": ["kind"]} for kind in ("cat", "dog")]
    check_schema({"oneOf": tagged})
    made = json.loads(enforceable(json.dumps({"$ref": "#/$defs/node", "$defs": {"node": NODE}})))
    assert made["$defs"]["d0"]["properties"]["next"]["anyOf"][0] == {"$ref": "#/$defs/d0"}


@settings(max_examples=300, deadline=None)
@given(schemas())
def test_a_small_value_fits_the_schema_as_it_came(schema: Schema) -> None:
    written = json.dumps(schema)
    try:
        made = json.loads(enforceable(written))
    except GrammarRefused:
        return
    for text, number in (("", 0), ("example", 7)):
        value = smallest_value(made, text=text, number=number)
        assert problem_of(JsonSchema(written), json.dumps(value).encode()) is None
        assert Draft202012Validator(made).is_valid(value) or "pattern" in json.dumps(made)


@pytest.mark.parametrize("text", ["{", "", "NaN", '{"a":1}', '{"value":1}', "[]", "1e999999"])
def test_what_does_not_fit_is_told(text: str) -> None:
    assert problem_of(JsonSchema(json.dumps(NODE | {"$defs": {"node": NODE}})), text.encode())


def test_a_value_is_checked_in_bounded_time() -> None:
    schema = JsonSchema(json.dumps({"type": "string", "pattern": "^(a|a)*$"}))
    began = time.process_time()  # not of a busy machine
    assert "takes too long" in (problem_of(schema, json.dumps("a" * 60 + "!").encode()) or "")
    assert time.process_time() - began < 5
