"""Texts and the grammars that derive them: whether one does, and a short text that one derives."""

from collections.abc import Mapping

from engine.contents.lark_reading import START, Rules, read
from engine.contents.regex_trees import Choice, OneCharacter, Repeat, Rule, Sequence, Tree, nice_character
from engine.errors import GrammarRefused

MAX_CHARACTERS = 64 * 1024  # of a text that is derived


def derives(grammar: str, text: str) -> bool:
    """Whether a Lark grammar derives a text; raises `GrammarRefused` where it cannot be read."""
    return len(text) in _Matcher(read(grammar), text).rule(START, 0)


def smallest_derivation(grammar: str) -> str:
    """Return a short text that a Lark grammar derives; raises `GrammarRefused`."""
    rules = read(grammar)
    found: dict[str, str] = {}
    while True:  # every round finds rules that need only those of the rounds before
        new = {
            name: text
            for name, tree in rules.items()
            if name not in found and (text := _shortest(tree, found)) is not None
        }
        if not new:
            break
        found.update(new)
    if START not in found:
        raise GrammarRefused("No finite text is derived by the grammar.")
    return found[START]


def _shortest(tree: Tree, known: Mapping[str, str]) -> str | None:
    """Return a short text of a tree, None where a rule is needed that none is known of."""
    match tree:
        case Rule(name):
            return known.get(name)
        case OneCharacter(ranges):
            return nice_character(ranges)
        case Sequence(parts):
            texts = [_shortest(part, known) for part in parts]
            return None if None in texts else _bounded("".join(filter(None, texts)))
        case Choice(options):
            found = [text for option in options if (text := _shortest(option, known)) is not None]
            return min(found, key=len, default=None)
        case Repeat(part, least, _):
            if not least:
                return ""
            one = _shortest(part, known)
            return None if one is None else _bounded(one * min(least, MAX_CHARACTERS + 1))


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

    def rule(self, name: str, begin: int) -> set[int]:
        """Return where a rule's derivations end that begin at `begin`."""
        here = self._ends.setdefault(begin, {})
        if name in here:
            return here[name]
        found = here[name] = set()
        self._open.add((name, begin))
        while True:  # a rule that begins with itself needs what was found for it before
            new = self._after(self._rules[name], {begin})
            if new <= found:
                break
            found |= new
            for other in [each for each in here if (each, begin) not in self._open]:
                del here[other]
        self._open.remove((name, begin))
        return found

    def _after(self, tree: Tree, begins: set[int]) -> set[int]:
        match tree:
            case Rule(name):
                return {end for begin in begins for end in self.rule(name, begin)}
            case OneCharacter(ranges):
                return {at + 1 for at in begins if at < len(self._text) and _is_in(ord(self._text[at]), ranges)}
            case Sequence(parts):
                for part in parts:
                    begins = self._after(part, begins)
                return begins
            case Choice(options):
                return {end for option in options for end in self._after(option, begins)}
            case Repeat():
                return self._repeated(tree, begins)

    def _repeated(self, tree: Repeat, begins: set[int]) -> set[int]:
        for _ in range(tree.least):
            begins = self._after(tree.part, begins)
        found, fresh = set(begins), begins
        for _ in range(len(self._text) if tree.most is None else tree.most - tree.least):
            fresh = self._after(tree.part, fresh) - found
            if not fresh:
                break
            found |= fresh
        return found


def _is_in(character: int, ranges: tuple[tuple[int, int], ...]) -> bool:
    return any(first <= character <= last for first, last in ranges)
