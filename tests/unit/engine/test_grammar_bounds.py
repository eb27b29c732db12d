"""Patterns, grammars and schemas that take minutes or gigabytes once they are written out: refused, and soon."""

import json
import re
import resource
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import regex

from engine.contents.budget import SharedBudgetSpent, shared_budget
from engine.contents.derivations import smallest_match
from engine.contents.ebnf import to_ebnf
from engine.contents.regexes import check_regex
from engine.contents.schemas import MAX_BYTES, enforceable
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


REPETITIVE = {
    "one character": "a" * 4000,
    "braces": "{" * 4000,
    "escaped": r"\x00" * 2000,
    "in any case": "[aA]" * 2000,
    "classes": "[a]" * 2000,
    "groups": "(?:a|a)" * 1000,
    "once": "a{1}" * 1500,
    "two characters": "ab" * 2000,
    "a common beginning": "a" * 200 + "(?:" + "a" * 200 + "(?:" + "a" * 200 + "b|" + "a" * 200 + "c)|c)",
    "before a choice": "x" + "a" * 4000 + "(?:bb|cc)",
    "behind another": "b*" + "a" * 4000,
}
QUICKLY_MATCHED = {
    "repeated": "a{4000}",
    "a long text": " ".join(str(number) for number in range(1000)),
    "options": "|".join(f"choice {number}" for number in range(700)),
    "a line": "-" * 200,
    "digits": "[0-9]" * 1000,
}


@pytest.mark.parametrize("name", REPETITIVE)
def test_a_text_that_repeats_itself_is_refused(name: str) -> None:
    with pytest.raises(GrammarRefused, match=r"again and again"):
        check_regex(REPETITIVE[name])


@pytest.mark.parametrize("name", QUICKLY_MATCHED)
def test_what_is_accepted_is_matched_soon(name: str) -> None:
    check_regex(QUICKLY_MATCHED[name])
    began = time.process_time()
    regex.compile(QUICKLY_MATCHED[name]).fullmatch(QUICKLY_MATCHED[name][:4000])
    assert time.process_time() - began < 2


SCHEMA_SECONDS = 8.0  # of CPU: some 2 on a slow machine; what is not bounded takes minutes

Schema = dict[str, Any]


def properties(count: int, schema: Schema) -> Schema:
    return {f"p{number}": schema for number in range(count)}


def referred(count: int, beside: Schema, definition: Schema) -> Schema:
    """Return a schema that refers to one definition again and again, with something beside the reference."""
    return {"properties": properties(count, {"$ref": "#/$defs/a", **beside}), "$defs": {"a": definition}}


def each(names: int) -> list[str]:
    return [f"q{number}" for number in range(names)]


BOTH = {x: {"properties": {name: {"title": x} for name in each(1500)}} for x in "ab"}
LARGE = {
    "properties of themselves": {"properties": properties(2000, {"$ref": "#", "minProperties": 0})},
    "properties merged": {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}] * 750, "$defs": BOTH},
    "names required": referred(2000, {"required": ["z"]}, {"type": "object", "required": each(4000)}),
    "an enum": referred(600, {"type": ["integer", "string"]}, {"enum": list(range(7000))}),
    "an enum of objects": referred(500, {"type": "object"}, {"enum": [{"a": number} for number in range(5000)]}),
    "a long constant": referred(1500, {"type": "string"}, {"const": "x" * 60_000}),
    "a long name": referred(1500, {"minProperties": 0}, {"type": "object", "properties": {"k" * 60_000: {}}}),
    "a long pattern": referred(1500, {"type": "string"}, {"pattern": "(ab|c[x-z]*)" * 600}),
    "patterns of any character": {"properties": {name: {"pattern": "." * 8190} for name in each(15)}},
    "alternatives with long enums": {
        "properties": properties(600, {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}),
        "$defs": {"a": {"enum": list(range(4000))}, "b": {"enum": list(range(4001, 8000))}},
    },
    "alternatives of many tags": {
        "oneOf": [{"$ref": "#/$defs/a", "title": name} for name in each(256)],
        "$defs": {"a": {"required": each(3000), "properties": {name: {"enum": [1, 2, 3]} for name in each(3000)}}},
    },
    "a check of each item": {
        "enum": [[1] * 3000],
        "items": {"anyOf": [*({"const": number} for number in range(2, 240)), {"const": 1}]},
    },
    "unions that go deep": {"allOf": [{"items": {"minimum": number}} for number in range(4000)]},
    "references that go deep": {
        "$ref": "#/$defs/a0",
        "minimum": 1,
        "$defs": {f"a{at}": {"$ref": f"#/$defs/a{at + 1}", "minimum": at} for at in range(2000)} | {"a2000": {}},
    },
}


@pytest.mark.parametrize("schema", LARGE.values(), ids=LARGE)
def test_what_is_large_once_it_is_resolved_is_refused_soon(schema: Schema) -> None:
    assert len(json.dumps(schema, separators=(",", ":"))) <= MAX_BYTES
    began = time.thread_time()
    with pytest.raises(GrammarRefused, match="once its references and combinations are resolved") as caught:
        enforceable(json.dumps(schema, separators=(",", ":")))
    assert time.thread_time() - began < SCHEMA_SECONDS
    assert len(caught.value.reason) < 300


SLOW_SCHEMAS = {
    "objects that are required": {"required": [{"a": number} for number in range(3000)]},
    "types that are not types": {"type": [{"a": number} for number in range(3000)]},
    "items that are all different": {"enum": [[{"a": number} for number in range(8000)]], "uniqueItems": True},
}


@pytest.mark.parametrize("schema", SLOW_SCHEMAS.values(), ids=SLOW_SCHEMAS)
def test_two_of_the_same_are_found_without_comparing_all(schema: Schema) -> None:
    began = time.thread_time()
    with pytest.raises(GrammarRefused):
        check_schema(schema)
    assert time.thread_time() - began < SCHEMA_SECONDS


@pytest.mark.parametrize("draft", ["draft-04", "draft-07", "draft/2019-09"])
def test_a_part_in_another_draft_is_checked_in_bounded_time_too(draft: str) -> None:
    part = {"$schema": f"http://json-schema.org/{draft}/schema#", "pattern": "^(a|a)*$"}
    part = part | ({"$schema": f"https://json-schema.org/{draft}/schema"} if "/" in draft else {})
    with pytest.raises(GrammarRefused, match="too long to match"):
        check_schema({"enum": [["a" * 40 + "b"]], "items": part})


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"$ref": "#"}, {"type": "integer"}]},
        {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}, {}]}, "b": {}}}
        | {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}, {}]}, "b": {"anyOf": [{}, {"$ref": "#/$defs/a"}]}}},
    ],
)
def test_an_alternative_that_is_the_whole_again_is_refused(schema: Schema) -> None:
    with pytest.raises(GrammarRefused, match="refers to itself without end"):
        check_schema(schema)


@pytest.mark.parametrize("name", ["anyOf", "oneOf", "allOf"])
def test_references_in_circles_beside_an_enum_are_refused(name: str) -> None:
    circle: Schema = {f"d{at}": {name: [{"$ref": f"#/$defs/d{(at + 1) % 7}"}]} for at in range(7)}
    with pytest.raises(GrammarRefused):
        check_schema({"enum": [[1]], "items": {"$ref": "#/$defs/d0"}, "$defs": circle})


def test_long_enums_are_merged() -> None:
    many = [{"enum": list(range(5_000))}, {"enum": [*range(5_000, 4_990, -1), 3.0, True]}]
    assert json.loads(enforceable(json.dumps({"allOf": many}))) == {"enum": [3, *range(4_991, 5_000)]}


def test_a_number_is_not_told_apart_from_itself_by_how_it_is_written() -> None:
    with pytest.raises(GrammarRefused, match="may both fit"):
        check_schema({"oneOf": [{"enum": [1, 2]}, {"enum": [2.0]}]})
    check_schema({"oneOf": [{"enum": [1]}, {"enum": [True]}]})
