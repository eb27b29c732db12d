"""Grammars of texts within JSON strings: what they derive, spelled as JSON, and nothing else."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.contents.budget import MAX_SHARED_PARTS, SharedBudgetSpent, current_share, shared_budget
from engine.contents.ebnf import _Escaping, in_json_string
from engine.contents.regexes import Alternation, Concatenation, OneCharacter, Repeat, RuleName, Tree, parse
from engine.errors import GrammarRefused
from engine.types import Lark, Regex
from tests.unit.engine.grammars import APPLY_PATCH

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
