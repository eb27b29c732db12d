"""The table of what runs in a server with one worker, in a file: what a process finds there of the one before it."""

import os
import time
from pathlib import Path

import pytest

from responses_app.limits import suspects
from responses_app.limits.suspects import Holds, Running, Stage, name_of
from responses_app.management.supervisor import FILE, kept_table
from responses_app.protocol.errors import EndsWorkers

POISON = name_of("p", b"poison")


class Died(Exception):
    """The process is gone."""


async def run(folder: Path) -> None:
    """Serve the poison in a process that dies of it. Raises `Died`, or `EndsWorkers` where it is not run."""
    running = Running()
    with kept_table(folder) as table:
        assert table is not None
        running.attach(table, 0)
        if not running.begin(Holds(), "p", POISON):
            await running.stand_trial(Holds(), "p", POISON)
        raise Died


async def test_a_request_that_two_processes_died_of_is_refused_by_the_third(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(Died):
            await run(tmp_path)
    with pytest.raises(EndsWorkers):
        await run(tmp_path)


async def test_one_that_stops_as_told_leaves_nobody_suspected(tmp_path: Path) -> None:
    for _ in range(2):
        running = Running()
        with kept_table(tmp_path) as table:
            assert table is not None
            assert table.suspects(time.monotonic()) == []
            running.attach(table, 0)
            running.begin(Holds(), "p", POISON)


def test_suspects_of_before_the_machine_began_anew_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kept_table(tmp_path) as table:
        assert table is not None
        table.suspect(POISON, Stage.CONDEMNED, "p", time.monotonic())
    monkeypatch.setattr(suspects.time, "monotonic", lambda: 10.0)
    with kept_table(tmp_path) as table:
        assert table is not None
        assert table.stage(POISON, 10.0)[0] is Stage.INNOCENT


@pytest.mark.parametrize("byte", [b"A", b"\xff"])
def test_a_file_of_the_right_size_that_holds_no_table_is_begun_anew(tmp_path: Path, byte: bytes) -> None:
    (tmp_path / FILE).write_bytes(byte * suspects.SuspectTable.size(1))
    with kept_table(tmp_path) as table:
        assert table is not None
        assert table.suspects(0.0) == []
        assert table.suspect(POISON, Stage.SUSPECT, "p", 0.0).deaths == 1


def test_without_a_file_of_its_own_a_server_has_none(tmp_path: Path) -> None:
    with kept_table(tmp_path / "missing") as table:
        assert table is None
    (tmp_path / FILE).write_bytes(b"of another version")
    with kept_table(tmp_path) as first, kept_table(tmp_path) as second:
        assert first is not None
        assert second is None, "another server has it"
    assert os.stat(tmp_path / FILE).st_size == suspects.SuspectTable.size(1)
