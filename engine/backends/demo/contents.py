"""What the demo engine puts into a content that has a rule: something small that is always valid."""

import json

from engine.backends.demo.functions import Hints
from engine.contents.derivations import derives, smallest_derivation
from engine.contents.fitting import problem_of
from engine.contents.regex_trees import smallest_match
from engine.contents.samples import smallest_value
from engine.contents.schemas import enforceable
from engine.errors import GrammarRefused
from engine.grammar import AnyObject, AnyText, Content, JsonSchema, Lark, Regex, TurnRules

_PATCH = "*** Begin Patch\n"
_HARMLESS = f"{_PATCH}*** Add File: example.txt\n+example\n*** End Patch"  # the smallest patch deletes a file


def make_content(content: Content, hints: Hints, wanted: str = "") -> str:
    """Return what a content may be; `wanted` itself, where it is. Raises `GrammarRefused` where nothing is found."""
    if wanted and problem_of(content, wanted.encode()) is None:
        return wanted
    match content:
        case AnyText():
            return wanted or hints.string
        case AnyObject():
            return _written({"text": wanted or hints.string})
        case JsonSchema(schema):
            return _written(smallest_value(json.loads(enforceable(schema)), text=hints.string, number=hints.number))
        case Regex(pattern):
            return smallest_match(pattern)
        case Lark(grammar):
            smallest = smallest_derivation(grammar)
            return _HARMLESS if smallest.startswith(_PATCH) and derives(grammar, _HARMLESS) else smallest


def require_makeable(rules: TurnRules) -> None:
    """Return if every content of a turn can be made up; else raise `GrammarRefused`."""
    for content in {rules.answer, *(call.content for call in rules.calls)}:
        made = make_content(content, Hints("example", 1))
        problem = problem_of(content, made.encode())
        if problem is not None:
            raise GrammarRefused(f"The demo engine finds nothing that fits: {problem}.")


def _written(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
