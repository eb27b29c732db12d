"""The bench as a program: a row that fails is told, and SIGTERM is what Ctrl-C is. See also `tests/system`."""

import signal
from pathlib import Path

import pytest

from bench import limits
from bench.__main__ import main
from bench.report import Report, Result
from bench.servers import Bench
from tests.kit.ending import ended_cleanly


def test_the_row_of_limits_comes_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REQUESTS", 50)
    monkeypatch.setattr(limits, "ROUNDS", 1)
    (result,) = limits.limits(Bench(Report(), tmp_path))
    assert result.holds


def test_a_row_that_fails_is_told_and_the_others_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    def fails(given: int) -> list[Result]:
        raise ValueError("no such thing")

    def works(given: int) -> list[Result]:
        return [Result(name="works", what="what works", measured=given)]

    report = Report()
    assert report.measure({"fails": fails, "works": works}, [], 7) == ["fails"]
    assert [result.measured for result in report.results] == [7]
    told = capsys.readouterr()
    assert "no such thing" in told.err
    assert "fails failed" in told.out


def test_an_unknown_row_is_told() -> None:
    with pytest.raises(SystemExit, match="there is no row nonsense; there are events, "):
        main(["nonsense"])


def test_sigterm_is_what_ctrl_c_is() -> None:
    with pytest.raises(SystemExit) as ended, ended_cleanly():
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 128 + signal.SIGTERM
