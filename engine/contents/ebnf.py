"""Grammars of custom tools in the EBNF that xgrammar reads: of a text itself, or of it within a JSON string.

`to_ebnf` writes a Lark grammar, `in_json_string` what stands between the quotes of a string. A family that calls with
JSON has the text of a custom tool in a string. So what its regular expression or its Lark grammar derives is held to by
the EBNF of the same texts, escaped: `"` is `\"` there, and a line's end `\n`.
"""

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import groupby

from engine.contents.budget import current_share
from engine.contents.derivations import START, read, smallest_derivation
from engine.contents.regexes import (
    Alternation,
    Concatenation,
    OneCharacter,
    Ranges,
    Repeat,
    RuleName,
    Tree,
    check_weight,
    complement,
    parse,
)
from engine.types import Lark, Regex


@lru_cache(maxsize=64)
def to_ebnf(grammar: str) -> str:
    """Return a Lark grammar as EBNF; raises `GrammarRefused`, also where every derivation goes on without end."""
    smallest_derivation(grammar)
    return written(read(grammar))


def written(rules: Mapping[str, Tree]) -> str:
    """Return rules, one of which is `start`, as EBNF."""
    # xgrammar begins with the rule `root`.
    names = {name: "root" if name == START else f"r{index}" for index, name in enumerate(rules)}
    return "".join(f"{names[name]} ::= {_written(tree, names)}\n" for name, tree in rules.items())


def _written(tree: Tree, names: Mapping[str, str]) -> str:
    match tree:
        case RuleName(name):
            return names[name]
        case OneCharacter(ranges):
            return _class(ranges)
        case Concatenation(parts):
            return f"({' '.join(_written_row(parts, names))})" if parts else '""'
        case Alternation(options):
            return f"({' | '.join(_written(option, names) for option in options)})"
        case Repeat(part, least, most):
            sign = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
            return f"({_written(part, names)}){sign or f'{{{least},{most if most is not None else str()}}}'}"


def _written_row(parts: Iterable[Tree], names: Mapping[str, str]) -> Iterable[str]:
    """Yield parts, single characters that follow each other as one text."""
    # `groupby` keeps the order: single characters beside each other become one text.
    for is_text, group in groupby(parts, _is_one_character):
        if is_text:
            yield json.dumps("".join(chr(part.ranges[0][0]) for part in group if isinstance(part, OneCharacter)))
        else:
            yield from (_written(part, names) for part in group)


def _is_one_character(tree: Tree) -> bool:
    """Whether only one character will do, and EBNF writes it as JSON does."""
    return (
        isinstance(tree, OneCharacter)
        and tree.ranges[0] == tree.ranges[-1]
        and (tree.ranges[0][0] == tree.ranges[0][1] and tree.ranges[0][0] < 0x10000)
    )


def _class(ranges: Ranges) -> str:
    return f"[{''.join(f'{_named(first)}-{_named(last)}' for first, last in ranges)}]"


def _named(character: int) -> str:
    return rf"\u{character:04x}" if character < 0x10000 else rf"\U{character:08x}"


_ESCAPED = (*range(0x20), ord('"'), ord("\\"))  # the only characters that JSON does not take as they are
Specials = tuple[int, ...]  # some of them, in order

_LAST_ESCAPED = max(_ESCAPED)
_CLASS = 60  # what a class that has to be made anew takes, in parts of a request's share; each range takes one more
_SPECIAL = 5  # and what each character takes that such classes have to escape, the first time they have just these


@lru_cache(maxsize=64)
def in_json_string(content: Regex | Lark) -> str:
    """Return the EBNF of what stands between the quotes of a JSON string; raises `GrammarRefused`."""
    if isinstance(content, Lark):
        smallest_derivation(content.grammar)
        return written(_Escaping().rules(read(content.grammar)))
    tree = parse(content.pattern)
    check_weight(tree)
    return written(_Escaping().rules({START: tree}))


class _Escaping:
    """Trees → those of the same texts within JSON.

    What must be escaped stands in rules, each of which is made once: a class is `[a-z] | escapes`, and its escapes are
    shared by all classes that have the same. A grammar may have 16,000 classes, and nearly all have all escapes.
    """

    def __init__(self) -> None:
        self._classes: dict[Ranges, Tree] = {}
        self._escapes: dict[Specials, Tree] = {}
        self._share = current_share()

    def rules(self, rules: Mapping[str, Tree]) -> Mapping[str, Tree]:
        """Return a grammar's rules, and those of its classes."""
        made = {name: self._escaped(tree) for name, tree in rules.items()}
        escapes = {_name(special): tree for special, tree in self._escapes.items()}
        # Rules of the grammar first: `root` comes first there.
        return made | {_name(ranges): tree for ranges, tree in self._classes.items()} | escapes

    def _escaped(self, tree: Tree) -> Tree:
        match tree:
            case OneCharacter(ranges):
                return self._class(ranges)
            case Concatenation(parts):
                return Concatenation(tuple(map(self._escaped, parts)))
            case Alternation(options):
                return Alternation(tuple(map(self._escaped, options)))
            case Repeat(part, least, most):
                return Repeat(self._escaped(part), least, most)
        return tree

    def _class(self, ranges: Ranges) -> Tree:
        # Ranges beyond the last character that must be escaped cannot have one.
        low = [each for each in ranges if each[0] <= _LAST_ESCAPED]
        special = tuple(each for each in _ESCAPED if any(first <= each <= last for first, last in low))
        if not special:
            return OneCharacter(ranges)
        if special not in self._escapes:
            self._share.take(_SPECIAL * len(special))
            self._escapes[special] = Alternation(tuple(map(_spelled, special)))
        escapes = RuleName(_name(special))
        # All that the class has must be escaped: nothing is left for it.
        if len(special) == sum(last - first + 1 for first, last in ranges):
            return escapes
        if ranges not in self._classes:
            self._share.take(_CLASS + len(ranges))
            # What is in the class and need not be escaped: all but those outside, and but those to be escaped.
            plain = complement((*complement(ranges), *((each, each) for each in special)))
            self._classes[ranges] = Alternation((OneCharacter(plain), escapes))
        return RuleName(_name(ranges))


def _name(of: Ranges | Specials) -> str:
    return f"class {of}"  # no rule of a Lark grammar has a space in its name


def _spelled(character: int) -> Tree:
    return Concatenation(tuple(OneCharacter(((ord(each), ord(each)),)) for each in json.dumps(chr(character))[1:-1]))
