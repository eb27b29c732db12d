"""Lark grammars of custom tools as trees: a short text that one derives, and whether one derives a given text.

    Lark ── read() ──> a tree for each rule ──> EBNF | a text that is derived | whether a text is derived

A regular expression is a tree, too, so a short match of one is found in the same way.

The package `lark` reads the text, and is loaded with the first one. What it would make of the rules then is left out:
`A? B? C?` becomes eight rules there, and twenty of them a million. Terminals are rules here like any other, so a text
is derived by its characters: priorities of terminals do not count, and what `%ignore` names may stand between any two
terminals.
"""

import re
from ast import literal_eval
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import Any

from engine.contents.budget import CHARACTER, current_share
from engine.contents.regexes import (
    Alternation,
    Concatenation,
    OneCharacter,
    Repeat,
    RuleName,
    Tree,
    check_weight,
    complement,
    is_in,
    nice_character,
    parse,
)
from engine.errors import GrammarRefused

MAX_GRAMMAR = 64 * 1024  # characters of a grammar
MAX_PARTS = 20_000  # of all its rules together
MAX_TERMINALS = 50_000  # parts of all terminals together, each with those that it is made of
MAX_REPETITIONS = 10_000  # of one part
START = "start"
IGNORED = "%ignore"  # the name of what may stand between terminals

_IMPORT = re.compile(r"^[^\S\n]*%import\s+(?!\s|common\b)", re.MULTILINE)  # all else would be read from files
# More than 100 empty lines in a row, with or without white space in them: lark takes long to read those.
_MANY_LINES = re.compile(r"\n(?:[^\S\n]*\n){100}")
# Statements that change other grammars, of which there are none.
_UNKNOWN = re.compile(r"^[^\S\n]*%(?:declare|override|extend)\b", re.MULTILINE)
Rules = Mapping[str, Tree]


@lru_cache(maxsize=64)
def read(grammar: str) -> Rules:
    """Return the trees of a grammar's rules, by their names; raises `GrammarRefused`."""
    if len(grammar) > MAX_GRAMMAR:
        raise GrammarRefused(f"The grammar has {len(grammar)} characters; at most {MAX_GRAMMAR} are allowed.")
    # Before reading: that is what takes the time.
    current_share().take(CHARACTER * len(grammar))
    if _IMPORT.search(grammar) or _UNKNOWN.search(grammar):
        raise GrammarRefused("The grammar may import from 'common' only, and have no %declare, %override or %extend.")
    if _MANY_LINES.search(grammar):
        raise GrammarRefused("The grammar has more than 100 empty lines in a row, which takes long to read.")
    from lark.exceptions import LarkError
    from lark.load_grammar import _parse_grammar, load_grammar

    try:
        # Before loading, which writes terminals out.
        _refuse_large_terminals(_parse_grammar(grammar, "<string>"))  # type: ignore[no-untyped-call]
        loaded, _ = load_grammar(grammar, "<string>", [], False)  # type: ignore[no-untyped-call]
    except CycleError:
        raise GrammarRefused("The grammar has a terminal that is made of itself: make it a rule.") from None
    except (LarkError, RecursionError, OverflowError, ValueError, AssertionError) as error:
        reason = " ".join(str(error).split())[:300]
        raise GrammarRefused(f"The grammar is not Lark that can be read: {reason or type(error).__name__}") from error
    try:
        rules = _GrammarReader(loaded).rules()
        check_weight(Concatenation(tuple(rules.values())))
        return rules
    except RecursionError:
        raise GrammarRefused("The grammar is nested too deeply.") from None


def _refuse_large_terminals(grammar: Any) -> None:
    """Raise `GrammarRefused` where terminals are made of terminals that are made of terminals, …: lark writes them out.

    Raises `CycleError` where one is made of itself.
    """
    from lark.grammar import Terminal

    bodies = {str(each.children[0]): each for each in grammar.children if each.data == "term"}
    parts = {name: list(body.scan_values(lambda value: True)) for name, body in bodies.items()}
    uses = {name: [str(each.name) for each in used if isinstance(each, Terminal)] for name, used in parts.items()}
    sizes: dict[str, int] = {}
    # In an order in which the size of each terminal's parts is known before its own.
    for name in TopologicalSorter(uses).static_order():
        sizes[name] = len(parts.get(name, ())) + sum(sizes[each] for each in uses.get(name, ()))
    if sum(sizes.values()) > MAX_TERMINALS:
        raise GrammarRefused(
            f"The grammar's terminals have more than {MAX_TERMINALS} parts, once they are written out."
        )


@dataclass(slots=True)
class _GrammarReader:
    loaded: Any  # what lark has read
    parts: int = 0  # of all rules so far
    ignored: bool = False  # the grammar has `%ignore`

    def rules(self) -> Rules:
        """Return the rules that `start` leads to; `start` comes first."""
        terminals = {str(name): tree for name, (tree, _) in self.loaded.term_defs}
        bodies = {str(name): (parameters, body) for name, parameters, body, _ in self.loaded.rule_defs}
        if START not in bodies:
            raise GrammarRefused("The grammar has no rule named 'start'.")
        self.ignored = bool(self.loaded.ignore)
        rules: dict[str, Tree] = {}
        waiting = [START]
        while waiting:
            name = waiting.pop()
            if name in rules:
                continue
            if name == IGNORED:
                rules[name] = Repeat(Alternation(tuple(RuleName(str(each)) for each in self.loaded.ignore)), 0, None)
            elif name in bodies:
                parameters, body = bodies[name]
                if parameters:
                    raise GrammarRefused(f"The grammar's rule {name!r} is a template, which cannot be enforced.")
                tree = self._tree(body, inside=False)
                # Also before the first terminal; behind each of them it comes from `_terminal`.
                is_first = self.ignored and name == START
                rules[name] = Concatenation((RuleName(IGNORED), tree)) if is_first else tree
            elif name in terminals:
                rules[name] = self._tree(terminals[name], inside=True)
            else:
                raise GrammarRefused(f"The grammar uses {name!r}, which it does not define.")
            waiting += [each for each in references(rules[name]) if each not in rules]
        return rules

    def _tree(self, node: Any, *, inside: bool) -> Tree:
        """Return a node of lark's; `inside` a terminal nothing is ignored."""
        from lark.grammar import NonTerminal, Terminal

        self.parts += 1
        if self.parts > MAX_PARTS:
            raise GrammarRefused(f"The grammar has more than {MAX_PARTS} parts.")
        if isinstance(node, NonTerminal):
            return RuleName(str(node.name))
        if isinstance(node, Terminal):
            return self._terminal(RuleName(str(node.name)), inside=inside)
        children = node.children
        match node.data:
            case "expansions":
                options = tuple(self._tree(each, inside=inside) for each in children)
                return options[0] if len(options) == 1 else Alternation(options)
            case "expansion":
                return Concatenation(tuple(self._tree(each, inside=inside) for each in children))
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
        return Concatenation((tree, RuleName(IGNORED))) if self.ignored and not inside else tree

    def _repeated(self, children: list[Any], *, inside: bool) -> Tree:
        # `part ~ 3`, `part ~ 3..5`, or `part` with `?`, `*` or `+`.
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
        case RuleName(name):
            yield name
        case Concatenation(parts) | Alternation(parts):
            for part in parts:
                yield from references(part)
        case Repeat(part):
            yield from references(part)


def _literal(token: str) -> Tree:
    text = str(token)
    if text.startswith("/"):
        # `/…/imsx`: the last slash ends the expression.
        body, _, flags = text[1:].rpartition("/")
        return parse(body.replace("\\/", "/"), flags)
    any_case = text.endswith("i")
    return parse(re.escape(_string(text.removesuffix("i"))), "i" if any_case else "")


def _string(quoted: str) -> str:
    try:
        text: str = literal_eval(quoted)
    except (SyntaxError, ValueError):  # an escape that is none, a NUL, or a range's end that is any case
        raise GrammarRefused(f"The grammar has a text that cannot be read: {quoted[:200]}") from None
    return text


def _range(first: str, last: str) -> Tree:
    begin, end = (_string(str(each)) for each in (first, last))
    if len(begin) != 1 or len(end) != 1:
        raise GrammarRefused(f"The grammar has a range {first}..{last}, whose ends are not one character each.")
    if begin > end:
        raise GrammarRefused(f"The grammar has a range {first}..{last} without a character.")
    # The complement twice: in order, and without surrogates.
    return OneCharacter(complement(complement(((ord(begin), ord(end)),))))


MAX_CHARACTERS = 64 * 1024  # of a text that is derived
MAX_STEPS = 500_000  # parts of rules that are looked at: a second
MAX_MATCHED = 1_000_000  # places in a text at which parts may begin or end: some seconds; a patch of 64 KB has 500,000


def derives(grammar: str, text: str) -> bool:
    """Whether a Lark grammar derives a text; raises `GrammarRefused` where it cannot be read, or takes too long."""
    return len(text) in _Matcher(read(grammar), text).rule(START, 0)


def matches(pattern: str, text: str) -> bool:
    """Whether a regular expression matches a text as a whole, without compiling it: that may take gigabytes."""
    return len(text) in _Matcher({}, text).after(parse(pattern), {0})


def smallest_match(pattern: str) -> str:
    """Return a short text that a regular expression matches as a whole; raises `GrammarRefused`."""
    match = _Shortest("matches").of(parse(pattern))
    assert match is not None, "a regular expression needs no rule"
    return match


def smallest_derivation(grammar: str) -> str:
    """Return a short text that a Lark grammar derives; raises `GrammarRefused`."""
    rules = read(grammar)
    # Which rules to look at again once one is known.
    needed_by: dict[str, list[str]] = {}
    for name, tree in rules.items():
        for needed in set(references(tree)):
            needed_by.setdefault(needed, []).append(name)
    shortest = _Shortest("the grammar derives")
    # A dictionary as an ordered set: the outcome must not depend on hashes.
    due = dict.fromkeys(rules)
    while due:  # every round finds rules that need only those of the rounds before
        new = {name: text for name in due if (text := shortest.of(rules[name])) is not None}
        shortest.known.update(new)
        due = dict.fromkeys(user for name in new for user in needed_by.get(name, ()) if user not in shortest.known)
    if START not in shortest.known:
        raise GrammarRefused("No finite text is derived by the grammar.")
    return shortest.known[START]


class _Shortest:
    """Finds a short text of a tree; `known` has one of each rule that has been found. `fits`: what such a text does."""

    def __init__(self, fits: str) -> None:
        self.known: dict[str, str] = {}
        self._fits = fits
        self._steps = 0

    def of(self, tree: Tree) -> str | None:
        """Return the text, None where a rule is needed that is not known yet."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise GrammarRefused("The grammar's rules need each other in too many ways.")
        match tree:
            case RuleName(name):
                return self.known.get(name)
            case OneCharacter(ranges):
                return nice_character(ranges)
            case Concatenation(parts):
                return self._in_a_row(parts)
            case Alternation(options):
                texts = [text for option in options if (text := self.of(option)) is not None]
                return min(texts, key=len, default=None)
            case Repeat(part, least, _):
                if not least:
                    return ""
                one = self.of(part)
                return None if one is None else self._bounded(one, least)

    def _in_a_row(self, parts: Iterable[Tree]) -> str | None:
        texts: list[str] = []
        for part in parts:
            text = self.of(part)
            if text is None:
                return None
            texts.append(text)
        return self._bounded("".join(texts))

    def _bounded(self, text: str, times: int = 1) -> str:
        """Return a text so many times; the length is looked at before, as 64 KB 10,000 times would be 640 MB."""
        if len(text) * times > MAX_CHARACTERS:
            raise GrammarRefused(f"Every text that {self._fits} is longer than {MAX_CHARACTERS} characters.")
        return text * times


class _Matcher:
    """Finds where derivations of rules can end in a text."""

    def __init__(self, rules: Rules, text: str) -> None:
        self._rules = rules
        self._text = text
        self._ends: dict[int, dict[str, set[int]]] = {}  # of rules, by where they begin
        self._open: set[tuple[str, int]] = set()  # rules that are being looked at, and where
        self._places = 0

    def rule(self, name: str, begin: int) -> set[int]:
        """Return where a rule's derivations end that begin at `begin`."""
        here = self._ends.setdefault(begin, {})
        if name in here:
            return here[name]
        ends = here[name] = set()
        self._open.add((name, begin))
        while True:  # a rule that begins with itself needs what was found for it before
            new = self.after(self._rules[name], {begin})
            if new <= ends:
                break
            ends |= new
            # What other rules have been found to derive from here may lack what this one has just gained: look again.
            for other in [each for each in here if (each, begin) not in self._open]:
                del here[other]
        self._open.remove((name, begin))
        return ends

    def after(self, tree: Tree, begins: set[int]) -> set[int]:
        """Return where a tree's derivations end that begin at one of `begins`."""
        self._count(len(begins))
        match tree:
            case RuleName(name):
                ends: set[int] = set()
                for begin in begins:
                    more = self.rule(name, begin)
                    self._count(len(more))
                    ends |= more
                return ends
            case OneCharacter(ranges):
                return {at + 1 for at in begins if at < len(self._text) and is_in(self._text[at], ranges)}
            case Concatenation(parts):
                for part in parts:
                    begins = self.after(part, begins)
                return begins
            case Alternation(options):
                return {end for option in options for end in self.after(option, begins)}
            case Repeat():
                return self._repeated(tree, begins)

    def _count(self, places: int) -> None:
        """Count places: a grammar that can cut a text in many ways has as many as its length squared, or more."""
        self._places += places
        if self._places > MAX_MATCHED:
            raise GrammarRefused("The grammar can read the text in too many ways to check it.")

    def _repeated(self, tree: Repeat, begins: set[int]) -> set[int]:
        for _ in range(tree.least):
            # The same places twice: it stays so, however often it is repeated.
            before, begins = begins, self.after(tree.part, begins)
            if begins == before:  # nothing, or what may be empty: more rounds change nothing
                break
        ends, fresh = set(begins), begins
        # Without a limit a character each time is the most: what derives nothing more leaves nothing fresh.
        for _ in range(len(self._text) if tree.most is None else tree.most - tree.least):
            fresh = self.after(tree.part, fresh) - ends
            if not fresh:
                break
            ends |= fresh
        return ends
