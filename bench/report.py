"""Results, and the table they are printed as, row by row while the bench runs."""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TypeVar

Given = TypeVar("Given")


@dataclass(frozen=True, kw_only=True)
class Result:
    """A figure of a row. Without a `target` it is for information; `holds` is a condition beside the number."""

    what: str
    measured: float
    unit: str = ""
    target: float | None = None
    holds: bool = True
    details: Mapping[str, float | str] = field(default_factory=dict)
    name: str = ""  # of its row

    @property
    def verdict(self) -> str:
        """Return `ok` or `missed`, or nothing where there is no target."""
        if self.target is None:
            return "-"
        return "ok" if self.holds and self.measured <= self.target else "missed"


def beside(
    what: str,
    measured: Sequence[float],
    *,
    yardstick: str,
    its: Sequence[float],
    unit: str,
    target: float,
    details: Mapping[str, float | str] | None = None,
) -> Result:
    """Return a row that divides what was measured by what a `yardstick` took in the same rounds.

    The same machine may be half as fast an hour later. The yardstick is then, too, so the ratio tells of our code.
    """
    return Result(
        what=f"{what} / {yardstick}",
        measured=ratio(measured, its),
        target=target,
        details={unit: median(measured), f"yardstick {unit}": median(its), **(details or {})},
    )


def ratio(measured: Iterable[float], its: Iterable[float]) -> float:
    """Return the median of the rounds' ratios."""
    return median(own / other for own, other in zip(measured, its, strict=True))


class Report:
    """Prints what runs now, then each row as it is known; remembers them for `BENCH_JSON`."""

    WIDTHS = (80, 12, 12)

    def __init__(self) -> None:
        self.results: list[Result] = []
        self.seconds: dict[str, float] = {}  # that each row took, by name
        self._live = sys.stdout.isatty()
        self._current = ""
        self._line("what", "measured", "target", "verdict")
        self._line(*("-" * width for width in self.WIDTHS), "-------")

    def begin(self, name: str) -> None:
        """Say what is measured now."""
        self._current = name
        self.step("starting")

    def step(self, doing: str) -> None:
        """Say how far it is; only a terminal shows more than the beginning."""
        text = f"… {self._current}: {doing}"
        if self._live:
            print(f"\r{text:<100.100}", end="", flush=True)
        elif doing == "starting":
            print(text, flush=True)

    def rounds(self, count: int, *, warm_up: bool = False) -> Iterator[int]:
        """Yield the number of each round, and say that it begins; round 0 is a warm-up."""
        for number in range(0 if warm_up else 1, count + 1):
            self.step(f"round {number} of {count}" if number else "warm-up")
            yield number

    def add(self, result: Result) -> None:
        """Print a row, and under it the numbers it was made from."""
        if self._live:
            print(f"\r{'':<100}\r", end="")
        self.results.append(result)
        target = "" if result.target is None else f"<= {number(result.target)} {result.unit}"
        self._line(result.what, f"{number(result.measured)} {result.unit}", target, result.verdict)
        if result.details:
            print("    " + ", ".join(f"{name} {_shown(value)}" for name, value in result.details.items()), flush=True)

    def measure(
        self, rows: Mapping[str, Callable[[Given], Iterable[Result]]], names: Sequence[str], given: Given
    ) -> list[str]:
        """Measure the rows that are named, or all, each with what is `given`; return the names of those that failed.

        One that fails is told, and the others are measured: a whole run takes long.
        """
        failed = []
        for name in names or rows:
            self.begin(name)
            began = time.monotonic()
            try:
                for result in rows[name](given):
                    self.add(replace(result, name=name))
            except Exception:  # noqa: BLE001 - whatever it is: it is printed, and the exit status tells of it
                traceback.print_exc()
                self._line(f"{name} failed, as told above", "", "", "failed")
                failed.append(name)
            self.seconds[name] = time.monotonic() - began
        return failed

    def write_json(self, path: Path, environment: Mapping[str, object]) -> None:
        """Write every number."""
        rows = [{**asdict(result), "verdict": result.verdict} for result in self.results]
        path.write_text(json.dumps({"environment": environment, "rows": rows}, indent=2) + os.linesep)

    def _line(self, *cells: str) -> None:
        padded = [f"{cell.strip():<{width}}" for cell, width in zip(cells, (*self.WIDTHS, 0), strict=True)]
        print("  ".join(padded), flush=True)


def check_names(program: str, rows: Mapping[str, object], names: Sequence[str]) -> None:
    """End the program with a sentence where there is no such row."""
    unknown = [name for name in names if name not in rows]
    if unknown:
        raise SystemExit(f"{program}: there is no row {', '.join(unknown)}; there are {', '.join(rows)}.")


def _shown(value: float | str) -> str:
    return value if isinstance(value, str) else number(value)


def number(value: float) -> str:
    """Return a number as a table shows it."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"
