"""The report of a test that fails shows what its servers have logged and what went wrong on its pages: a pytest plugin.

PYTEST_DONT_REWRITE: what starts servers imports this before pytest takes it for a plugin.
"""

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Protocol
from weakref import WeakKeyDictionary

import pytest

MOST_LINES = 100  # of each server: the last ones


class HasLog(Protocol):
    """A server with a log."""

    log: Path


_seen: "WeakKeyDictionary[HasLog, int]" = WeakKeyDictionary()  # bytes of each log that were there when the test began
_problems: "WeakKeyDictionary[object, Sequence[str]]" = WeakKeyDictionary()  # of each page


def show_log(server: HasLog) -> None:
    """Show with each failure from now on what this server has logged in that test."""
    _seen[server] = 0


def show_problems(page: object, problems: Sequence[str]) -> None:
    """Show with each failure from now on what went wrong on this page."""
    _problems[page] = problems


@pytest.hookimpl(tryfirst=True)  # before any fixture begins a server
def pytest_runtest_setup() -> None:
    """Note where the logs end."""
    for server in list(_seen):
        _seen[server] = _size(server)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add logs and problems to the report of a phase that failed."""
    report = yield
    if report.failed:
        for server, seen in list(_seen.items()):
            lines = _lines_since(server, seen)
            if lines or not seen:
                text = "\n".join(lines[-MOST_LINES:]) or "nothing"
                report.sections.append((f"{server.log}, since the test began", text))
        for problems in list(_problems.values()):
            if problems:
                report.sections.append(("what went wrong on the page", "\n".join(problems)))
    return report


def _lines_since(server: HasLog, seen: int) -> list[str]:
    if not server.log.exists():
        return []
    with server.log.open("rb") as log:
        log.seek(seen)
        return log.read().decode(errors="replace").splitlines()


def _size(server: HasLog) -> int:
    return server.log.stat().st_size if server.log.exists() else 0
