"""The row `training`: a small run, with all that happens in a large one."""

from collections.abc import Iterator

from bench.report import Result
from bench.servers import Bench
from bench.training.running import Sizes, train

SMALL = Sizes(rollouts=48, turns=8, at_once=24, kills=1)


def training(bench: Bench) -> Iterator[Result]:
    """A small run."""
    yield from train(bench.folder / "training", SMALL, step=bench.report.step)
