"""The folder that workers behind one address share."""

import subprocess
import sys
from pathlib import Path

import pytest

from responses_app.observing.sharing import SharedFolder
from tests.kit.server import ROOT

WORKER = """
import sys
from pathlib import Path
from responses_app.observing.sharing import SharedFolder
folder = SharedFolder(Path(sys.argv[1]))
print(folder.enter().decode() or "nothing", flush=True)
folder.write(b"from another process")
print("written", flush=True)
sys.stdin.read()
"""


def start_worker(folder: Path) -> "subprocess.Popen[str]":
    """Start a process that takes a place and has written its numbers."""
    command = [sys.executable, "-c", WORKER, str(folder)]
    worker = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    worker.found = worker.stdout.readline().strip()  # type: ignore[attr-defined]
    assert worker.stdout.readline() == "written\n"
    return worker


def test_a_killed_worker_is_known_to_be_dead_and_its_numbers_stay(tmp_path: Path) -> None:
    here = SharedFolder(tmp_path)
    assert here.enter() == b""
    with start_worker(tmp_path) as worker:
        assert here.others() == [(b"from another process", True)]
        worker.kill()
        worker.wait()
        assert here.others() == [(b"from another process", False)]
    with start_worker(tmp_path) as worker:  # the next one has its place, and goes on with its numbers
        assert worker.found == "from another process"  # type: ignore[attr-defined]
        assert here.others() == [(b"from another process", True)]
    here.leave()


def test_the_numbers_of_the_worker_before_are_not_those_of_the_one_that_took_its_place(tmp_path: Path) -> None:
    before, here, after = SharedFolder(tmp_path), SharedFolder(tmp_path), SharedFolder(tmp_path)
    before.enter()
    here.enter()
    before.write(b"before")
    before.leave()
    assert after.enter() == b"before"
    assert here.others() == [(b"before", False)], "its gauges ended with it"
    after.write(b"after")
    assert here.others() == [(b"after", True)]
    after.leave()
    here.leave()


def test_there_are_never_more_files_than_workers_at_once(tmp_path: Path) -> None:
    for number in range(5):
        folder = SharedFolder(tmp_path)
        assert folder.enter() == (b"%d" % (number - 1) if number else b"")
        folder.write(b"%d" % number)
        folder.leave()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["worker-0.json", "worker-0.lock"]


def test_a_worker_without_a_place_cannot_write(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no place"):
        SharedFolder(tmp_path).write(b"")
