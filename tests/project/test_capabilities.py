"""What a machine cannot do is told in one sentence, with the number of tests that it costs, and fails under CI."""

from pathlib import Path

import pytest

from tests.kit.capabilities import ABILITIES, missing
from tests.kit.small_runs import run_pytest

NEEDING = """
import pytest
from tests.kit.capabilities import require

@pytest.mark.needs("sandbox")
@pytest.mark.parametrize("number", [1, 2])
def test_marked(number): raise AssertionError("it ran")

def test_that_requires_it():
    require("redis")
    raise AssertionError("it ran")

def test_with_a_fixture(redis_server): raise AssertionError("it ran")

def test_that_needs_nothing(): ...

@pytest.mark.skip(reason="for another reason")
def test_left_out_otherwise(): ...
"""
WITHOUT = {"TESTS_WITHOUT": "sandbox,redis"}


@pytest.fixture
def fixtures(tmp_path: Path) -> str:
    """Another file, whose fixture is never started."""
    return "import pytest\n@pytest.fixture\ndef redis_server(): raise AssertionError\ndef test_it(redis_server): ...\n"


@pytest.mark.parametrize("options", [(), ("--at-once", "2")], ids=["one process", "two"])
async def test_what_is_left_out_is_told_in_a_sentence(tmp_path: Path, fixtures: str, options: tuple[str, ...]) -> None:
    needing = NEEDING + fixtures.partition("def test_it")[0]
    end = await run_pytest(tmp_path, *options, environ=WITHOUT, needing=needing, other=fixtures)
    assert end.exit_code == 0, end
    assert "1 passed, 6 skipped" in end.printed
    assert "2 tests were left out: no sandbox can start here, because TESTS_WITHOUT says so.\n" in end.printed
    assert "3 tests were left out: no Redis can start here, because TESTS_WITHOUT says so.\n" in end.printed
    assert end.printed.count("left out:") == 2


async def test_under_ci_the_run_fails(tmp_path: Path) -> None:
    needing = NEEDING.replace("(redis_server)", "()").replace('raise AssertionError("it ran")', "...")
    end = await run_pytest(tmp_path, environ={**WITHOUT, "CI": "true"}, needing=needing)
    assert end.exit_code == 1, end
    assert "1 test was left out: no Redis can start here" in end.printed
    assert "CI=true makes that a failure." in end.printed
    end = await run_pytest(tmp_path, "--deselect", "test_needing.py::test_left_out_otherwise", environ={"CI": "true"})
    lacking = [name for name in ("sandbox", "redis") if missing(name)]
    assert (end.exit_code, "left out" in end.printed) == (bool(lacking), bool(lacking)), end


@pytest.mark.parametrize("name", ABILITIES)
def test_an_ability_is_there_or_says_why_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    missing.cache_clear()
    monkeypatch.setenv("PATH", "/nowhere")
    sentence = missing(name)
    missing.cache_clear()
    assert not sentence or sentence.startswith(f"{ABILITIES[name].lack}, because ")
    if name not in ("postgres", "sandlock", "pgbouncer", "proxies"):  # which are not found by PATH alone
        assert "is not installed" in sentence
