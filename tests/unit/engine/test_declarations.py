"""Declarations are the library's, character for character, whatever JSON somebody sends as a schema."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from openai_harmony import DeveloperContent, Message, Role, ToolDescription

from engine.formats.base import FunctionTool
from engine.formats.harmony.encoding import decode_tokens
from engine.formats.harmony.prompt import developer_text, render_developer
from tests.kit.harmony_library import harmony_encoding

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


schemas = schema_of(st.recursive(values, schema_of, max_leaves=6)).filter(bool)
functions = st.tuples(st.sampled_from(["f", "g.h", "i-j_2"]), texts, schemas | st.none())


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
@given(schemas)
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
