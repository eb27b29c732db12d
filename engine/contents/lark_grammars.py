"""Lark grammars of custom tools in the EBNF that xgrammar reads, and whether one can be."""

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import groupby

from engine.contents.derivations import smallest_derivation
from engine.contents.lark_reading import START, read
from engine.contents.regex_trees import Choice, OneCharacter, Ranges, Repeat, Rule, Sequence, Tree


@lru_cache(maxsize=64)
def to_ebnf(grammar: str) -> str:
    """Return a Lark grammar as EBNF; raises `GrammarRefused`, also where every derivation goes on without end."""
    smallest_derivation(grammar)
    return written(read(grammar))


def written(rules: Mapping[str, Tree]) -> str:
    """Return rules, one of which is `start`, as EBNF."""
    names = {name: "root" if name == START else f"r{index}" for index, name in enumerate(rules)}
    return "".join(f"{names[name]} ::= {_written(tree, names)}\n" for name, tree in rules.items())


def _written(tree: Tree, names: Mapping[str, str]) -> str:
    match tree:
        case Rule(name):
            return names[name]
        case OneCharacter(ranges):
            return _class(ranges)
        case Sequence(parts):
            return f"({' '.join(_written_row(parts, names))})" if parts else '""'
        case Choice(options):
            return f"({' | '.join(_written(option, names) for option in options)})"
        case Repeat(part, least, most):
            sign = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
            return f"({_written(part, names)}){sign or f'{{{least},{most if most is not None else str()}}}'}"


def _written_row(parts: Iterable[Tree], names: Mapping[str, str]) -> Iterable[str]:
    """Yield parts, single characters that follow each other as one text."""
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
