"""The budgets of `make house`: calls of requests are as few as they were at their best."""

import json
from pathlib import Path

import pytest

from bench import budgets, ways

TRIES = 20  # of each way: it ends with the first that is good enough


async def test_a_request_goes_through_no_more_functions_than_it_did() -> None:
    found = budgets.read()
    figures = await ways.bound({each.name: each.limit for each in found if each.limit is not None}, times=TRIES)
    assert len(figures) == 6
    assert list(budgets.broken(figures, found)) == []


@pytest.mark.parametrize(
    ("name", "held", "value", "is_reached", "word"),
    [
        ("longest chain of imports", 30, 31, False, "worse"),
        ("longest chain of imports", 30, 30, False, ""),
        ("longest chain of imports", 30, 20, True, "better"),
        ("longest chain of imports", None, 40, False, "better"),
        ("lines in the body of a function", 15, 14.9, False, "worse"),
        ("lines in the body of a function", 15, 20.1, True, "better"),
    ],
)
def test_a_figure_only_ever_becomes_better(
    tmp_path: Path, name: str, held: float | None, value: float, is_reached: bool, word: str
) -> None:
    file = tmp_path / "budgets.json"
    file.write_text(json.dumps({name: {"budget": 20, "held": held}, "calls": {"budget": 1, "held": 2}}))
    found = budgets.read(file)
    (row,) = budgets.table({name: value}, found)
    assert row[-1] == ", ".join([("reached" if is_reached else "-"), *([f"{word} than held"] if word else [])])
    assert len(list(budgets.broken({name: value}, found))) == (word == "worse")
    assert budgets.hold({name: value}, file) == ([name] if word == "better" else [])
    assert [each.held for each in budgets.read(file)] == [value if word == "better" else held, 2]
