"""Whether a text is what a rule asks for, and whether a value fits a client's schema, in bounded time.

jsonschema follows every reference as often as it stands there, compares all items with each other to find two that are
the same, and matches patterns with Python's `re`, which may try without end and holds the interpreter's lock all the
while. All that is counted here (see `SchemaBudget`); `GrammarRefused` says so.

`problem_of` is asked where no grammar has held a text: by engines without a model, and of a turn that was cut and went
on freely.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import Any, NoReturn

import regex
from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import ValidationError, best_match
from jsonschema.validators import extend
from jsonschema_specifications import REGISTRY

from engine.contents.budget import SchemaBudget, frozen, length, size
from engine.contents.derivations import derives
from engine.contents.regexes import check_regex
from engine.errors import GrammarRefused
from engine.types import AnyObject, AnyText, Content, JsonSchema, Lark, Regex

DEFINITION = "#/$defs/"  # where the definitions of a translated schema are


def target(root: object, reference: str) -> object:
    """Return what `#/…` refers to in a schema; raises `GrammarRefused`."""
    if not reference.startswith("#"):
        raise GrammarRefused(f"{reference[:200]!r} is outside of the schema; a $ref may only begin with '#'.")
    node: Any = root
    for part in filter(None, reference[1:].split("/")):
        # JSON Pointer: `~1` stands for `/`, `~0` for `~`. In this order: `~01` is `~1`.
        key = part.replace("~1", "/").replace("~0", "~")
        try:
            node = node[int(key)] if isinstance(node, list) else node[key]
        except (LookupError, ValueError, TypeError):
            raise GrammarRefused(f"The schema refers to {reference[:200]!r}, which it does not have.") from None
    return node


def refuse_circles(definitions: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise `GrammarRefused` where a definition is, or may be, itself: nothing is read on the way round."""
    try:
        TopologicalSorter({name: _begins_with(each) for name, each in definitions.items()}).prepare()
    except CycleError:
        raise GrammarRefused("The schema has an alternative that refers to itself without end.") from None


def _begins_with(schema: Mapping[str, Any]) -> set[str]:
    """Return the definitions that a value of a schema may be as a whole."""
    if "$ref" in schema:
        return {schema["$ref"].removeprefix(DEFINITION)}
    # References behind properties or items are not looked at: a value goes on there, and may end.
    return {name for each in schema.get("anyOf", ()) for name in _begins_with(each)}


KEYWORD, REFERENCE = 6, 25  # what looking at one takes, in parts of a budget

budget: ContextVar[SchemaBudget] = ContextVar("budget")  # of the schema that is being checked

Errors = Iterator[ValidationError]


def _pattern(_: Any, pattern: str, instance: object, __: object) -> Errors:
    if isinstance(instance, str) and not _is_found(pattern, instance, budget.get()):
        yield ValidationError("it does not match")


def _is_found(pattern: str, text: str, left: SchemaBudget) -> bool:
    """Whether a pattern is found in a text; Python's own `re` may try without end, and holds the lock."""
    if pattern not in left.patterns:
        check_regex(pattern)
        left.patterns.add(pattern)
    try:
        # At least a millisecond, so that the last pattern is tried, too.
        seconds = max(left.patterns_until - time.monotonic(), 0.001)
        # `concurrent`: without the interpreter's lock, so that other threads go on.
        return regex.search(pattern, text, timeout=seconds, concurrent=True) is not None
    except TimeoutError:
        raise GrammarRefused(f"A pattern takes too long to match a value: {pattern[:200]!r}.") from None
    except (regex.error, RecursionError, OverflowError):
        raise GrammarRefused(f"The regular expression {pattern[:200]!r} cannot be read.") from None


def _ref(validator: Any, reference: str, instance: object, _: object) -> Errors:
    """Follow a reference as the translation does: jsonschema's own way breaks down where references go in circles."""
    budget.get().take(REFERENCE)
    yield from validator.descend(instance, target(budget.get().root, reference))


def _enum(_: Any, values: list[object], instance: object, __: object) -> Errors:
    budget.get().take(size(values) + size(instance))
    # As a set: comparing an instance with each value takes a product of both sizes.
    if frozen(instance) not in set(map(frozen, values)):
        yield ValidationError("it is another value")


def _const(_: Any, value: object, instance: object, schema: object) -> Errors:
    return _enum(_, [value], instance, schema)


def _unique(_: Any, is_on: bool, instance: object, __: object) -> Errors:
    if is_on and isinstance(instance, list) and len(set(map(frozen, instance))) < len(instance):
        yield ValidationError("it has the same value twice")


def _unique_counted(_: Any, is_on: bool, instance: object, schema: object) -> Errors:
    budget.get().take(size(instance))
    return _unique(_, is_on, instance, schema)


def _additional(validator: Any, extra: object, instance: object, schema: Any) -> Errors:
    # Which names are additional depends on patterns then, which would be matched by `re`.
    if "patternProperties" in schema:
        _refused()
    yield from Draft202012Validator.VALIDATORS["additionalProperties"](validator, extra, instance, schema) or ()


def _refused(*_: object) -> NoReturn:
    raise GrammarRefused("Of a schema beside an enum, names of properties by pattern cannot be enforced.")


def _counted(check: Callable[..., Any]) -> Callable[..., Errors]:
    def counted(validator: Any, value: object, instance: object, schema: object) -> Errors:
        left = budget.get()
        left.take(KEYWORD * (1 + length(value)) + length(instance))
        with left.deeper():
            yield from check(validator, value, instance, schema) or ()

    return counted


# jsonschema's own checks, less those that may take without end.
_CHECKS: dict[str, Callable[..., Any]] = {
    **Draft202012Validator.VALIDATORS,
    "pattern": _pattern,
    "$ref": _ref,
    "enum": _enum,
    "const": _const,
    "uniqueItems": _unique_counted,
    "$dynamicRef": _refused,
    "additionalProperties": _additional,
    "patternProperties": _refused,
    "unevaluatedProperties": _refused,
}
BoundedValidator: Any = extend(Draft202012Validator, {name: _counted(check) for name, check in _CHECKS.items()})


def _evolve(self: Any, **changes: Any) -> Any:
    """Return a validator with changes, and always a bounded one: `$schema` in a part would ask for another class."""
    return BoundedValidator(**{"schema": self.schema, "_resolver": self._resolver, **changes})


BoundedValidator.evolve = _evolve


def _metaschema() -> dict[str, Any]:
    """Return the schema of schemas in one piece: the published one, in seven that refer to each other, is ten times
    slower to check with (0.5 ms for each schema within a schema).
    """
    vocabularies = "core applicator unevaluated validation meta-data format-annotation content".split()
    parts = [REGISTRY.contents(f"https://json-schema.org/draft/2020-12/meta/{name}") for name in vocabularies]
    return {
        "type": ["object", "boolean"],
        "properties": {name: _of_itself(each) for part in parts for name, each in part["properties"].items()},
        "$defs": {name: _of_itself(each) for part in parts for name, each in part.get("$defs", {}).items()},
    }


def _of_itself(value: Any) -> Any:
    """Return a part of the schema of schemas that refers to the one piece."""
    if isinstance(value, dict):
        return {"$ref": "#"} if "$dynamicRef" in value else {name: _of_itself(each) for name, each in value.items()}
    return [_of_itself(each) for each in value] if isinstance(value, list) else value


_FORMATS = [name for name in Draft202012Validator.FORMAT_CHECKER.checkers if name != "regex"]  # `scalars` reads those
SCHEMA_OF_SCHEMAS = extend(Draft202012Validator, {"uniqueItems": _unique})(
    _metaschema(), format_checker=FormatChecker(_FORMATS)
)


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
            return _problem_of_json(json.loads(schema), text)
        case Regex(pattern):
            return _problem_of_match(pattern, text.decode(errors="replace"))
        case Lark(grammar):
            return _problem_of_derivation(grammar, text.decode(errors="replace"))


def _problem_of_json(schema: object, text: bytes) -> str | None:
    try:
        # Python takes NaN and Infinity, JSON does not.
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        return f"{_shown(text)} is not JSON: {error}"
    try:
        budget.set(SchemaBudget(schema))
        misfit = best_match(BoundedValidator(schema).iter_errors(value))
    except (GrammarRefused, RecursionError) as error:
        return f"the schema cannot be used: {error}"
    return None if misfit is None else f"{_shown(text)} does not fit its schema: {misfit.message[:MAX_SHOWN]}"


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not a number of JSON's")


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
