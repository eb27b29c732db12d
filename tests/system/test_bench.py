"""The bench with databases and servers: its rows can follow each other, and nothing is left behind.

The faults that only these tests can find: a row that leaves its PostgreSQL or Django's connections as the next one
cannot use them; and a server or a folder that outlives the bench which a script has ended.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pytest_django.plugin import DjangoDbBlocker

from bench import searching
from bench.loads import database_of
from bench.report import Report
from bench.servers import Bench
from tests.kit.served import is_gone
from tests.kit.server import ROOT, START_SECONDS


def test_rows_that_need_a_database_of_their_own_follow_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, django_db_blocker: DjangoDbBlocker
) -> None:
    monkeypatch.setattr(searching, "CHUNKS", 20)
    monkeypatch.setattr(searching, "CHUNKS_WITH_VECTORS", 130)
    monkeypatch.setattr(searching, "CHUNKS_OF_A_FILE", 100)
    monkeypatch.setattr(searching, "ROUNDS", 1)
    monkeypatch.setenv("DATA_DIR", str(tmp_path))  # `database_of` sets it
    bench = Bench(Report(), tmp_path)
    with django_db_blocker.unblock():
        with database_of(bench, "PostgreSQL"):
            pass
        assert len(list(searching.file_search(bench))) == 2
        assert len(list(searching.vector_search(bench))) == 2


def test_sigterm_ends_its_servers_too(tmp_path: Path) -> None:
    """In the background of a script, which Ctrl-C does not reach."""
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    children: set[int] = set()
    with subprocess.Popen(
        ["sh", "-c", f"trap '' INT; exec {sys.executable} -m bench opening"],
        cwd=ROOT, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as bench:  # fmt: skip
        try:
            deadline = time.monotonic() + START_SECONDS
            while not any(tmp_path.glob("respsite-bench-*/*/*-wal")):  # a server has opened its database
                assert bench.poll() is None, bench.stderr and bench.stderr.read()
                assert time.monotonic() < deadline
                children.update(map(int, Path(f"/proc/{bench.pid}/task/{bench.pid}/children").read_text().split()))
                time.sleep(0.02)
            bench.terminate()
            _, complaints = bench.communicate(timeout=START_SECONDS)
        finally:
            bench.kill()
    assert (bench.returncode, complaints) == (128 + signal.SIGTERM, "")
    assert all(map(is_gone, children))
    assert list(tmp_path.iterdir()) == []
