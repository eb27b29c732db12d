"""Grammars of texts that stand within JSON strings: each character as JSON spells it.

A family that calls with JSON has the text of a custom tool in a string. So what its regular expression or its Lark
grammar derives is held to by the EBNF of the same texts, escaped: `"` is `\\"` there, and a line's end `\\n`.
"""

import json
from collections.abc import Mapping

from engine.contents.derivations import smallest_derivation
from engine.contents.lark_grammars import written
from engine.contents.lark_reading import START, read
from engine.contents.patterns import check_weight
from engine.contents.regex_trees import Choice, OneCharacter, Ranges, Repeat, Rule, Sequence, Tree, complement, parse
from engine.grammar import Lark, Regex

_ESCAPED = (*range(0x20), ord('"'), ord("\\"))  # the only characters that JSON does not take as they are


def in_json_string(content: Regex | Lark) -> str:
    """Return the EBNF of what stands between the quotes of a JSON string; raises `GrammarRefused`."""
    if isinstance(content, Lark):
        smallest_derivation(content.grammar)
        return written(_Escaping().rules(read(content.grammar)))
    tree = parse(content.pattern)
    check_weight(tree)
    return written(_Escaping().rules({START: tree}))


class _Escaping:
    """Trees → those of the same texts within JSON; a class of characters that must be escaped is a rule, made once."""

    def __init__(self) -> None:
        self._classes: dict[Ranges, Tree] = {}

    def rules(self, rules: Mapping[str, Tree]) -> Mapping[str, Tree]:
        """Return a grammar's rules, and those of its classes."""
        made = {name: self._escaped(tree) for name, tree in rules.items()}
        return made | {_name(ranges): tree for ranges, tree in self._classes.items()}

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
        special = [each for each in _ESCAPED if any(first <= each <= last for first, last in ranges)]
        if not special:
            return OneCharacter(ranges)
        if ranges not in self._classes:
            plain = complement((*complement(ranges), *((each, each) for each in special)))
            options = [OneCharacter(plain)] if plain else []
            self._classes[ranges] = Choice((*options, *map(_spelled, special)))
        return Rule(_name(ranges))


def _name(ranges: Ranges) -> str:
    return f"class {ranges}"  # no rule of a Lark grammar has a space in its name


def _spelled(character: int) -> Tree:
    return Sequence(tuple(OneCharacter(((ord(each), ord(each)),)) for each in json.dumps(chr(character))[1:-1]))
