"""Whether a text fits a rule or a client's schema, and a small value that fits one, each in bounded time.

`problem_of` is asked where no grammar has held a text: by engines without a model, and of a turn that was cut and went
on freely. `smallest_value` is for the demo engine, and finds out whether any finite value fits a schema.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import regex

from engine import orjson
from engine.contents.budget import SchemaBudget
from engine.contents.derivations import derives, matches, smallest_match
from engine.contents.keywords import FORMATS, Schema
from engine.errors import GrammarRefused
from engine.types import AnyObject, AnyText, Content, JsonSchema, Lark, Regex

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
            name = schema["$ref"].removeprefix("#/$defs/")
            # A value of it within itself: this way leads to no end, another alternative may.
            if name in inside:
                raise _NoneFits
            if name not in self._samples:
                self._samples[name] = self.value(self._definitions[name], (*inside, name))
            return self._samples[name]
        if "enum" in schema:
            return schema["enum"][0]
        if "anyOf" in schema:
            for branch in schema["anyOf"]:
                try:
                    return self.value(branch, inside)
                except _NoneFits:
                    continue
            raise _NoneFits
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


MATCH_SECONDS = 2.0  # for a regular expression over one text
MAX_SHOWN = 200  # characters of a text in a sentence about it


def problem_of(content: Content, text: bytes) -> str | None:
    """Say in a sentence why a text is not what `content` asks for; None where it is."""
    match content:
        case AnyText():
            return None
        case AnyObject():
            return _problem_of_json({"type": "object"}, text)
        case JsonSchema(schema):
            return _problem_of_json(orjson.loads_kept(schema), text)
        case Regex(pattern):
            return _problem_of_match(pattern, text.decode(errors="replace"))
        case Lark(grammar):
            return _problem_of_derivation(grammar, text.decode(errors="replace"))


def _problem_of_json(schema: object, text: bytes) -> str | None:
    from jsonschema.exceptions import best_match

    from engine.contents.bounded_validators import BoundedValidator, budget

    try:
        value = orjson.loads_kept(text)
    except (ValueError, RecursionError) as error:
        return f"{_shown(text)} is not JSON: {error}"
    try:
        budget.set(SchemaBudget(schema))
        misfit = best_match(BoundedValidator(schema).iter_errors(value))
    except (GrammarRefused, RecursionError) as error:
        return f"the schema cannot be used: {error}"
    return None if misfit is None else f"{_shown(text)} does not fit its schema: {misfit.message[:MAX_SHOWN]}"


def _problem_of_match(pattern: str, text: str) -> str | None:
    try:
        match = _compiled(pattern).fullmatch(text, timeout=MATCH_SECONDS, concurrent=True)
    except regex.error as error:
        return f"the regular expression cannot be used: {error}"
    except TimeoutError:
        return f"{_shown(text.encode())} could not be matched within {MATCH_SECONDS:g} s"
    return None if match else f"{_shown(text.encode())} does not match {pattern[:MAX_SHOWN]!r}"


# Compiling a large pattern takes far longer than matching a short text.
@lru_cache(maxsize=64)
def _compiled(pattern: str) -> "regex.Pattern[str]":
    return regex.compile(pattern)


def _problem_of_derivation(grammar: str, text: str) -> str | None:
    try:
        is_derived = derives(grammar, text)
    except GrammarRefused as error:
        return error.reason
    except RecursionError:
        return f"{_shown(text.encode())} is nested too deeply to be read by its Lark grammar"
    return None if is_derived else f"{_shown(text.encode())} is not what its Lark grammar derives"


def _shown(text: bytes) -> str:
    shown = text[:MAX_SHOWN].decode(errors="replace")
    return repr(shown if len(text) <= MAX_SHOWN else f"{shown}…")
