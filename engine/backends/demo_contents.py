"""What the demo engine puts into a content that has a rule: something small that is always valid."""

import json

from engine.backends.demo_functions import Hints
from engine.contents.derivations import smallest_derivation
from engine.contents.fitting import problem_of
from engine.contents.regex_trees import smallest_match
from engine.contents.samples import smallest_value
from engine.contents.schemas import enforceable
from engine.errors import GrammarRefused
from engine.grammar import AnyObject, AnyText, Content, JsonSchema, Lark, Regex, TurnRules


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
            return smallest_derivation(grammar)


def require_makeable(rules: TurnRules) -> None:
    """Return if every content of a turn can be made up; else raise `GrammarRefused`."""
    for content in {rules.answer, *(call.content for call in rules.calls)}:
        made = make_content(content, Hints("example", 1))
        problem = problem_of(content, made.encode())
        if problem is not None:
            raise GrammarRefused(f"The demo engine finds nothing that fits: {problem}.")


def _written(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
