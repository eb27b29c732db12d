"""Regular expressions that clients send: whether a model can be held to one, and the tree that it is.

    pattern ── check_regex() ──> nothing, or GrammarRefused
    pattern ── parse() ──> OneCharacter | Concatenation | Alternation | Repeat

A tree is what a text that matches, the rules of a grammar, or a regular expression over JSON's text are made of.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import eq
from re import _constants, _parser
from typing import Any

import regex

from engine.contents.budget import CHARACTER, current_share
from engine.errors import GrammarRefused

Ranges = tuple[tuple[int, int], ...]  # of code points, both ends included

_CATEGORIES: dict[Any, tuple[bool, Ranges]] = {  # as xgrammar reads them: of ASCII; True: all characters but these
    _constants.CATEGORY_DIGIT: (False, ((48, 57),)),
    _constants.CATEGORY_NOT_DIGIT: (True, ((48, 57),)),
    _constants.CATEGORY_WORD: (False, ((48, 57), (65, 90), (95, 95), (97, 122))),
    _constants.CATEGORY_NOT_WORD: (True, ((48, 57), (65, 90), (95, 95), (97, 122))),
    _constants.CATEGORY_SPACE: (False, ((9, 13), (32, 32))),
    _constants.CATEGORY_NOT_SPACE: (True, ((9, 13), (32, 32))),
}
LAST = 0x10FFFF  # the largest code point
_ESCAPED_OR_CLASS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*(?:\]|\Z)", re.DOTALL)  # an open one to the end: in one go
# As well where a named group begins, `(?<name>`; not what looks behind.
_ESCAPED_OR_CLASS_OR_NAMED = re.compile(rf"{_ESCAPED_OR_CLASS.pattern}|\(\?<(?![=!])", re.DOTALL)
# Within a class: an escape as it is, or a sign that `re` may read as a set one day.
_FUTURE = re.compile(r"\\.|[\[&~|]", re.DOTALL)
MAX_PERIOD = 100  # characters that come again and again
_CASES = 4  # of one character: k, K and the Kelvin sign are three
_SURROGATES = (0xD800, 0xDFFF)  # no text has them


@dataclass(frozen=True, slots=True)
class OneCharacter:
    """One character out of some ranges, which are in order and do not touch."""

    ranges: Ranges  # never empty


@dataclass(frozen=True, slots=True)
class Concatenation:
    """One after the other; the empty text, where there is none."""

    parts: tuple["Tree", ...]


@dataclass(frozen=True, slots=True)
class Alternation:
    """One of these."""

    options: tuple["Tree", ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """This, several times in a row."""

    part: "Tree"  # what is repeated
    least: int  # 0 or more
    most: int | None  # None: without limit


@dataclass(frozen=True, slots=True)
class RuleName:
    """What a rule of a grammar says; no regular expression has one."""

    name: str  # of a Lark grammar


Tree = OneCharacter | Concatenation | Alternation | Repeat | RuleName


def parse(pattern: str, flags: str = "") -> Tree:
    """Return a regular expression as a tree; raises `GrammarRefused` for what has none (`\\b`, what looks around)."""
    try:
        value = sum((getattr(re, flag.upper()) for flag in flags if flag in "imsx"), re.RegexFlag(0))
        parsed = _parser.parse(_ESCAPED_OR_CLASS_OR_NAMED.sub(_as_python, pattern), int(value))
    except (re.error, RecursionError, OverflowError) as error:
        raise GrammarRefused(f"The regular expression {pattern[:100]!r} cannot be read: {error}.") from error
    # The flags of the whole, with those that the pattern sets itself (`(?i)`).
    return _PatternReader(pattern, parsed.state.flags).sequence(parsed)


def _as_python(match: re.Match[str]) -> str:
    """Return a part as `re` reads it: `(?P<` for `(?<`, and a class without the sets of its future.

    It would write a warning for each of these to the log.
    """
    text = match[0]
    if text == "(?<":
        return "(?P<"
    if not text.startswith("["):
        return text
    return "[" + _FUTURE.sub(lambda each: each[0] if len(each[0]) > 1 else f"\\{each[0]}", text[1:]).replace(
        "--", "-\\-"
    )


def weight(tree: Tree) -> int:
    """Return how many parts a tree has once what it repeats is written out; a repeated character is one part."""
    match tree:
        case Concatenation(parts) | Alternation(parts):
            return 1 + sum(map(weight, parts))
        case Repeat(part, least, most) if not isinstance(part, OneCharacter):
            return 1 + weight(part) * max(least, most or 1)
    return 1


def repetition(tree: Tree) -> int:
    """Return how long a stretch of a tree's literal texts is in which the same characters come again and again."""
    longest, texts = 0, [list[int]()]
    for character in _literals(tree):
        if character is None:
            texts.append([])
        else:
            texts[-1].append(character)
    for text in texts:
        # Each character is compared with the one a period before: a run of ones is a stretch that repeats itself.
        # Periods as long as what was found could not find a longer stretch in what is left.
        for period in range(1, min(MAX_PERIOD, len(text) - longest)):
            longest = max(longest, *map(len, bytes(map(eq, text, text[period:])).split(b"\0")))
    return longest


def _literals(tree: Tree) -> Iterator[int | None]:
    """Yield the characters of a tree's literal texts, in order, and None where one ends.

    What an option begins or ends with can belong to the text before or behind the choice, as all options may have it.
    Of a character in any case the first one stands for both.
    """
    match tree:
        case OneCharacter(ranges) if 0 < len(ranges) <= _CASES and all(first == last for first, last in ranges):
            yield ranges[0][0]
        case Concatenation(parts):
            for part in parts:
                yield from _literals(part)
        case Alternation(options):
            for index, option in enumerate(dict.fromkeys(options)):
                if index:
                    yield None
                yield from _literals(option)
        case Repeat(part, 1, 1):
            yield from _literals(part)
        case Repeat(part):
            yield None
            yield from _literals(part)
            yield None
        case _:
            yield None


def is_in(character: str, ranges: Ranges) -> bool:
    """Whether a character is in one of some ranges."""
    return any(first <= ord(character) <= last for first, last in ranges)


def nice_character(ranges: Ranges) -> str:
    """Return one of the characters, a readable one where there is one."""
    for each in "x1_ X-.":
        if is_in(each, ranges):
            return each
    # 32: characters below are control characters.
    return chr(next((max(first, 32) for first, last in ranges if last >= 32), ranges[0][0]))


class _PatternReader:
    """Reads what `re` has parsed."""

    def __init__(self, pattern: str, flags: int) -> None:
        self._pattern = pattern
        self._any_case = bool(flags & re.IGNORECASE)
        self._dot_is_all = bool(flags & re.DOTALL)

    def sequence(self, parsed: Iterable[Any]) -> Tree:
        """Return the parts of a (sub)pattern; anchors match where they stand, since a text is matched as a whole."""
        # `^` and `$` say nothing: a text is matched as a whole.
        parts = tuple(self._part(op, argument) for op, argument in parsed if op is not _constants.AT)
        return parts[0] if len(parts) == 1 else Concatenation(parts)

    def _part(self, op: Any, argument: Any) -> Tree:
        if op is _constants.LITERAL:
            return self._one(((argument, argument),))
        if op is _constants.NOT_LITERAL:
            return self._one(((argument, argument),), negated=True)
        if op is _constants.ANY:
            return OneCharacter(complement(() if self._dot_is_all else ((10, 10),)))
        if op is _constants.IN:
            return self._class(argument)
        if op is _constants.BRANCH:
            return Alternation(tuple(self.sequence(each) for each in argument[1]))  # [0] is always None
        if op is _constants.SUBPATTERN:
            return self._group(*argument[1:])
        if op in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
            least, most, part = argument
            return Repeat(self.sequence(part), least, None if most is _constants.MAXREPEAT else most)
        raise GrammarRefused(f"The regular expression {self._pattern[:100]!r} has {op}, which cannot be enforced.")

    def _group(self, more: int, less: int, part: Iterable[Any]) -> Tree:
        """Return a group, which may have flags of its own."""
        # Flags of a group end with it.
        before = self._any_case, self._dot_is_all
        self._any_case = (self._any_case or bool(more & re.IGNORECASE)) and not less & re.IGNORECASE
        self._dot_is_all = (self._dot_is_all or bool(more & re.DOTALL)) and not less & re.DOTALL
        try:
            return self.sequence(part)
        finally:
            self._any_case, self._dot_is_all = before

    def _class(self, items: Iterable[Any]) -> Tree:
        negated, ranges = False, []
        for op, argument in items:
            if op is _constants.NEGATE:
                negated = True
            elif op is _constants.LITERAL:
                ranges.append((argument, argument))
            elif op is _constants.RANGE:
                ranges.append(argument)
            else:
                inverse, category = _CATEGORIES[argument]
                ranges += complement(category) if inverse else category
        return self._one(tuple(ranges), negated=negated)

    def _one(self, ranges: Ranges, *, negated: bool = False) -> Tree:
        if self._any_case:
            ranges = _in_any_case(ranges)
        # The complement of the complement: in order, without overlaps and surrogates.
        chosen = complement(ranges) if negated else complement(complement(ranges))
        if not chosen:
            raise GrammarRefused(f"The regular expression {self._pattern[:100]!r} has a class without a character.")
        return OneCharacter(chosen)


def _in_any_case(ranges: Ranges) -> Ranges:
    """Add the other case of ASCII letters."""
    more = []
    # From A–Z to a–z and back: 32 apart.
    for low, high, step in ((65, 90, 32), (97, 122, -32)):
        more += [
            (max(first, low) + step, min(last, high) + step) for first, last in ranges if first <= high and last >= low
        ]
    return (*ranges, *more)


def complement(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return all other characters, in order."""
    others, begin = [], 0
    # Surrogates count as taken: no text has them, so no complement may have them.
    for first, last in sorted((*ranges, _SURROGATES)):
        if first > begin:
            others.append((begin, first - 1))
        begin = max(begin, last + 1)
    if begin <= LAST:
        others.append((begin, LAST))
    return tuple(others)


MAX_CHARACTERS = 8192
MAX_REPETITIONS = 10_000  # of one {n,m}
MAX_REPETITION = 256  # characters that repeat those before: `regex` takes 15 ms for them, and 50 s for 4,000
MAX_WEIGHT = 40_000  # of all, once they are written out: `regex` takes 300 bytes for each part, or more

# An escape or a class that is looked for below; any other one is a character.
_TELLING = re.compile(r"\\[1-9gkbBAZzQEGRXKpP]|\[.*\[:\^?\w+:\]", re.DOTALL)
# What cannot be enforced, or is read in different ways; with what a message says of it.
_UNKNOWN = (
    (re.compile(r"\(\?(?:=|!|<=|<!)"), "looks around"),
    (re.compile(r"\\[1-9]|\(\?P=|\\[gk]"), "refers back to a group"),
    (re.compile(r"\(\?(?![:<])|\(\?P"), "has flags or a named group of Python's"),
    (re.compile(r"\\[bBAZzQEGRXK]"), "asks for a place (\\b, \\A, \\Z, …)"),
    (re.compile(r"\\[pP]"), "asks for a property of Unicode"),
    (re.compile(r"(?:[+*?]|\{(?:\d+(?:,\d*)?|,\d*)\})\+"), "is possessive"),
    (re.compile(r"\[:\^?\w+:\]"), "has a POSIX class"),
)
# `{3}`, `{3,}` and `{3,5}`.
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
    # A character stays one, however it is written: without its class, `[0-9]+[a-z]+` would be `++`.
    plain = _ESCAPED_OR_CLASS.sub(lambda found: found[0] if _TELLING.match(found[0]) else "_", pattern)
    for unknown, what in _UNKNOWN:
        if unknown.search(plain):
            raise GrammarRefused(f"The regular expression {pattern[:100]!r} {what}, which cannot be enforced.")
    inner = _ESCAPED_OR_CLASS.sub("_", pattern).removeprefix("^").removesuffix("$")
    if "^" in inner or "$" in inner:
        raise GrammarRefused(
            f"The regular expression {pattern[:100]!r} has ^ or $ within, which cannot be enforced: a text is matched "
            "as a whole."
        )
    bounds = [bound for found in _REPETITION.findall(inner) for bound in found if bound]
    # By its length first: Python reads no number of thousands of digits.
    if any(len(bound) > 9 or int(bound) > MAX_REPETITIONS for bound in bounds):
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
