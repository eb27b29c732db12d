"""Regular expressions over strings, as regular expressions over what JSON writes for them.

xgrammar matches a pattern against the text between the quotes, so a `"` in it would end the string, and a class like
`[^a]` would let control characters pass. Here each character is what JSON writes: itself, or an escape.
"""

from engine.contents.regex_trees import LAST, Choice, OneCharacter, Ranges, Repeat, Sequence, Tree, parse
from engine.contents.regex_trees import complement as other_than

_ESCAPES = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", 0x22: '"', 0x5C: "\\\\"}
_ESCAPED: Ranges = ((0x00, 0x1F), (0x22, 0x22), (0x5C, 0x5C))
ANY = OneCharacter(other_than(()))


def pattern_of(pattern: str) -> str:
    """Return what JSON writes for strings that a pattern matches as a whole; raises `GrammarRefused`."""
    return f"^{written(parse(pattern))}$"


def pattern_of_length(least: int, most: int | None) -> str:
    """Return what JSON writes for strings of `least` to `most` characters."""
    return f"^{written(Repeat(ANY, least, most))}$"


def written(tree: Tree) -> str:
    """Return a tree over strings as a regular expression over JSON's text."""
    match tree:
        case OneCharacter(ranges):
            return _character(ranges)
        case Sequence(parts):
            return "".join(map(written, parts))
        case Repeat(part, least, most):
            bounds = f"{{{least},{'' if most is None else most}}}"
            return f"(?:{written(part)}){bounds}"
        case Choice(options):
            return f"(?:{'|'.join(map(written, options))})"
    raise AssertionError(f"{tree.name} is not a part of a regular expression")


def _character(ranges: Ranges) -> str:
    plain = other_than((*other_than(ranges), *_ESCAPED))
    escaped = other_than((*other_than(ranges), *other_than(_ESCAPED)))
    options = [f"[{''.join(_range(*each) for each in plain)}]"] if plain else []
    options += [rf"\\{_escape(each)}" for first, last in escaped for each in range(first, last + 1)]
    return options[0] if len(options) == 1 else f"(?:{'|'.join(options)})"


def _escape(character: int) -> str:
    return _ESCAPES.get(character) or f"u{character:04x}"


def _range(first: int, last: int) -> str:
    return _named(first) if first == last else f"{_named(first)}-{_named(last)}"


def _named(character: int) -> str:
    assert character <= LAST
    return rf"\u{character:04x}" if character < 0x10000 else chr(character)
