"""The budgets of how the code is built, and the values that are held: no figure becomes worse than it was at its best.

`budgets.json` has the `budget` of each figure, and the value that is `held`. `make check` fails where a figure is
worse than that, `tests/inprocess/test_budgets.py` where calls are. `make house HOLD=1` writes each figure that is
better. Whoever has to raise a held value does so by hand, in the commit that needs it, whose message says why.

    python -m bench.budgets [--details] [--hold]    prints the figures of `house`, and the budgets
    python -m bench.budgets --check                 looks at what is read from the files alone
"""

import ast
import asyncio
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench import ways
from bench.house import CHECKS, PACKAGES, House, functions, import_lines, longest_path, show, twice
from bench.house import read as read_modules

FILE = Path(__file__).with_name("budgets.json")
EXTENSIONS = "responses_app.extensions"
MORE_IS_BETTER = {"lines in the body of a function"}
COUNTED_AGAIN = 1.02

Figures = Mapping[str, float]


@dataclass(frozen=True)
class Budget:
    """What a figure is to be, and the best that it has been; None where it was never measured."""

    name: str
    budget: float
    held: float | None

    def is_better(self, value: float, other: float) -> bool:
        """Whether a value is better than another one."""
        return value > other if self.name in MORE_IS_BETTER else value < other

    def is_reached(self, value: float) -> bool:
        """Whether a value is as good as the budget."""
        return not self.is_better(self.budget, value)

    @property
    def limit(self) -> float | None:
        """The worst that a value may be. Counted calls vary a little: by how many events a turn of the loop has."""
        return self.held if self.held is None or ": " not in self.name else COUNTED_AGAIN * self.held

    def is_broken(self, value: float) -> bool:
        """Whether a value is worse than it may be."""
        return self.limit is not None and self.is_better(self.limit, value)

    def is_exceeded(self, value: float) -> bool:
        """Whether a value is better than the one that is held."""
        return self.held is None or self.is_better(value, self.held)


def read(file: Path = FILE) -> list[Budget]:
    rows: dict[str, dict[str, float | None]] = json.loads(file.read_text())
    return [Budget(name, row["budget"] or 0, row["held"]) for name, row in rows.items()]


def hold(figures: Figures, file: Path = FILE) -> list[str]:
    """Hold each figure that is better than the held one, and return their names."""
    rows = json.loads(file.read_text())
    better = [each.name for each in read(file) if each.name in figures and each.is_exceeded(figures[each.name])]
    for name in better:
        rows[name]["held"] = figures[name]
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    file.write_text(f"{{\n{lines}\n}}\n")
    return better


def broken(figures: Figures, budgets: list[Budget]) -> Iterator[str]:
    """Yield a sentence for each figure that is worse than the one that is held."""
    for each in budgets:
        if each.name in figures and each.is_broken(figures[each.name]):
            yield (
                f"{each.name}: {shown(figures[each.name])}, but {shown(each.held)} is held in bench/budgets.json. "
                "See `make house`."
            )


def table(figures: Figures, budgets: list[Budget]) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield name, value, budget, held value and a word for each figure that has a budget."""
    for each in budgets:
        if each.name in figures:
            value = figures[each.name]
            words = ["reached" if each.is_reached(value) else "-"]
            words += ["worse than held"] if each.is_broken(value) else []
            words += ["better than held"] if each.is_exceeded(value) else []
            yield each.name, shown(value), shown(each.budget), shown(each.held), ", ".join(words)


def shown(value: float | None) -> str:
    """Return a figure as text."""
    if value is None:
        return ""
    return f"{value:,.2f}".rstrip("0").rstrip(".")


def static(house: House, checks: House) -> dict[str, float]:
    """Return the figures that are read from the files alone. A function without a body, but for its text, is none."""
    modules = list(house.modules.values())
    lines = sum(each.lines for each in modules)
    extensions = sum(each.lines for each in modules if f"{each.name}.".startswith(f"{EXTENSIONS}."))
    sizes = (
        {"kernel lines": lines - extensions, "extension lines": extensions} if extensions else {"product lines": lines}
    )
    bodies = [length for length in map(_body_lines, functions(modules)) if length]
    return {
        **sizes,
        "longest chain of imports": len(longest_path(house.imports)),
        "import lines, %": round(100 * import_lines(modules) / lines, 2),
        "lines in the body of a function": round(sum(bodies) / len(bodies), 2),
        "class names twice": len(twice(modules)),
        "test and bench lines": sum(each.lines for each in checks.modules.values()),
    }


def _body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return how many lines a function has behind its signature and its docstring."""
    body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    return (function.end_lineno or function.lineno) - body[0].lineno + 1 if body else 0


def main() -> None:
    """Print the figures, and hold what is better; with `--check` print only what is worse than it is held, and fail."""
    budgets, house, checks = read(), read_modules(*PACKAGES), read_modules(*CHECKS)
    found = static(house, checks)
    if "--check" in sys.argv[1:]:
        sys.exit("\n".join(broken(found, budgets)) or 0)
    show(house, checks)
    found |= asyncio.run(ways.bound())
    rows = [("", "now", "budget", "held", ""), *table(found, budgets)]
    width = max(len(name) for name, *_ in rows)
    print()
    for name, *values, words in rows:
        print(f"{name:{width}}{''.join(f'  {value:>9}' for value in values)}  {words}")
    if "--hold" in sys.argv[1:]:
        print(f"\nheld from now on: {', '.join(hold(found)) or 'nothing new'}")


if __name__ == "__main__":
    main()
