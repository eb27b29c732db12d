"""Regular expressions that clients send: those that xgrammar can hold a model to."""

import re

import regex

from engine.contents.regex_trees import Tree, parse, repetition, weight
from engine.contents.sharing import CHARACTER, current_share
from engine.errors import GrammarRefused

MAX_CHARACTERS = 8192
MAX_REPETITIONS = 10_000  # of one {n,m}
MAX_REPETITION = 256  # characters that repeat those before: `regex` takes 15 ms for them, and 50 s for 4,000
MAX_WEIGHT = 40_000  # of all, once they are written out: `regex` takes 300 bytes for each part, or more

_UNKNOWN = (
    (re.compile(r"\(\?(?:=|!|<=|<!)"), "looks around"),
    (re.compile(r"\\[1-9]|\(\?P=|\\[gk]"), "refers back to a group"),
    (re.compile(r"\(\?(?![:<])|\(\?P"), "has flags or a named group of Python's"),
    (re.compile(r"\\[bBAZzQEGRXK]"), "asks for a place (\\b, \\A, \\Z, …)"),
    (re.compile(r"\\[pP]"), "asks for a property of Unicode"),
    (re.compile(r"[+*?}]\+"), "is possessive"),
    (re.compile(r"\[\[:"), "has a POSIX class"),
)
_ESCAPED_OR_CLASS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*(?:\]|\Z)", re.DOTALL)  # an open one to the end: in one go
_ESCAPED_OR_CLASS_OR_DOT = re.compile(rf"{_ESCAPED_OR_CLASS.pattern}|\.", re.DOTALL)
_REPETITION = re.compile(r"\{(\d+)(?:,(\d*))?\}")


def check_regex(pattern: str) -> None:
    """Return if a model can be held to a regular expression; else raise `GrammarRefused` with a reason."""
    if not pattern:
        raise GrammarRefused("The regular expression is empty.")
    if len(pattern) > MAX_CHARACTERS:
        raise GrammarRefused(
            f"The regular expression has {len(pattern)} characters; at most {MAX_CHARACTERS} are allowed."
        )
    current_share().take(CHARACTER * len(pattern))
    bare = _ESCAPED_OR_CLASS.sub(lambda found: "" if found[0].startswith("[") else found[0], pattern)
    plain = bare.replace("\\\\", "")
    for unknown, what in _UNKNOWN:
        if unknown.search(pattern if "POSIX" in what else plain):
            raise GrammarRefused(f"The regular expression {pattern[:100]!r} {what}, which cannot be enforced.")
    inner = _ESCAPED_OR_CLASS.sub("_", pattern).removeprefix("^").removesuffix("$")
    if "^" in inner or "$" in inner:
        raise GrammarRefused(
            f"The regular expression {pattern[:100]!r} has ^ or $ within, which cannot be enforced: a text is matched "
            "as a whole."
        )
    if any(_is_too_many(bound) for found in _REPETITION.findall(inner) for bound in found if bound):
        raise GrammarRefused(f"The regular expression repeats something more than {MAX_REPETITIONS} times.")
    try:
        tree = parse(pattern)
        check_weight(tree)
        if repetition(tree) > MAX_REPETITION:
            raise GrammarRefused(
                f"The regular expression {pattern[:100]!r} says the same again and again in a long text; write that "
                "with {n}."
            )
        regex.compile(pattern)  # a{1000000} would take 2 s and 250 MB, and (a?b?c?){10000} as much
    except (regex.error, RecursionError, OverflowError) as error:
        raise GrammarRefused(f"The regular expression {pattern[:100]!r} cannot be read: {error}.") from error


def check_weight(tree: Tree) -> None:
    """Raise `GrammarRefused` for a tree that gets very large where what it repeats is written out."""
    if weight(tree) > MAX_WEIGHT:
        raise GrammarRefused(
            f"What is repeated, of more than one character, has more than {MAX_WEIGHT} parts once it is written out."
        )


def _is_too_many(bound: str) -> bool:
    return len(bound) > 9 or int(bound) > MAX_REPETITIONS  # Python reads no number of thousands of digits


def without_dots(pattern: str) -> str:
    """Return a pattern in which `.` matches no line's end, as everywhere: xgrammar's matches that too."""
    return _ESCAPED_OR_CLASS_OR_DOT.sub(lambda found: r"[^\n]" if found[0] == "." else found[0], pattern)
