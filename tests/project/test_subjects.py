"""Commits say in their subjects what they do."""

import pytest

from tests.project.subjects import commits, problem

SINCE = "a6b6eff7f46f5919f0212da54e3c9c548b1b1cde"  # what came before is as it is


@pytest.mark.parametrize(
    ("subject", "is_fine"),
    [
        ("Read the queue once", True),
        ("Pass what is left on", True),
        ("Embed chunks in the background", True),
        ("Re-read keys that have changed", True),
        ("R" + "e" * 71, True),
        ("R" + "e" * 72, False),
        ("Added a queue", False),
        ("Reads the queue once", False),
        ("Reading the queue once", False),
        ("The queue is read once", False),
        ("read the queue once", False),
        ("Read the queue once.", False),
    ],
)
def test_a_subject(subject: str, is_fine: bool) -> None:
    assert (problem(subject) is None) is is_fine


def test_subjects_of_commits() -> None:
    found = commits(SINCE)
    if found is None:
        pytest.skip("the history is not here")
    assert [(name, subject, problem(subject)) for name, subject in found if problem(subject)] == []
