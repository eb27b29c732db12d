"""Counters, gauges and histograms as plain Python numbers: what counts holds a cell, and adds to it.

No lock and no file: a cell belongs to the event loop's thread. So an addition costs a tenth of a microsecond, and
nothing else. `dump` and `add` are the way from one worker to another, and into the folder that they share.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

Labels = tuple[str, ...]

MAX_SERIES = 1000  # of one number; labels beyond it are counted as `other`
OTHER = "other"


class Cell:
    """One number."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def dump(self) -> object:
        """Return it as JSON has it."""
        return self.value

    def add(self, dumped: Any) -> None:
        """Add what another one has dumped. Raises `TypeError` or `ValueError` for what is not of its kind."""
        self.value += float(dumped)


class Timings:
    """Seconds, counted by how long they were: one count for each bound, and one for what was longer."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def note(self, seconds: float) -> None:
        """Count a time."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds

    def dump(self) -> object:
        """Return it as JSON has it."""
        return [self.counts, self.total]

    def add(self, dumped: Any) -> None:
        """Add what another one has dumped. Raises `TypeError` or `ValueError` for what is not of its kind."""
        counts, total = dumped
        self.counts = [mine + int(theirs) for mine, theirs in zip(self.counts, counts, strict=True)]
        self.total += float(total)


class Family:
    """A number with a name, once for each of its labels' values; the values come from a bounded set."""

    kind: ClassVar[str]

    def __init__(self, name: str, about: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self.about = about
        self.labels = tuple(labels)
        self.cells: dict[Labels, Any] = {}

    def at(self, *values: str) -> Any:
        """Return the cell of these labels' values."""
        cell = self.cells.get(values)
        if cell is None:
            if len(values) != len(self.labels):
                raise ValueError(f"{self.name} has the labels {self.labels}")
            if len(self.cells) >= MAX_SERIES:
                values = (OTHER,) * len(values)
            cell = self.cells.get(values) or self._new()
            self.cells[values] = cell
        return cell

    def _new(self) -> Any:
        return Cell()

    def dump(self) -> list[tuple[Labels, object]]:
        """Return all cells as JSON has them."""
        return [(values, cell.dump()) for values, cell in self.cells.items()]

    def add(self, dumped: Iterable[tuple[Iterable[str], object]]) -> None:
        """Add what another worker has counted. Raises `TypeError` or `ValueError` for what has another form."""
        for values, cell in dumped:
            self.at(*values).add(cell)


class Counter(Family):
    """Only grows; its name in Prometheus ends in `_total`."""

    kind = "counter"

    def count(self, *values: str, by: float = 1) -> None:
        """Add to it."""
        self.at(*values).value += by


class Gauge(Family):
    """Goes up and down: how many there are now. That of all workers is their sum."""

    kind = "gauge"

    def set(self, value: float, *values: str) -> None:
        """Say how many there are."""
        self.at(*values).value = value


class Histogram(Family):
    """How long something takes, in seconds, up to each of its bounds."""

    kind = "histogram"

    def __init__(self, name: str, about: str, bounds: Sequence[float], labels: Sequence[str] = ()) -> None:
        super().__init__(name, about, labels)
        self.bounds = tuple(bounds)

    def _new(self) -> Timings:
        return Timings(self.bounds)

    def note(self, seconds: float, *values: str) -> None:
        """Count a time."""
        self.at(*values).note(seconds)
