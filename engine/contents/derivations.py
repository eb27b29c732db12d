"""Texts and the grammars that derive them: whether one does, and a short text that one derives."""

from collections.abc import Iterable

from engine.contents.lark_reading import START, Rules, read
from engine.contents.regex_trees import Choice, OneCharacter, Repeat, Rule, Sequence, Tree, nice_character, parse
from engine.errors import GrammarRefused

MAX_CHARACTERS = 64 * 1024  # of a text that is derived
MAX_STEPS = 500_000  # parts of rules that are looked at: a second
MAX_MATCHED = 1_000_000  # places in a text at which parts may begin or end: some seconds; a patch of 64 KB has 500,000


def derives(grammar: str, text: str) -> bool:
    """Whether a Lark grammar derives a text; raises `GrammarRefused` where it cannot be read, or takes too long."""
    return len(text) in _Matcher(read(grammar), text).rule(START, 0)


def matches(pattern: str, text: str) -> bool:
    """Whether a regular expression matches a text as a whole, without compiling it: that may take gigabytes."""
    return len(text) in _Matcher({}, text).after(parse(pattern), {0})


def smallest_derivation(grammar: str) -> str:
    """Return a short text that a Lark grammar derives; raises `GrammarRefused`."""
    rules = read(grammar)
    needed_by: dict[str, list[str]] = {}
    for name, tree in rules.items():
        for needed in _rules_in(tree):
            needed_by.setdefault(needed, []).append(name)
    shortest = _Shortest()
    due = dict.fromkeys(rules)
    while due:  # every round finds rules that need only those of the rounds before
        new = {name: text for name in due if (text := shortest.of(rules[name])) is not None}
        shortest.known.update(new)
        due = dict.fromkeys(user for name in new for user in needed_by.get(name, ()) if user not in shortest.known)
    if START not in shortest.known:
        raise GrammarRefused("No finite text is derived by the grammar.")
    return shortest.known[START]


def _rules_in(tree: Tree) -> set[str]:
    match tree:
        case Rule(name):
            return {name}
        case Sequence(parts) | Choice(parts):
            return {name for part in parts for name in _rules_in(part)}
        case Repeat(part, _, _):
            return _rules_in(part)
    return set()


class _Shortest:
    """Finds a short text of a tree; `known` has one of each rule that has been found."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        self._steps = 0

    def of(self, tree: Tree) -> str | None:
        """Return the text, None where a rule is needed that is not known yet."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise GrammarRefused("The grammar's rules need each other in too many ways.")
        match tree:
            case Rule(name):
                return self.known.get(name)
            case OneCharacter(ranges):
                return nice_character(ranges)
            case Sequence(parts):
                return self._in_a_row(parts)
            case Choice(options):
                found = [text for option in options if (text := self.of(option)) is not None]
                return min(found, key=len, default=None)
            case Repeat(part, least, _):
                if not least:
                    return ""
                one = self.of(part)
                return None if one is None else _bounded(one * min(least, MAX_CHARACTERS + 1))

    def _in_a_row(self, parts: Iterable[Tree]) -> str | None:
        texts: list[str] = []
        for part in parts:
            text = self.of(part)
            if text is None:
                return None
            texts.append(text)
        return _bounded("".join(texts))


def _bounded(text: str) -> str:
    if len(text) > MAX_CHARACTERS:
        raise GrammarRefused(f"Every text that the grammar derives is longer than {MAX_CHARACTERS} characters.")
    return text


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
        found = here[name] = set()
        self._open.add((name, begin))
        while True:  # a rule that begins with itself needs what was found for it before
            new = self.after(self._rules[name], {begin})
            if new <= found:
                break
            found |= new
            for other in [each for each in here if (each, begin) not in self._open]:
                del here[other]
        self._open.remove((name, begin))
        return found

    def after(self, tree: Tree, begins: set[int]) -> set[int]:
        """Return where a tree's derivations end that begin at one of `begins`."""
        self._count(len(begins))
        match tree:
            case Rule(name):
                ends: set[int] = set()
                for begin in begins:
                    found = self.rule(name, begin)
                    self._count(len(found))
                    ends |= found
                return ends
            case OneCharacter(ranges):
                return {at + 1 for at in begins if at < len(self._text) and _is_in(ord(self._text[at]), ranges)}
            case Sequence(parts):
                for part in parts:
                    begins = self.after(part, begins)
                return begins
            case Choice(options):
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
            before, begins = begins, self.after(tree.part, begins)
            if begins == before:  # nothing, or what may be empty: so it stays
                break
        found, fresh = set(begins), begins
        for _ in range(len(self._text) if tree.most is None else tree.most - tree.least):
            fresh = self.after(tree.part, fresh) - found
            if not fresh:
                break
            found |= fresh
        return found


def _is_in(character: int, ranges: tuple[tuple[int, int], ...]) -> bool:
    return any(first <= character <= last for first, last in ranges)
