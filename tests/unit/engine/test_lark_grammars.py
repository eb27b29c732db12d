"""Lark grammars and regular expressions of tools, also within JSON strings: what they derive, what is refused."""

import json
import re
import time

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from engine.contents import derivations
from engine.contents.budget import MAX_SHARED_PARTS, SharedBudgetSpent, current_share, shared_budget
from engine.contents.derivations import derives, smallest_derivation, smallest_match
from engine.contents.ebnf import _Escaping, in_json_string, to_ebnf
from engine.contents.keywords import pattern_of, text_pattern_of
from engine.contents.regexes import Alternation, Concatenation, OneCharacter, Repeat, RuleName, Tree, check_regex, parse
from engine.errors import GrammarRefused
from engine.types import Lark, Regex
from tests.unit.engine.grammars import APPLY_PATCH

SUMS = """
start: sum
sum: product | sum "+" product | sum "-" product
product: atom | product "*" atom
atom: NUMBER | "(" sum ")"
%import common.NUMBER
%import common.WS
%ignore WS
"""
PATCH = "*** Begin Patch\n*** Update File: a.py\n@@ def f\n-x\n+y\n z\n*** Add File: b\n+q\n+\n*** End Patch\n"
LONG_CHAIN = "".join(f"r{index}: r{index + 1}\n" for index in range(1500)) + 'r1500: "a"\n'
REFUSED = [
    ("", "no rule named 'start'"),
    ("start: x", "not Lark"),
    ('start: "a', "not Lark"),
    ("start: start", "No finite text"),
    ("%import .secrets.Y\nstart: Y", "import from 'common' only"),
    ("%import other.Y\nstart: Y", "import from 'common' only"),
    ("%declare A\nstart: A", "%declare"),
    ("start: /(?=a)b/", "cannot be enforced"),
    ('start: "a"~5..2', "repeats"),
    ('start: "a"~1..99999999', "repeats"),
    ('start: x{"a"}\nx{y}: y', "template"),
    ("start: " + "(" * 3000 + '"a"' + ")" * 3000, "not Lark"),
    ("start: " + '"a" ' * 20_000, "characters; at most"),
    ("start: " + "A " * 25_000 + '\nA: "a"', "more than"),
    (f"start: {' '.join(f'r{i}' for i in range(1500, -1, -1))}\n{LONG_CHAIN}", "in too many ways"),
    ("%import common.ESCAPED_STRING\nstart: ESCAPED_STRING", "cannot be enforced"),
    (r'start: "\x"', r'a text that cannot be read: "\x"'),
    (r'start: "\N{no such}"i', "a text that cannot be read"),
    ('start: "' + "\\" * 40_001 + '"', "a text that cannot be read"),
    ('start: "a\0b"', "a text that cannot be read"),
    ('%ignore "\\u12"\nstart: "a"', "a text that cannot be read"),
    ('start: "ab".."c"', "not one character each"),
    ('start: "a"i.."c"', "a text that cannot be read"),
]


@pytest.mark.parametrize(("grammar", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_what_cannot_be_used_is_refused_with_a_reason(grammar: str, reason: str) -> None:
    with pytest.raises(GrammarRefused) as caught:
        to_ebnf(grammar)
    assert reason in caught.value.reason
    assert len(caught.value.reason) < 500


def test_what_explodes_elsewhere_does_not() -> None:
    began = time.perf_counter()
    to_ebnf("start: (A? B | [A])~3 " + "A? " * 200 + '\nA: "a"\nB: "b"')
    assert time.perf_counter() - began < 10


def test_rules_that_need_each_other_are_read_once_each() -> None:
    began = time.perf_counter()
    assert smallest_derivation(f"start: r0\n{LONG_CHAIN}") == "a"
    assert time.perf_counter() - began < 60


@pytest.mark.parametrize(
    ("grammar", "text", "expected"),
    [
        (APPLY_PATCH, PATCH, True),
        (APPLY_PATCH, PATCH[:-1], True),
        (APPLY_PATCH, PATCH[:-3], False),
        (APPLY_PATCH, PATCH.replace("+q", "q"), False),
        (SUMS, "1 + 2*(3-4)", True),
        (SUMS, " 1-2-3 ", True),
        (SUMS, "1+", False),
        (SUMS, "(1", False),
        ('start: "x"i~2 "a".."c"', "xXb", True),
        ('start: "x"i~2 "a".."c"', "xXd", False),
    ],
)
def test_derivations(grammar: str, text: str, expected: bool) -> None:
    assert derives(grammar, text) is expected


@pytest.mark.parametrize("grammar", [APPLY_PATCH, SUMS, 'start: "é\\n" /[^a-z]+/i'])
def test_a_short_text_is_derived(grammar: str) -> None:
    assert derives(grammar, smallest_derivation(grammar))
    assert to_ebnf(grammar).startswith("root ::= ")


REFUSED_PATTERNS = r"( (?i)a a\b (a)\1 (?=a)b (?<!a)b a++ [a]?+ a{2,}+ \p{L} (?P<x>a) x|^y a{1,99999}".split()
POSIX_CLASSES = ["[[:alpha:]]", "[^a[:digit:]]"]


@pytest.mark.parametrize("pattern", ["", *REFUSED_PATTERNS, *POSIX_CLASSES, "a" * 9000])
def test_patterns_that_cannot_be_enforced_are_refused(pattern: str) -> None:
    with pytest.raises(GrammarRefused):
        check_regex(pattern)


# Signs that mean something else, but for how a character beside them is written.
LOOKALIKES = r"[0-9]+[a-z]+ \++ \\+ a+\\+ x}+ ([+-]?(0|1)) ([a]?=b) \(?[0-9]{3}\)? \(?<b> [(?<a] \[[:] \\b \\1".split()


@pytest.mark.parametrize(
    "pattern", ["a|b", "^[^]x]+$", r"[\b.]\.", "(?:ab){2,3}?", r"\d+(?<cents>,\d\d)?", ".", *LOOKALIKES]
)
def test_patterns_that_can(pattern: str) -> None:
    check_regex(pattern)
    assert regex.fullmatch(pattern, smallest_match(pattern))


@pytest.mark.parametrize(
    ("pattern", "held"),
    [
        (".", "[\\u0000-\\u0009\\u000b-\\ud7ff\\ue000-\U0010ffff]"),
        ('{"a{,2}', r"[\u007b][\u0022](?:[\u0061]){0,2}"),
        (r"\012|()", r"(?:[\u000a]|)"),
        (r"\^", r"\^"),
        (r"[\^_a]", r"[\u005f\u0061\u005e]"),
    ],
)
def test_a_pattern_is_written_in_signs_that_xgrammar_reads_as_we_do(pattern: str, held: str) -> None:
    assert text_pattern_of(pattern) == f"^{held}$"


@pytest.mark.parametrize("pattern", [*LOOKALIKES, r"\^+", r"[\^-`]", r"(a|)\s{,2}", '{"n": [^^]}'])
def test_a_pattern_that_is_written_anew_matches_the_same(pattern: str) -> None:
    for text in (smallest_match(pattern), "", "^", "_", "`", "a", "}}", "++", '{"n": ^}', "a \t", "a\n\n\n"):
        matches = regex.fullmatch(pattern, text) is not None
        assert (regex.fullmatch(text_pattern_of(pattern), text) is not None) == matches
        assert (regex.fullmatch(pattern_of(pattern), json.dumps(text)[1:-1]) is not None) == matches


@given(st.from_regex(r"[a-c]{1,3}(\|[a-c]|[xy]\*|\(z\)\?|\[k-m\]\+){0,3}", fullmatch=True))
def test_a_short_text_matches(pattern: str) -> None:
    assert regex.fullmatch(pattern, smallest_match(pattern))


def test_a_text_that_can_be_read_in_too_many_ways_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 2,000 characters took half a minute."""
    monkeypatch.setattr(derivations, "MAX_MATCHED", 10_000)
    ambiguous = 'start: x*\nx: "a"+'
    assert derives(ambiguous, "a" * 10)
    with pytest.raises(GrammarRefused):
        derives(ambiguous, "a" * 200)


PATTERNS = [r'say "[a-z\\]+"', r"[^x]*", r".{0,3}\n?", r"(\t|\\|é)+", r"[\x00-\x40]*"]


def as_pattern(tree: Tree, rules: dict[str, Tree]) -> str:
    match tree:
        case OneCharacter(ranges):
            return "[" + "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges) + "]"
        case Concatenation(parts):
            return "".join(as_pattern(part, rules) for part in parts)
        case Alternation(options):
            return f"(?:{'|'.join(as_pattern(option, rules) for option in options)})"
        case Repeat(part, least, most):
            return f"(?:{as_pattern(part, rules)}){{{least},{'' if most is None else most}}}"
        case RuleName(name):
            return as_pattern(rules[name], rules)


@pytest.mark.parametrize("pattern", PATTERNS)
@given(text=st.text(alphabet='say "xz\\\n\t\x01é🙂', max_size=8))
def test_a_text_matches_as_its_spelling_does(pattern: str, text: str) -> None:
    rules = dict(_Escaping().rules({"start": parse(pattern)}))
    spelled = json.dumps(text, ensure_ascii=False)[1:-1]
    found = re.fullmatch(as_pattern(rules["start"], rules), spelled)
    assert (found is None) == (re.fullmatch(pattern, text) is None)


def test_what_is_within_json_is_spelled_in_ebnf() -> None:
    ebnf = in_json_string(Regex('a"\n'))
    assert ebnf.startswith('root ::= ("a" r1 r2)\n')
    assert ebnf.endswith('r1 ::= (("\\\\\\""))\nr2 ::= (("\\\\n"))\n')
    assert in_json_string(Lark(APPLY_PATCH)).startswith("root ::= ")


@pytest.mark.parametrize("content", [Regex("(?=a)b"), Lark("start: start"), Regex("(ab){1000}{1000}")])
def test_what_cannot_be_enforced_is_refused(content: Regex | Lark) -> None:
    with pytest.raises(GrammarRefused):
        in_json_string(content)


def test_many_classes_make_no_large_grammar() -> None:
    """16,000 of them made one of 8 MB, in 20 s; a regular expression's were made again for each turn."""
    first, second = (Regex("".join(f"[^{chr(begin + each)}]" for each in range(2000))) for begin in (0x4E00, 0x6E00))
    ebnf = in_json_string(first)
    assert len(ebnf) < 200_000
    assert in_json_string(first) is ebnf
    with shared_budget():
        current_share().take(MAX_SHARED_PARTS - 100_000)
        with pytest.raises(SharedBudgetSpent):
            in_json_string(second)
