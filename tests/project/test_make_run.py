"""`make run` lets the demo engine answer at a pace that one can watch, and nothing else."""

import re
import subprocess

import pytest

from tests.kit.server import ROOT, clean_environ

SLOW = '{"tokens_per_second": 40}'


def options_of(target: str, **settings: str) -> str:
    """Return what make gives a target as ENGINE_OPTIONS, beside what is there already."""
    rules = subprocess.run(
        ["make", "--dry-run", "--print-data-base", "--question", target],
        cwd=ROOT, env=clean_environ(**settings), capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    found = re.search(rf"^# *{target}: ENGINE_OPTIONS = (.*)$|^{target}: ENGINE_OPTIONS = (.*)$", rules, re.MULTILINE)
    return (found[1] or found[2]) if found else ""


@pytest.mark.parametrize("settings", [{}, {"ENGINE": "demo"}])
def test_the_demo_engine_is_slowed(settings: dict[str, str]) -> None:
    assert options_of("run", **settings) == SLOW
    assert options_of("test", **settings) == ""


@pytest.mark.parametrize(
    "settings",
    [{"ENGINE": "vllm"}, {"ENGINE_OPTIONS": "{}"}, {"MODELS": "[]"}, {"MODELS_FILE": "models.json"}],
)
def test_what_an_operator_says_stays(settings: dict[str, str]) -> None:
    assert options_of("run", **settings) == ""
