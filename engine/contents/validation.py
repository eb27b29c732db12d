"""Whether a text is what a rule asks for, and whether a value fits a client's schema, in bounded time.

`problem_of` is asked where no grammar has held a text: by engines without a model, and of a turn that was cut and went
on freely.
"""

from functools import lru_cache

import regex

from engine import orjson
from engine.contents.budget import SchemaBudget
from engine.contents.derivations import derives
from engine.errors import GrammarRefused
from engine.types import AnyObject, AnyText, Content, JsonSchema, Lark, Regex

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
