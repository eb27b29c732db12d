"""JSON schemas of all kinds that a model can be held to, for property tests."""

import json
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from engine.contents.schemas import enforceable
from engine.errors import GrammarRefused

Schema = dict[str, Any]
NAMES = ("a", "b", "city", "naïve ключ", 'q"uote', "with space", "x-1")
PATTERNS = ("^[a-z]{1,4}$", r"^\d{3}-\d{2}$", "^(on|off)$", r"^[^a]{1,3}$", r'^"\w"$')
FORMATS = ("date", "uuid", "ipv4", "time")


def check_schema(schema: object) -> None:
    """Raise `GrammarRefused` where a model cannot be held to a schema."""
    enforceable(json.dumps(schema))


def small_strings() -> st.SearchStrategy[Schema]:
    """Strings that end soon, whatever a model of noise samples."""
    bounds = st.tuples(st.integers(0, 3), st.integers(0, 4)).map(
        lambda pair: {"type": "string", "minLength": pair[0], "maxLength": sum(pair)}
    )
    patterns = st.sampled_from(PATTERNS).map(lambda pattern: {"type": "string", "pattern": pattern})
    formats = st.sampled_from(FORMATS).map(lambda name: {"type": "string", "format": name})
    return st.one_of(bounds, patterns, formats)


def numbers() -> st.SearchStrategy[Schema]:
    """Integers and numbers, with and without bounds."""
    whole = st.tuples(st.integers(-50, 50), st.integers(0, 100)).map(
        lambda pair: {"type": "integer", "minimum": pair[0], "maximum": sum(pair)}
    )
    fractions = st.tuples(st.integers(-9, 9), st.integers(1, 9)).map(
        lambda pair: {"type": "number", "minimum": pair[0] / 2, "exclusiveMaximum": sum(pair)}
    )
    return st.one_of(whole, fractions, st.just({"type": "integer", "exclusiveMinimum": 0, "maximum": 9}))


def leaves() -> st.SearchStrategy[Schema]:
    """Everything without an inside."""
    values = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text(max_size=5))
    return st.one_of(
        small_strings(),
        numbers(),
        st.lists(values, min_size=1, max_size=4).map(lambda several: {"enum": several}),
        values.map(lambda value: {"const": value}),
        st.just({"type": "boolean"}),
        st.just({"type": "null"}),
        st.just({"type": ["integer", "null"], "minimum": 2, "maximum": 7}),
    )


def objects(inside: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    """Objects with some properties, of which some are required."""

    def built(properties: dict[str, Schema], keep: int, closed: bool) -> Schema:
        schema = {"type": "object", "properties": properties, "required": list(properties)[:keep]}
        return {**schema, "additionalProperties": False} if closed else schema

    properties = st.dictionaries(st.sampled_from(NAMES), inside, min_size=1, max_size=4)
    return st.builds(built, properties, st.integers(0, 4), st.booleans())


def nested(inside: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    lists = st.tuples(inside, st.integers(0, 2), st.integers(0, 2)).map(
        lambda parts: {"type": "array", "items": parts[0], "minItems": parts[1], "maxItems": parts[1] + parts[2]}
    )
    rows = st.lists(inside, min_size=1, max_size=3).map(
        lambda several: {"type": "array", "prefixItems": several, "items": False, "minItems": len(several)}
    )
    choices = st.lists(inside, min_size=1, max_size=3).map(lambda several: {"anyOf": several})
    merged = objects(inside).map(lambda schema: {"allOf": [schema, {"type": "object"}], "description": "merged"})
    return st.one_of(objects(inside), lists, rows, choices, merged)


def with_definitions(schema: Schema, other: Schema) -> Schema:
    """Return an object that refers to a schema twice, with siblings, and to itself."""
    return {
        "type": "object",
        "properties": {
            "one": {"$ref": "#/$defs/other", "description": "a sibling"},
            "two": {"$ref": "#/$defs/other"},
            "three": schema,
            "more": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        },
        "required": ["one", "more"],
        "additionalProperties": False,
        "$defs": {"other": other},
    }


def schemas() -> st.SearchStrategy[Schema]:
    """Schemas, of which nearly all can be enforced."""
    plain = st.recursive(leaves(), nested, max_leaves=6)
    return st.one_of(plain, objects(plain), st.builds(with_definitions, plain, plain))


def drawn(count: int, strategy: Callable[[], st.SearchStrategy[Schema]] = schemas) -> list[str]:
    """Return so many different schemas that can be enforced, as JSON; always the same ones."""
    found: dict[str, None] = {}

    @settings(
        max_examples=4 * count,
        phases=[Phase.generate],
        database=None,
        derandomize=True,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy())
    def collect(schema: Schema) -> None:
        written = json.dumps(schema)
        try:
            enforceable(written)
        except GrammarRefused:
            return
        found[written] = None

    collect()
    assert len(found) >= count, f"{len(found)} can be enforced"
    return list(found)[-count:]
