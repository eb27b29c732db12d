"""Grammars of texts that stand within JSON strings: each character as JSON spells it.

A family that calls with JSON has the text of a custom tool in a string. So what its regular expression or its Lark
grammar derives is held to by the EBNF of the same texts, escaped: `"` is `\\"` there, and a line's end `\\n`.
"""

import json
from collections.abc import Mapping
from functools import lru_cache

from engine.contents.derivations import smallest_derivation
from engine.contents.lark_grammars import written
from engine.contents.lark_reading import START, read
from engine.contents.patterns import check_weight
from engine.contents.regex_trees import Choice, OneCharacter, Ranges, Repeat, Rule, Sequence, Tree, complement, parse
from engine.contents.sharing import current_share
from engine.grammar import Lark, Regex

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
        return made | {_name(ranges): tree for ranges, tree in self._classes.items()} | escapes

    def _escaped(self, tree: Tree) -> Tree:
        match tree:
            case OneCharacter(ranges):
                return self._class(ranges)
            case Sequence(parts):
                return Sequence(tuple(map(self._escaped, parts)))
            case Choice(options):
                return Choice(tuple(map(self._escaped, options)))
            case Repeat(part, least, most):
                return Repeat(self._escaped(part), least, most)
        return tree

    def _class(self, ranges: Ranges) -> Tree:
        special = _special(ranges)
        if not special:
            return OneCharacter(ranges)
        escapes = self._escapes_of(special)
        if len(special) == sum(last - first + 1 for first, last in ranges):
            return escapes
        if ranges not in self._classes:
            self._share.take(_CLASS + len(ranges))
            plain = complement((*complement(ranges), *((each, each) for each in special)))
            self._classes[ranges] = Choice((OneCharacter(plain), escapes))
        return Rule(_name(ranges))

    def _escapes_of(self, special: Specials) -> Rule:
        if special not in self._escapes:
            self._share.take(_SPECIAL * len(special))
            self._escapes[special] = Choice(tuple(map(_spelled, special)))
        return Rule(_name(special))


def _special(ranges: Ranges) -> Specials:
    low = [each for each in ranges if each[0] <= _LAST_ESCAPED]
    return tuple(each for each in _ESCAPED if any(first <= each <= last for first, last in low))


def _name(of: Ranges | Specials) -> str:
    return f"class {of}"  # no rule of a Lark grammar has a space in its name


def _spelled(character: int) -> Tree:
    return Sequence(tuple(OneCharacter(((ord(each), ord(each)),)) for each in json.dumps(chr(character))[1:-1]))
