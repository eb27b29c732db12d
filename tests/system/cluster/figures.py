"""The figures of every fault, and the table of them that a run of the suite ends with."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Figures:
    """One time of a fault: `gaps` and `seconds` are in seconds, `noted` is what the fault itself has measured."""

    fault: str
    completed: Mapping[str, int]
    retried: Mapping[str, int]
    failed: int
    gaps: Mapping[str, float]
    seconds: float
    passed: bool
    noted: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        gaps = ", ".join(f"{kind} {gap:.1f} s" for kind, gap in self.gaps.items() if kind != "json")
        again = ", ".join(f"{why} {times}" for why, times in sorted(self.retried.items())) or "none"
        noted = "".join(f"; {each}" for each in self.noted)
        return (
            f"completed {sum(self.completed.values())}; retried {sum(self.retried.values())} ({again}); "
            f"failed {self.failed}; longest gap: {gaps}; {self.seconds:.0f} s{noted}"
        )


_all: list[Figures] = []


def keep(figures: Figures) -> None:
    """Keep the figures of one time for the table."""
    _all.append(figures)


def table() -> list[str]:
    """Return a line for each time of each fault, in the order in which they came."""
    times: Counter[str] = Counter()
    lines = []
    for figures in _all:
        times[figures.fault] += 1
        said = "" if figures.passed else "FAILED: "
        lines.append(f"{figures.fault}, time {times[figures.fault]}: {said}{figures}")
    return lines
