"""Processes that are forked are like those that are started: their environment, their ends, their outputs."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.kit.forking import ForkedProcess, fork

SCRIPT = """
import json, os, sys, time
print(json.dumps({"words": sys.argv[1:], "environ": dict(os.environ), "here": os.getcwd(), "session": os.getsid(0)}))
print("a warning", file=sys.stderr)
if "sleep" in sys.argv:
    sys.stdout.flush()
    time.sleep(600)
sys.exit(3)
"""


def forked(folder: Path, *words: str) -> ForkedProcess:
    """Run the script in a folder."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    environ = {"PATH": os.environ["PATH"], "SOMETHING": "else"}
    with (folder / "output").open("wb") as output, (folder / "errors").open("wb") as errors:
        return fork([str(script), *words], cwd=folder, environ=environ, output=output, errors=errors)


def test_it_runs_what_is_ordered_with_nothing_of_its_parent(tmp_path: Path) -> None:
    process = forked(tmp_path, "one", "two")
    assert process.wait(60) == 3
    assert json.loads((tmp_path / "output").read_text()) == {
        "words": ["one", "two"],
        "environ": {"PATH": os.environ["PATH"], "SOMETHING": "else"},
        "here": str(tmp_path),
        "session": process.pid,
    }
    assert (tmp_path / "errors").read_text() == "a warning\n"


def test_it_is_waited_for_and_killed(tmp_path: Path) -> None:
    process = forked(tmp_path, "sleep")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    assert process.poll() is None
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    assert process.poll() == process.returncode == -signal.SIGKILL


def test_what_waits_in_one_does_not_hold_another(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    sleeper = forked(one, "sleep")
    assert forked(other).wait(60) == 3
    assert sleeper.poll() is None
    sleeper.send_signal(signal.SIGTERM)
    assert sleeper.wait(60) == -signal.SIGTERM
