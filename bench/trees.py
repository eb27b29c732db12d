"""`BENCH_BASE=REVISION make bench`: rows of two trees, that of a revision and this one, and the change of each figure.

Each round runs the rows in a process for each tree, with the packages that are installed here. Which tree comes first
changes from round to round, so that what else the machine does falls on both. A change is the median of this tree
divided by the median of the revision: 0.9 is a tenth less. A row that is measured beside a yardstick has the change of
that ratio, and below it those of the times that it was made from: the yardstick's own change says how quiet it was.
"""

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.report import number

ROOT = Path(__file__).parent.parent
SLOWER = 1.03  # from here on a change is marked

Figures = Mapping[tuple[str, str], float]  # by what a row measures, and the name of a detail, "" for the row itself


@dataclass(frozen=True)
class Change:
    """One figure in both trees: medians of all rounds."""

    what: str
    detail: str
    base: float
    own: float

    @property
    def ratio(self) -> float:
        """This tree divided by the other one; 1.0 where there is nothing to divide by."""
        return self.own / self.base if self.base else 1.0


def compare(revision: str, names: Sequence[str], rounds: int) -> list[Change]:
    """Measure rows in both trees; return the changes. Raises `SystemExit` where a tree cannot be had or measured."""
    measured: dict[str, list[Figures]] = {"base": [], "own": []}
    with tempfile.TemporaryDirectory(prefix="respsite-bench-base-") as folder:
        base = Path(folder) / "tree"
        _unpack(revision, base)
        for number in range(rounds):
            order = (("base", base), ("own", ROOT)) if number % 2 == 0 else (("own", ROOT), ("base", base))
            for name, tree in order:
                print(f"… round {number + 1} of {rounds}: {revision if name == 'base' else 'this tree'}", flush=True)
                measured[name].append(_measured(tree, names, Path(folder) / "figures.json"))
    return list(changes(measured["base"], measured["own"]))


def changes(base: Sequence[Figures], own: Sequence[Figures]) -> Iterator[Change]:
    """Yield each figure that both trees have in every round, as this tree orders them."""
    for what, detail in own[0]:
        if all((what, detail) in each for each in (*base, *own)):
            medians = [median(each[what, detail] for each in rounds) for rounds in (base, own)]
            yield Change(what, detail, *medians)


def table(found: Sequence[Change]) -> Iterator[str]:
    """Yield the lines of a table, one for each figure."""
    width = max((len(each.detail or each.what) for each in found), default=0) + 4
    yield f"{'':{width}} {'base':>10} {'this':>10} {'change':>7}"
    for each in found:
        name = f"    {each.detail}" if each.detail else each.what
        mark = "  slower" if not each.detail and each.ratio > SLOWER else ""
        yield f"{name:{width}} {number(each.base):>10} {number(each.own):>10} {each.ratio:>7.2f}{mark}"


def _unpack(revision: str, folder: Path) -> None:
    done = subprocess.run(["git", "archive", "--format=tar", revision], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"bench: BENCH_BASE: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")


def _measured(tree: Path, names: Sequence[str], file: Path) -> Figures:
    """Run rows in a tree, in a process of its own, and return their results."""
    environ = {name: value for name, value in os.environ.items() if name != "BENCH_BASE"}
    environ |= {"BENCH_JSON": str(file), "PYTHONPATH": str(tree)}
    command = [sys.executable, "-m", "bench", *names]
    done = subprocess.run(command, cwd=tree, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"bench: {' '.join(names) or 'all rows'} in {tree}:\n{done.stdout}{done.stderr}")
    figures: dict[tuple[str, str], float] = {}
    for row in json.loads(file.read_text())["rows"]:
        figures[row["what"], ""] = row["measured"]
        numbers = {name: value for name, value in row["details"].items() if isinstance(value, int | float)}
        figures.update({(row["what"], name): value for name, value in numbers.items()})
    return figures
