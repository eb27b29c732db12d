"""Regular expressions and Lark grammars that take minutes or gigabytes where written out: refused, and soon."""

import json
import re
import resource
import time
import warnings
from collections.abc import Callable

import pytest

from engine.contents.budget import SharedBudgetSpent, shared_budget
from engine.contents.derivations import smallest_match
from engine.contents.ebnf import to_ebnf
from engine.contents.regexes import check_regex
from engine.contents.schemas import enforceable
from engine.errors import GrammarRefused
from tests.kit.schemas import check_schema

SECONDS = 6.0  # of CPU: some 1.5 on a slow machine; what is not bounded takes minutes
BYTES = 200 * 1024 * 1024


def bounded(check: Callable[[], object]) -> None:
    """Run a check that must not take long, nor grow the process much."""
    most, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.thread_time()
    check()
    assert time.thread_time() - began < SECONDS
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most) * 1024 < BYTES


PATTERNS = {
    "a long part, repeated": ("(?:" + "ab?" * 500 + "){9999}", "written out"),
    "many parts, repeated": ("(a?){9999}" * 100, "written out"),
    "repetitions in each other": ("(((ab{1,100}){1,100}){1,100}){1,100}", "written out"),
    "open brackets": ("[" * 8000, "cannot be read"),
    "open brackets of others": ("[^" * 4000, "cannot be read"),
    "groups in each other": ("(" * 300 + "a" + ")*" * 300, "cannot be read"),
}
CHECKS: dict[str, Callable[[str], object]] = {
    "alone": check_regex,
    "of a property": lambda pattern: check_schema({"properties": {"a": {"pattern": pattern}}, "required": ["a"]}),
    "beside an enum": lambda pattern: check_schema({"enum": [["aaa"]], "items": {"pattern": pattern}}),
}


@pytest.mark.parametrize("pattern", ["[[a]", "[a&&b]", "[a~~||]", "[+--]", "[\\[&&]", "[^[]x"])
def test_a_class_that_re_warns_of_is_read_as_it_stands(pattern: str) -> None:
    check_regex(pattern)
    with warnings.catch_warnings(action="ignore"):
        assert re.fullmatch(pattern, smallest_match(pattern))


@pytest.mark.parametrize("schema", [{"minLength": 60_000}, {"maxLength": 100_000}, {"pattern": "^[^a]{1,9999}b$"}])
def test_a_long_text_takes_little_to_be_checked(schema: dict[str, object]) -> None:
    bounded(lambda: enforceable(json.dumps({"type": "string", **schema})))


def test_a_text_that_is_long_in_any_case_is_refused() -> None:
    with pytest.raises(GrammarRefused, match="longer than"):
        check_schema({"type": "string", "minLength": 99_999})


def terminals(count: int, body: str) -> str:
    lines = (f"T{number}: {body.format(number + 1)}\n" for number in range(count))
    return f'start: T0\n{"".join(lines)}T{count}: "a"\n'


GRAMMARS = {
    "terminals that double": (terminals(40, "T{0} T{0}"), "written out"),
    "a long line of terminals": (terminals(1500, 'T{0} "x"'), "written out"),
    "a terminal of itself": ('start: A\nA: A "a" | "b"\n', "made of itself"),
    "empty lines": ('start: "a"\n' + "\n" * 64_000, "empty lines"),
    "empty lines and no grammar": ("\n \t" * 20_000 + "%imporx", "empty lines"),
    "repetitions in each other": ('start: ((("ab"~1..9999)~1..9999)~1..9999)', "written out"),
}
MUCH = {f"{how}, {name}": (check, *case) for how, check in CHECKS.items() for name, case in PATTERNS.items()}
MUCH |= {f"Lark, {name}": (to_ebnf, *case) for name, case in GRAMMARS.items()}


@pytest.mark.parametrize(("check", "source", "reason"), MUCH.values(), ids=MUCH)
def test_what_takes_much_is_refused_soon(check: Callable[[str], object], source: str, reason: str) -> None:
    def refused() -> None:
        with pytest.raises(GrammarRefused, match=reason):
            check(source)

    bounded(refused)


def test_what_comes_from_common_may_stand_behind_any_space() -> None:
    assert to_ebnf("%import   common.DIGIT\nstart: DIGIT")
    with pytest.raises(GrammarRefused, match="'common' only"):
        to_ebnf("%import   .other.DIGIT\nstart: DIGIT")


SHARING: dict[str, Callable[[int], object]] = {
    "grammars": lambda number: to_ebnf(f'start: "{number}"\n// {"x" * 50_000}'),
    "patterns": lambda number: check_regex(f"{number}{'[x-z]' * 1600}"),
}


@pytest.mark.parametrize("check", SHARING.values(), ids=SHARING)
def test_all_of_a_request_share_what_they_may_take(check: Callable[[int], object]) -> None:
    def read(count: int) -> None:
        with shared_budget():
            for number in range(count):
                check(number)

    read(3)
    with pytest.raises(SharedBudgetSpent, match="all together"):
        read(100)
    read(3)
