"""Checks values against schemas that clients send, in bounded time.

jsonschema follows every reference as often as it stands there, and matches patterns with Python's `re`, which may try
without end and holds the interpreter's lock all the while. Both are bounded here; `GrammarRefused` says so.
"""

import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, NoReturn

import regex
from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend
from jsonschema_specifications import REGISTRY

from engine.errors import GrammarRefused

MAX_REFERENCES = 20_000  # that are followed
MATCH_SECONDS = 0.5  # for all patterns


class MatchBudget:
    """What one check may take."""

    def __init__(self) -> None:
        self._references = 0
        self._until = time.monotonic() + MATCH_SECONDS

    def follow(self) -> None:
        """Count a reference; raises `GrammarRefused`."""
        self._references += 1
        if self._references > MAX_REFERENCES:
            raise GrammarRefused("The schema is too large once its references and combinations are resolved.")

    def matches(self, pattern: str, text: str) -> bool:
        """Whether a pattern is found in a text; raises `GrammarRefused`."""
        try:
            left = max(self._until - time.monotonic(), 0.001)
            return regex.search(pattern, text, timeout=left, concurrent=True) is not None
        except TimeoutError:
            raise GrammarRefused(f"A pattern takes too long to match a value of an enum: {pattern[:200]!r}.") from None
        except (regex.error, RecursionError, OverflowError):
            raise GrammarRefused(f"The regular expression {pattern[:200]!r} cannot be read.") from None


bounded_matching: ContextVar[MatchBudget] = ContextVar("bounded_matching")

Errors = Iterator[ValidationError]


def _pattern(_: Any, pattern: str, instance: object, __: object) -> Errors:
    if isinstance(instance, str) and not bounded_matching.get().matches(pattern, instance):
        yield ValidationError("it does not match")


def _ref(validator: Any, reference: str, instance: object, schema: object) -> Errors:
    bounded_matching.get().follow()
    yield from Draft202012Validator.VALIDATORS["$ref"](validator, reference, instance, schema) or ()


def _additional(validator: Any, extra: object, instance: object, schema: Any) -> Errors:
    if "patternProperties" in schema:
        _refused()
    yield from Draft202012Validator.VALIDATORS["additionalProperties"](validator, extra, instance, schema) or ()


def _refused(*_: object) -> NoReturn:
    raise GrammarRefused("Of a schema beside an enum, names of properties by pattern cannot be enforced.")


BoundedValidator: Any = extend(
    Draft202012Validator,
    {
        "pattern": _pattern,
        "$ref": _ref,
        "$dynamicRef": _refused,
        "additionalProperties": _additional,
        "patternProperties": _refused,
        "unevaluatedProperties": _refused,
    },
)


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
SCHEMA_OF_SCHEMAS = Draft202012Validator(_metaschema(), format_checker=FormatChecker(_FORMATS))
