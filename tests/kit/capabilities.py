"""Abilities of a machine that tests need: a sandbox, a browser, npm, a database.

A test says what it needs with the marker `needs("sandbox")`, or by `require("redis")` where it is about to use it.
Where a machine lacks that, the test is left out; the end of the run says of each ability, in one sentence, how many
tests were left out and why. Under `CI=true` the run fails then. TESTS_WITHOUT names abilities to do without, separated
by commas: so it would be on a machine that lacks them.

PYTEST_DONT_REWRITE: what starts servers imports this before pytest takes it for a plugin.
"""

import ctypes
import functools
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

START_SECONDS = 30.0
SERVICES = "make services installs it"
POSTGRES = Path("/usr/lib/postgresql")  # where Debian keeps one folder a version, outside PATH
# As the product starts it: a process in namespaces of its own.
BUBBLEWRAP = "bwrap --unshare-ipc --unshare-pid --unshare-net --unshare-uts --ro-bind / / --proc /proc --dev /dev true"

LANDLOCK_CREATE_RULESET = 444  # the system call; with 1 it returns the version
LANDLOCK_VERSION = 6  # of Linux 6.12, which sandlock needs


@dataclass(frozen=True)
class Ability:
    """Something that a machine may be unable to do."""

    lack: str  # the beginning of the sentence that says that it is
    reason: Callable[[], str]  # why it is; "" where it is not


def _no_sandbox() -> str:
    if shutil.which("bwrap") is None:
        return f"bubblewrap is not installed ({SERVICES})"
    try:
        done = subprocess.run(BUBBLEWRAP.split(), capture_output=True, text=True, timeout=START_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"bubblewrap did not start within {START_SECONDS:g} seconds"
    return "" if done.returncode == 0 else f"bubblewrap says: {done.stderr.strip()}"


def _no_sandlock() -> str:
    if find_spec("sandlock") is None:
        return "sandlock is not installed (the extra `sandlock`)"
    version = ctypes.CDLL(None).syscall(LANDLOCK_CREATE_RULESET, None, 0, 1)
    return "" if version >= LANDLOCK_VERSION else f"the kernel has version {max(0, version)} of Landlock"


def _no_program(name: str) -> str:
    return "" if program(name) else f"{name} is not installed ({SERVICES})"


def _no_proxy() -> str:
    return next(filter(None, map(_no_program, ("nginx", "caddy", "haproxy"))), "")


def _no_chromium() -> str:
    # `make services` installs the shell, which is a package of its own; whoever has the whole browser needs no other.
    return _no_program("chromium-headless-shell") and _no_program("chromium")


def program(name: str) -> str | None:
    """Return where a program is; Debian keeps those that serve outside the PATH of most users."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin")


def _no_postgres() -> str:
    if shutil.which("initdb") or any(POSTGRES.glob("*/bin/initdb")):
        return ""
    return f"PostgreSQL is not installed ({SERVICES})"


ABILITIES: Mapping[str, Ability] = {
    "sandbox": Ability("no sandbox can start here", _no_sandbox),
    "sandlock": Ability("no sandbox of sandlock can start here", _no_sandlock),
    "chromium": Ability("no browser can start here", _no_chromium),
    "node": Ability("no JavaScript can run here", functools.partial(_no_program, "node")),
    "npm": Ability("no package of npm can be installed here", functools.partial(_no_program, "npm")),
    "postgres": Ability("no PostgreSQL can start here", _no_postgres),
    "redis": Ability("no Redis can start here", functools.partial(_no_program, "redis-server")),
    "pgbouncer": Ability("no PgBouncer can start here", functools.partial(_no_program, "pgbouncer")),
    "proxies": Ability("not every proxy can start here", _no_proxy),
}
# Fixtures that start something: whoever uses one of them needs it.
FIXTURES = {
    **dict.fromkeys(("redis_server", "redis", "own_redis_server"), "redis"),
    **dict.fromkeys(("postgres_server", "own_postgres_server"), "postgres"),
    "browser": "chromium",
}


@functools.cache
def missing(name: str) -> str:
    """Return the sentence that says that this machine lacks an ability, and why; "" where it does not.

    It is found out once: processes that are forked behind that know it.
    """
    ability = ABILITIES[name]
    without = name in os.environ.get("TESTS_WITHOUT", "").split(",")
    reason = "TESTS_WITHOUT says so" if without else ability.reason()
    return reason and f"{ability.lack}, because {reason}"


def require(name: str) -> None:
    """Leave out the test that runs, if this machine lacks an ability."""
    if missing(name):
        pytest.skip(missing(name))


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", "needs(ability): left out where a machine lacks it (`tests.kit.capabilities`)")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is to be left out."""
    for item in items:
        marked = [str(marker.args[0]) for marker in item.iter_markers("needs")]
        used = [FIXTURES[name] for name in getattr(item, "fixturenames", ()) if name in FIXTURES]
        for name in dict.fromkeys([*marked, *used]):
            if missing(name):
                item.add_marker(pytest.mark.skip(reason=missing(name)))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail under CI where tests were left out: there the machine is to be able to do it all."""
    if os.environ.get("CI") == "true" and session.exitstatus == pytest.ExitCode.OK and _left_out(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True, tryfirst=True)  # so it comes last
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Generator[None, None, None]:
    """Say how many tests were left out for each reason."""
    yield
    for sentence, number in _left_out(config).items():
        failed = " CI=true makes that a failure." if os.environ.get("CI") == "true" else ""
        tests = "1 test was" if number == 1 else f"{number} tests were"
        terminalreporter.write_line(f"{tests} left out: {sentence}.{failed}", yellow=True)


def _left_out(config: pytest.Config) -> Counter[str]:
    """Return how many tests were left out for each reason, as the reports say that this process has."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    reports = reporter.stats.get("skipped", ()) if reporter is not None else ()
    reasons = [str(report.longrepr[2]).removeprefix("Skipped: ") for report in reports if report.longrepr]
    lacks = tuple(ability.lack for ability in ABILITIES.values())
    return Counter(reason for reason in reasons if reason.startswith(lacks))
