"""The task that every agent does: a repository whose tests fail, and the thirty turns that mend it.

A step says what is to be done, in no agent's words; each agent's own module says which of its tools does that.
"""

import subprocess
from dataclasses import dataclass
from pathlib import Path

PROMPT = "The tests of this repository fail. Find out why, mend it, and commit what you changed."
COMMITTED = "Mend the prices, the stock and the orders"
TEST = "python3 -B -m unittest -q"
DONE = "All six tests pass, and it is committed."


@dataclass(frozen=True, slots=True)
class Read:
    """Read a file."""

    path: str


@dataclass(frozen=True, slots=True)
class Search:
    """Find a word in all files."""

    word: str


@dataclass(frozen=True, slots=True)
class Edit:
    """Put a line in another one's place."""

    path: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Write:
    """Make a file."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Run:
    """Run a command."""

    command: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Say that it is done."""

    text: str


Step = Read | Search | Edit | Write | Run | Answer

STEPS: tuple[Step, ...] = (
    Run("git log --oneline && ls -R shop tests"),
    Read("README.md"),
    Read("shop/prices.py"),
    Read("shop/stock.py"),
    Read("shop/orders.py"),
    Read("tests/test_prices.py"),
    Read("tests/test_stock.py"),
    Read("tests/test_orders.py"),
    Run(TEST),
    Search("def gross"),
    Search("VAT"),
    Edit("shop/prices.py", "    return net + VAT", "    return net + net * VAT // 100"),
    Run(f"{TEST} tests.test_prices"),
    Search("reserve"),
    Read("shop/stock.py"),
    Edit("shop/stock.py", "        return count < self.left", "        return count <= self.left"),
    Run(f"{TEST} tests.test_stock"),
    Search("discount"),
    Read("shop/orders.py"),
    Edit("shop/orders.py", "    if cents > 10_000:", "    if cents >= 10_000:"),
    Run(f"{TEST} tests.test_orders"),
    Run(TEST),
    Edit("README.md", "Prices are net.", "Prices are gross: VAT is in them."),
    Read("README.md"),
    Write("CHANGES.md", "# Changes\n\n- VAT is a share, not a sum.\n- The last piece can be sold.\n"),
    Run("git status --short"),
    Run("git diff"),
    Run(f"git add --all && git commit --quiet --message '{COMMITTED}'"),
    Run("git show --stat"),
    Answer(DONE),
)

FILES = {
    ".gitignore": "__pycache__/\n",
    "README.md": "# A shop\n\nPrices are net.\nAmounts are cents.\n",
    "shop/__init__.py": "",
    "shop/prices.py": '''\
"""What things cost."""

VAT = 20  # percent


def gross(net: int) -> int:
    """Return a price with its tax."""
    return net + VAT
''',
    "shop/stock.py": '''\
"""What there is."""


class Stock:
    """So many pieces of a thing."""

    def __init__(self, left: int) -> None:
        self.left = left

    def can_reserve(self, count: int) -> bool:
        """Whether there are enough."""
        return count < self.left

    def reserve(self, count: int) -> None:
        """Take some, or raise `ValueError`."""
        if not self.can_reserve(count):
            raise ValueError(f"{count} of {self.left}")
        self.left -= count
''',
    "shop/orders.py": '''\
"""What people order."""

from shop.prices import gross


def discount(cents: int) -> int:
    """Return what an order is cheaper by: a tenth from 100.00 on."""
    if cents > 10_000:
        return cents // 10
    return 0


def total(net_prices: list[int]) -> int:
    """Return what an order costs."""
    cents = sum(gross(each) for each in net_prices)
    return cents - discount(cents)
''',
    "tests/__init__.py": "",
    "tests/test_prices.py": """\
from unittest import TestCase

from shop.prices import gross


class Prices(TestCase):
    def test_tax_is_a_share(self):
        self.assertEqual(gross(1000), 1200)

    def test_nothing_costs_nothing(self):
        self.assertEqual(gross(0), 0)
""",
    "tests/test_stock.py": """\
from unittest import TestCase

from shop.stock import Stock


class Stocks(TestCase):
    def test_the_last_piece_can_be_had(self):
        stock = Stock(1)
        stock.reserve(1)
        self.assertEqual(stock.left, 0)

    def test_there_is_no_more_than_there_is(self):
        self.assertRaises(ValueError, Stock(1).reserve, 2)
""",
    "tests/test_orders.py": """\
from unittest import TestCase

from shop.orders import discount, total


class Orders(TestCase):
    def test_a_discount_begins_at_100(self):
        self.assertEqual((discount(9_999), discount(10_000)), (0, 1_000))

    def test_a_total_has_tax_and_discount(self):
        self.assertEqual(total([10_000]), 10_800)
""",
}


def make_repository(folder: Path) -> None:
    """Put the repository into a folder, which may be there and empty."""
    for path, text in FILES.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    git(folder, "init", "--quiet", "--initial-branch", "main")
    for name, value in (("user.name", "Ada"), ("user.email", "ada@example.org"), ("commit.gpgsign", "false")):
        git(folder, "config", name, value)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "A shop")


def require_done(folder: Path) -> None:
    """Fail unless the tests pass, and what was changed is committed, and nothing else."""
    tests = subprocess.run(TEST.split(), cwd=folder, capture_output=True, text=True, check=False)
    assert tests.returncode == 0, tests.stderr
    changed = "CHANGES.md README.md shop/orders.py shop/prices.py shop/stock.py".split()
    assert git(folder, "log", "--format=%s").splitlines() == [COMMITTED, "A shop"]
    assert sorted(git(folder, "diff", "--name-only", "HEAD~").splitlines()) == changed
    assert git(folder, "status", "--short") == ""
    for step in STEPS:
        match step:
            case Edit(path, old, new):
                lines = (folder / path).read_text().splitlines()
                assert (new in lines, old in lines) == (True, False), path
            case Write(path, text):
                assert (folder / path).read_text() == text


def git(folder: Path, *arguments: str) -> str:
    """Run git, and return what it prints."""
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout
