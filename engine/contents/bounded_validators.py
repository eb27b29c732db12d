"""jsonschema's validators, in bounded time: of values by a client's schema, and of a schema by the schema of schemas.

jsonschema follows every reference as often as it stands there, compares all items with each other to find two that are
the same, and matches patterns with Python's `re`, which may try without end and holds the interpreter's lock all the
while. All that is counted here (see `SchemaBudget`); `GrammarRefused` says so.

Importing jsonschema takes 50 ms, so this module is imported where a schema is looked at.
"""

import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NoReturn

import regex
from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend
from jsonschema_specifications import REGISTRY

from engine.contents.budget import SchemaBudget, frozen, length, size
from engine.contents.regexes import check_regex
from engine.errors import GrammarRefused

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
    left = budget.get()
    left.take(REFERENCE)
    yield from validator.descend(instance, left.target(reference))


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
