"""A test that fails shows what its servers have logged since it began, and what went wrong on its pages."""

from pathlib import Path

import pytest

from tests.kit.small_runs import run_pytest

FAILING = """
from pathlib import Path
import pytest
from tests.kit.failure_reports import show_log, show_problems

class Logs:
    def __init__(self, log):
        self.log = log
        show_log(self)

    def say(self, word):
        with self.log.open("a") as log:
            log.write(word + "\\n")

@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return Logs(tmp_path_factory.mktemp("shared") / "server.log")

def test_1_passes(shared):
    shared.say("of the first test")

def test_2_fails(shared, tmp_path):
    shared.say("of the second test")
    own = Logs(tmp_path / "server.log")
    for number in range(150):
        own.say(f"line {number}")
    page = Logs(tmp_path / "silent.log")
    show_problems(page, ["error: nonsense is not defined"])
    assert False
"""


@pytest.mark.parametrize("how", [(), ("--at-once", "1")], ids=["here", "in another process"])
async def test_its_own_lines_are_printed(tmp_path: Path, how: tuple[str, ...]) -> None:
    run = await run_pytest(tmp_path, *how, logs=FAILING)
    assert run.exit_code == 1
    assert "since the test began" in run.printed
    lines = run.printed.splitlines()
    assert "of the second test" in lines
    assert "of the first test" not in lines
    assert "nothing" in lines  # of the silent one
    assert "error: nonsense is not defined" in lines
    assert [f"line {number}" for number in (49, 50, 149) if f"line {number}" in lines] == ["line 50", "line 149"]
