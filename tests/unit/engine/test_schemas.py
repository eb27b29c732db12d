"""Schemas as clients send them: how they are declared to the model, character for character, and enforced."""

import json
import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from openai_harmony import DeveloperContent, Message, Role, ToolDescription

from engine.contents.keywords import pattern_of
from engine.contents.schemas import MAX_BYTES, MAX_DEPTH, enforceable
from engine.contents.validation import problem_of, smallest_value
from engine.errors import GrammarRefused
from engine.formats.base import FunctionTool
from engine.formats.harmony.encoding import decode_tokens
from engine.formats.harmony.prompt import developer_text, render_developer
from engine.types import JsonSchema
from tests.kit.harmony import harmony_encoding
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


Tools = list[tuple[str, str, object]]

WORDS = [
    "",
    "a",
    "b c",
    "null",
    "x\ny",
    "é中",
    'q"',
    "s\r\n",
    "\n",
    "<|end|>",
    "// a",
    "\n\nx",
    "a\rb",
    "a\x0bb\u2028c\x85d",
]
texts = st.sampled_from(WORDS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
numbers = (  # the library loses the last digit of many others
    st.integers(-(2**63), 2**64 - 1)
    | st.integers(-1000, 1000).map(lambda number: number / 64)
    | st.sampled_from([1e20, 1e16, 1e15, 1e-5, 1.5e-6, 1e-7, -0.0, 1.7e308])
)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
names = st.sampled_from(["string", "integer", "number", "boolean", "object", "array", "null", "weird"])


def schema_of(inner: st.SearchStrategy[object]) -> st.SearchStrategy[dict[str, object]]:
    """Draw a schema with parts from `inner`: each field of the right kind, or of any."""
    fields = {
        "type": names | st.lists(names, max_size=2),
        "description": texts,
        "title": texts,
        "default": values,
        "nullable": st.booleans(),
        "enum": st.lists(texts | values, max_size=3),
        "examples": st.lists(texts | values, max_size=2),
        "items": inner,
        "properties": st.dictionaries(texts, inner, max_size=3),
        "required": st.lists(texts, max_size=2),
        "oneOf": st.lists(inner, max_size=3),
        "anyOf": st.lists(inner, max_size=1),
    }
    any_kind = {name: each | values for name, each in fields.items()}
    an_object = {"type": st.just("object"), "properties": fields["properties"]}
    rest = {name: each for name, each in fields.items() if name not in an_object}
    return st.fixed_dictionaries({}, optional=any_kind) | st.fixed_dictionaries(an_object, optional=rest)


any_schemas = schema_of(st.recursive(values, schema_of, max_leaves=6)).filter(bool)
functions = st.tuples(st.sampled_from(["f", "g.h", "i-j_2"]), texts, any_schemas | st.none())


def library(instructions: str | None, tools: Tools) -> list[int]:
    content = DeveloperContent.new()
    if instructions:
        content = content.with_instructions(instructions)
    if tools:
        described = [ToolDescription.new(name, text, parameters=schema) for name, text, schema in tools]
        content = content.with_function_tools(described)
    tokens: list[int] = harmony_encoding().render(Message.from_role_and_content(Role.DEVELOPER, content))
    return tokens


def ours(instructions: str | None, tools: Tools) -> list[int]:
    written = tuple(FunctionTool(name, text, json.dumps(schema) if schema else "") for name, text, schema in tools)
    return list(render_developer(instructions=instructions, tools=written))


@settings(deadline=None, max_examples=100)
@given(any_schemas)
@example({"type": [""]})
@example({"type": "object"})
def test_any_schema(schema: object) -> None:
    tools: Tools = [("f", "Does it.", schema)]
    assert decode_tokens(ours(None, tools)) == decode_tokens(library(None, tools))


@settings(deadline=None, max_examples=100)
@given(texts | st.none(), st.lists(functions, max_size=3))
def test_instructions_and_functions_are_the_same_tokens(instructions: str | None, tools: Tools) -> None:
    if instructions or tools:
        assert ours(instructions, tools) == library(instructions, tools)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "enum": ["a"], "default": "a", "nullable": True, "description": "x\ny", "title": "T"},
        {"type": "object", "description": "d", "properties": {"z": {"default": 1e20, "examples": ["e", 1]}}},
        {"oneOf": [{"description": "same"}, {"default": {"k": 1.0}}], "description": "same", "default": "q"},
        {"oneOf": [{"type": "string"}, {"description": "other"}], "description": "own"},
        {"type": "array", "items": {"oneOf": [{"type": "string", "enum": ["e"], "default": 'a"'}, True]}},
        {"oneOf": "x", "default": 1, "description": "d"},
        {"$ref": "#/$defs/P", "description": "somebody"},
        {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/P"}, {"type": "null"}]}},
    ],
)
def test_what_a_property_may_be(schema: object) -> None:
    """The forms that differ, named; alone and as a property that is required or not."""
    tools: Tools = [
        ("f", "", schema),
        ("g", "", {"type": "object", "properties": {"a": schema, "b": schema}, "required": ["a"]}),
    ]
    assert decode_tokens(ours(None, tools)) == decode_tokens(library(None, tools))


def test_deeper_than_the_library_goes() -> None:
    """It reads some 120 levels; how deep a request may go is bounded where requests are read."""
    schema: object = {"type": "string"}
    for _ in range(115):
        schema = {"type": "object", "properties": {"a": schema}}
    text = developer_text(None, [FunctionTool("f", "", json.dumps(schema))])
    assert text.count("a?: {\n") == 114
    assert "a?: string,\n" in text
