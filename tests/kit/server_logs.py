"""The report of a test that fails shows the lines that servers have logged since it began: a pytest plugin.

PYTEST_DONT_REWRITE: what starts servers imports this before pytest takes it for a plugin.
"""

from collections.abc import Generator
from pathlib import Path
from typing import Protocol
from weakref import WeakKeyDictionary

import pytest

MOST_LINES = 100  # of each server: the last ones


class HasLog(Protocol):
    """A server with a log."""

    log: Path


_seen: "WeakKeyDictionary[HasLog, int]" = WeakKeyDictionary()  # bytes of each log that were there when the test began


def print_with_failures(server: HasLog) -> None:
    """Print with each failure from now on what this server has logged in that test."""
    _seen[server] = _size(server)


@pytest.hookimpl(tryfirst=True)  # before any fixture begins a server
def pytest_runtest_setup() -> None:
    """Note where the logs end."""
    for server in list(_seen):
        _seen[server] = _size(server)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the logs to the report of a phase that failed."""
    report = yield
    for server, seen in list(_seen.items()) if report.failed else ():
        if _size(server) > seen:
            lines = server.log.read_bytes()[seen:].decode(errors="replace").splitlines()
            report.sections.append((f"{server.log}, since the test began", "\n".join(lines[-MOST_LINES:])))
    return report


def _size(server: HasLog) -> int:
    return server.log.stat().st_size if server.log.exists() else 0
