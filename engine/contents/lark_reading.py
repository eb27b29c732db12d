"""Lark grammars of custom tools, read into trees.

    Lark ── read() ──> a tree for each rule ──> EBNF | a text that is derived | whether a text is derived

The package `lark` reads the text. What it would make of the rules then is left out: `A? B? C?` becomes eight rules
there, and twenty of them a million. Terminals are rules here like any other, so a text is derived by its characters:
priorities of terminals do not count, and what `%ignore` names may stand between any two terminals.
"""

import re
from ast import literal_eval
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from lark import Token
from lark.exceptions import LarkError
from lark.grammar import NonTerminal, Terminal
from lark.load_grammar import load_grammar

from engine.contents.regex_trees import Choice, OneCharacter, Repeat, Rule, Sequence, Tree, complement, parse
from engine.errors import GrammarRefused

MAX_CHARACTERS = 64 * 1024  # of a grammar
MAX_PARTS = 20_000  # of all its rules together
MAX_REPETITIONS = 10_000  # of one part
START = "start"
IGNORED = "%ignore"  # the name of what may stand between terminals

_IMPORT = re.compile(r"^\s*%import\s+(?!common\b)", re.MULTILINE)  # all else would be read from files
_UNKNOWN = re.compile(r"^\s*%(?:declare|override|extend)\b", re.MULTILINE)
Rules = Mapping[str, Tree]


@lru_cache(maxsize=64)
def read(grammar: str) -> Rules:
    """Return the trees of a grammar's rules, by their names; raises `GrammarRefused`."""
    if len(grammar) > MAX_CHARACTERS:
        raise GrammarRefused(f"The grammar has {len(grammar)} characters; at most {MAX_CHARACTERS} are allowed.")
    if _IMPORT.search(grammar) or _UNKNOWN.search(grammar):
        raise GrammarRefused("The grammar may import from 'common' only, and have no %declare, %override or %extend.")
    try:
        loaded, _ = load_grammar(grammar, "<string>", [], False)  # type: ignore[no-untyped-call]
    except (LarkError, RecursionError, OverflowError, ValueError, AssertionError) as error:
        reason = " ".join(str(error).split())[:300]
        raise GrammarRefused(f"The grammar is not Lark that can be read: {reason or type(error).__name__}") from error
    try:
        return _Reader(loaded).rules()
    except RecursionError:
        raise GrammarRefused("The grammar is nested too deeply.") from None


@dataclass(slots=True)
class _Reader:
    loaded: Any
    parts: int = 0
    ignored: bool = False

    def rules(self) -> Rules:
        """Return the rules that `start` leads to; `start` comes first."""
        terminals = {str(name): tree for name, (tree, _) in self.loaded.term_defs}
        bodies = {str(name): (parameters, body) for name, parameters, body, _ in self.loaded.rule_defs}
        if START not in bodies:
            raise GrammarRefused("The grammar has no rule named 'start'.")
        self.ignored = bool(self.loaded.ignore)
        found: dict[str, Tree] = {}
        waiting = [START]
        while waiting:
            name = waiting.pop()
            if name in found:
                continue
            if name == IGNORED:
                found[name] = Repeat(Choice(tuple(Rule(str(each)) for each in self.loaded.ignore)), 0, None)
            elif name in bodies:
                found[name] = self._rule(name, *bodies[name])
            elif name in terminals:
                found[name] = self._tree(terminals[name], inside=True)
            else:
                raise GrammarRefused(f"The grammar uses {name!r}, which it does not define.")
            waiting += [each for each in references(found[name]) if each not in found]
        return found

    def _rule(self, name: str, parameters: object, body: Any) -> Tree:
        if parameters:
            raise GrammarRefused(f"The grammar's rule {name!r} is a template, which cannot be enforced.")
        tree = self._tree(body, inside=False)
        return Sequence((Rule(IGNORED), tree)) if self.ignored and name == START else tree

    def _tree(self, node: Any, *, inside: bool) -> Tree:
        """Return a node of lark's; `inside` a terminal nothing is ignored."""
        self.parts += 1
        if self.parts > MAX_PARTS:
            raise GrammarRefused(f"The grammar has more than {MAX_PARTS} parts.")
        if isinstance(node, NonTerminal):
            return Rule(str(node.name))
        if isinstance(node, Terminal):
            return self._terminal(Rule(str(node.name)), inside=inside)
        children = node.children
        match node.data:
            case "expansions":
                options = tuple(self._tree(each, inside=inside) for each in children)
                return options[0] if len(options) == 1 else Choice(options)
            case "expansion":
                return Sequence(tuple(self._tree(each, inside=inside) for each in children))
            case "maybe":
                return Repeat(self._tree(children[0], inside=inside), 0, 1)
            case "expr":
                return self._repeated(children, inside=inside)
            case "value" | "alias":
                return self._tree(children[0], inside=inside)
            case "literal" | "range":
                made = _literal(children[0]) if node.data == "literal" else _range(*children)
                return self._terminal(made, inside=inside)
        raise GrammarRefused(f"The grammar has a {str(node.data).replace('_', ' ')}, which cannot be enforced.")

    def _terminal(self, tree: Tree, *, inside: bool) -> Tree:
        return Sequence((tree, Rule(IGNORED))) if self.ignored and not inside else tree

    def _repeated(self, children: list[Any], *, inside: bool) -> Tree:
        part, sign, *bounds = children
        tree = self._tree(part, inside=inside)
        if sign != "~":
            return Repeat(tree, int(sign == "+"), 1 if sign == "?" else None)
        least, most = int(bounds[0]), int(bounds[-1])
        if not 0 <= least <= most <= MAX_REPETITIONS:
            raise GrammarRefused(f"The grammar repeats something ~{least}..{most}; 0 to {MAX_REPETITIONS} are allowed.")
        return Repeat(tree, least, most)


def references(tree: Tree) -> Iterable[str]:
    """Yield the names of the rules that a tree refers to."""
    match tree:
        case Rule(name):
            yield name
        case Sequence(parts) | Choice(parts):
            for part in parts:
                yield from references(part)
        case Repeat(part):
            yield from references(part)


def _literal(token: Token) -> Tree:
    text = str(token)
    if text.startswith("/"):
        body, _, flags = text[1:].rpartition("/")
        return parse(body.replace("\\/", "/"), flags)
    any_case = text.endswith("i")
    return parse(re.escape(_string(text.removesuffix("i"))), "i" if any_case else "")


def _string(quoted: str) -> str:
    found: str = literal_eval(quoted)
    return found


def _range(first: Token, last: Token) -> Tree:
    begin, end = (ord(_string(str(each))) for each in (first, last))
    if begin > end:
        raise GrammarRefused(f"The grammar has a range {first}..{last} without a character.")
    return OneCharacter(complement(complement(((begin, end),))))
