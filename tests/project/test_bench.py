"""The bench as a program: a row that fails is told, and SIGTERM is what Ctrl-C is. See also `tests/system`."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import limits, trees
from bench.__main__ import main
from bench.report import Report, Result
from bench.servers import Bench
from tests.kit.ending import ended_cleanly
from tests.kit.server import ROOT, clean_environ
from tests.project.subjects import commits


def test_the_row_of_limits_comes_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REQUESTS", 50)
    monkeypatch.setattr(limits, "ROUNDS", 1)
    (result,) = limits.limits(Bench(Report(), tmp_path))
    assert result.holds


def test_a_row_that_fails_is_told_and_the_others_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    def fails(given: int) -> list[Result]:
        raise ValueError("no such thing")

    def works(given: int) -> list[Result]:
        return [Result(what="what works", measured=given)]

    report = Report()
    assert report.measure({"fails": fails, "works": works}, [], 7) == ["fails"]
    assert [(result.name, result.measured) for result in report.results] == [("works", 7)]
    told = capsys.readouterr()
    assert "no such thing" in told.err
    assert "fails failed" in told.out


def test_the_bare_server_of_the_yardsticks_can_be_loaded() -> None:
    environ = clean_environ(DJANGO_SETTINGS_MODULE="bench.bare_settings")
    subprocess.run([sys.executable, "-c", "import bench.bare"], cwd=ROOT, env=environ, check=True)


def test_the_rows_can_be_loaded_without_settings() -> None:
    """What they take of the tests' kit imports no models: the benchmarks ask servers, and set up no Django."""
    subprocess.run([sys.executable, "-c", "import bench.__main__"], cwd=ROOT, env=clean_environ(), check=True)


def test_an_unknown_row_is_told() -> None:
    with pytest.raises(SystemExit, match="there is no row nonsense; there are events, "):
        main(["nonsense"])


def test_sigterm_is_what_ctrl_c_is() -> None:
    with pytest.raises(SystemExit) as ended, ended_cleanly():
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 128 + signal.SIGTERM


def test_two_trees_are_compared_by_the_medians_of_their_rounds() -> None:
    own = [{("a row", ""): value, ("a row", "µs"): 2.0, ("new", ""): 1.0} for value in (9.0, 1.1, 0.9)]
    base = [{("a row", "µs"): 4.0, ("a row", ""): 1.0, ("old", ""): 1.0} for _ in range(3)]
    row, detail = trees.changes(base, own)
    assert (row.what, row.base, row.own, row.ratio) == ("a row", 1.0, 1.1, 1.1)
    assert (detail.detail, detail.ratio) == ("µs", 0.5)
    _, slower, faster = trees.table([row, detail])
    assert slower.split() == ["a", "row", "1", "1.1", "1.10", "slower"]
    assert faster.split() == ["µs", "4", "2", "0.50"]


def test_another_revision_is_measured_beside_this_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[bool] = []

    def measure(tree: Path, names: Sequence[str], file: Path) -> trees.Figures:
        assert (tree / "bench" / "__main__.py").is_file()
        assert names == ["events"]
        measured.append(tree == trees.ROOT)
        return {("events", ""): 2.0 if tree == trees.ROOT else 1.0}

    monkeypatch.setattr(trees, "_measured", measure)
    if commits("HEAD") is None:
        pytest.skip("the history is not here")
    (change,) = trees.compare("HEAD", ["events"], 2)
    assert measured == [False, True, True, False]
    assert change.ratio == 2.0
    with pytest.raises(SystemExit, match="BENCH_BASE: fatal: not a valid object name"):
        trees.compare("no-such-revision", ["events"], 1)
