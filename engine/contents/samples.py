"""Small values that fit a schema, for the demo engine, and to find out whether any finite value fits."""

import json
from collections.abc import Mapping
from typing import Any

from engine.contents.derivations import matches, smallest_match
from engine.contents.keywords import FORMATS, Schema
from engine.errors import GrammarRefused

MAX_STEPS = 20_000  # values that are tried
MAX_CHARACTERS = 64 * 1024  # of the smallest value, as JSON


class _NoneFits(Exception):
    """Every value goes on without end."""


def smallest_value(schema: Schema, *, text: str = "", number: float = 0) -> object:
    """Return a small value that fits a schema which `engine.contents.schemas.enforceable` has made.

    `text` and `number` are taken where they fit. Raises `GrammarRefused` where no finite value fits, and where the
    smallest one is very large.
    """
    try:
        value = _Sampler(schema, text, number).value(schema, ())
        _written_length(value)
    except (_NoneFits, RecursionError):
        raise GrammarRefused("No finite value fits the schema: it refers to itself without end.") from None
    return value


def _written_length(value: object) -> int:
    """Return how long a value is as JSON; raises `GrammarRefused` where that is very long.

    It is not written out to find that out: a value may hold the same one twice, which holds another one twice, …
    """
    length = 0
    for part in json.JSONEncoder().iterencode(value):
        length += len(part)
        if length > MAX_CHARACTERS:
            raise GrammarRefused(f"Every value that fits the schema is longer than {MAX_CHARACTERS} characters.")
    return length


class _Sampler:
    def __init__(self, root: Schema, text: str, number: float) -> None:
        # By their names, without `DEFINITION`.
        self._definitions: Mapping[str, Schema] = root.get("$defs", {})
        self._samples: dict[str, object] = {}  # values of definitions
        self._text, self._number = text, number
        self._steps = 0  # values that were tried, of `MAX_STEPS`

    def value(self, schema: Schema, inside: tuple[str, ...]) -> object:
        """Return a value; `inside` are the definitions that it is a part of."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise GrammarRefused("The schema is too large: no small value fits it.")
        if "$ref" in schema:
            return self._of_definition(schema["$ref"].removeprefix("#/$defs/"), inside)
        if "enum" in schema:
            return schema["enum"][0]
        if "anyOf" in schema:
            return self._of_any(schema["anyOf"], inside)
        kind = schema.get("type", "string")
        if kind in ("object", "array"):
            return self._object(schema, inside) if kind == "object" else self._array(schema, inside)
        return self._scalar(kind, schema)

    def _scalar(self, kind: str, schema: Schema) -> object:
        match kind:
            case "string":
                return self._string(schema)
            case "integer":
                return self._integer(schema)
            case "number":
                return self._of_number(schema)
        return True if kind == "boolean" else None

    def _of_definition(self, name: str, inside: tuple[str, ...]) -> object:
        # A value of it within itself: this way leads to no end, another alternative may.
        if name in inside:
            raise _NoneFits
        if name not in self._samples:
            self._samples[name] = self.value(self._definitions[name], (*inside, name))
        return self._samples[name]

    def _of_any(self, branches: list[Schema], inside: tuple[str, ...]) -> object:
        for branch in branches:
            try:
                return self.value(branch, inside)
            except _NoneFits:
                continue
        raise _NoneFits

    def _object(self, schema: Schema, inside: tuple[str, ...]) -> object:
        properties, required = schema.get("properties", {}), frozenset(schema.get("required", ()))
        made = {name: self.value(properties[name], inside) for name in properties if name in required}
        for name in properties:
            if len(made) >= schema.get("minProperties", 0):
                break
            if name not in made:
                made[name] = self.value(properties[name], inside)
        if len(made) < schema.get("minProperties", 0) or len(made) > schema.get("maxProperties", len(made)):
            raise GrammarRefused("No object has as many properties as the schema asks for.")
        # In the order of the schema, in which xgrammar writes them.
        return {name: made[name] for name in properties if name in made}

    def _array(self, schema: Schema, inside: tuple[str, ...]) -> object:
        first, least = schema.get("prefixItems", []), schema.get("minItems", 0)
        made = [self.value(each, inside) for each in first[:least]]
        if least > len(made):
            item = self.value(schema["items"], inside)
            # Multiplied, not built: a list of 10^9 items would be built first.
            if least * _written_length(item) > MAX_CHARACTERS:
                raise GrammarRefused(f"Every value that fits the schema is longer than {MAX_CHARACTERS} characters.")
            made += [item] * (least - len(made))
        return made

    def _string(self, schema: Schema) -> str:
        if "format" in schema:
            return FORMATS[schema["format"]]
        if "pattern" not in schema:
            return self._text
        pattern = schema["pattern"]
        # As JSON writes it: the pattern was translated for that (`pattern_of`).
        if matches(pattern, json.dumps(self._text, ensure_ascii=False)[1:-1]):
            return self._text
        match: str = json.loads(f'"{smallest_match(pattern)}"')  # it is what JSON writes
        return match

    def _integer(self, schema: Schema) -> int:
        number = int(self._number)
        step: int = schema.get("multipleOf", 1)
        number = max(number, int(schema.get("minimum", number)))
        # A step is never asked for beside bounds: see `keywords.integer`.
        return min(number, int(schema.get("maximum", number))) // step * step

    def _of_number(self, schema: Schema) -> Any:
        least, above = schema.get("minimum"), schema.get("exclusiveMinimum")
        most, below = schema.get("maximum"), schema.get("exclusiveMaximum")
        low, high = (least if above is None else above), (most if below is None else below)
        # The user's number if it fits; then 0, and what lies at or between the bounds.
        for each in (self._number, 0, *_between(low, high)):
            if (low is None or each > low or (each == low and above is None)) and (
                high is None or each < high or (each == high and below is None)
            ):
                return each
        raise GrammarRefused("No number fits the bounds of the schema.")


def _between(low: float | None, high: float | None) -> tuple[float, ...]:
    if low is None or high is None:
        return tuple(each for bound in (low, high) if bound is not None for each in (bound + 1, bound - 1, bound))
    return (low, high, (low + high) / 2)
