"""How long tests take: the slowest are printed at the end of a run, and what is too long fails `make check`.

Each run with `--at-once` keeps the seconds of its tests in pytest's cache, beside those of earlier runs. Any other run
brings entries down only: of a few tests the first pays for what all share, a server or a browser. So whoever has
shortened a test runs it once more. Tests that fail are not kept.

    python -m tests.kit.durations       looks at the record: nothing is printed if there is none, or all is well
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / ".pytest_cache" / "durations.json"
SCHEDSTAT = Path("/proc/thread-self/schedstat")  # seconds on a processor and before one, in nanoseconds
SHOWN = 100  # of the slowest, at the end of a run
MOST_SECONDS = 5.0  # of a test outside `tests/system`, with its fixtures, beside the other processes of the run
# The seconds of all tests of a folder, added up: of four processes on two cores, so four seconds are about one.
BUDGETS = {
    "tests/clients": 180,
    "tests/contracts": 350,
    "tests/inprocess": 450,
    "tests/project": 150,
    "tests/system": 2600,
    "tests/unit": 800,
    "tests/wire": 1200,
}
# Files whose tests are still to be shortened, or to be moved to `tests/system`. No file is added here.
STILL_LONG = frozenset(
    f"tests/{name}.py"
    for name in """
    clients/javascript/test_javascript clients/python_clients/test_python_clients clients/test_keys
    contracts/adapters/test_audit contracts/adapters/test_migrations contracts/adapters/test_rates
    contracts/adapters/test_store_at_once contracts/adapters/test_store_database
    contracts/adapters/test_version_0012 inprocess/audit/test_audit inprocess/goldens/test_goldens
    inprocess/roles/test_matrix inprocess/transports/test_forget inprocess/transports/test_spend_limits
    project/docs/test_reference project/docs/test_site project/test_limits unit/tools/egress/test_proxy
    unit/tools/egress/test_tls unit/tools/sandbox/test_escapes unit/tools/sandbox/test_resting
    unit/tools/sandbox/test_session wire/admin/test_login wire/admin/test_server wire/command_line/test_conformance
    wire/command_line/test_doctor wire/command_line/test_program wire/command_line/test_sandboxes
    wire/conformance/test_resuming_sdk wire/conformance/test_turns_sdk wire/test_everywhere wire/test_serve
    wire/transports/test_agents wire/transports/test_batch_keys wire/transports/test_bodies
    wire/transports/test_drain wire/transports/test_effects wire/transports/test_engine_doors
    wire/transports/test_exposure wire/transports/test_fair_containers wire/transports/test_images
    wire/transports/test_limits wire/transports/test_metrics wire/transports/test_openapi
    wire/transports/test_programs wire/transports/test_rate_limits wire/transports/test_ready
    wire/transports/test_resume wire/transports/test_rollout_laws
    wire/transports/test_rollout_weights wire/transports/test_shared_keys wire/transports/test_slow_readers
    wire/transports/test_small_frames wire/transports/test_takeover wire/transports/test_usage_kept
    wire/transports/test_vllm_server_engine wire/transports/test_waiting wire/transports/test_websocket_load
    wire/watch/test_page wire/watch/test_watching
    """.split()
)


def folder_of(nodeid: str) -> str:
    """Return the folder that a test counts for: `tests/wire`."""
    return "/".join(nodeid.split("/")[:2])


def waited_seconds() -> float:
    """Return how long this thread has waited for a processor that others had; 0 where the system does not say."""
    return int(SCHEDSTAT.read_text().split()[1]) / 1e9 if SCHEDSTAT.exists() else 0.0


class Durations:
    """Adds up the seconds of each test. In a run with several processes it is the first that hears of all.

    The seconds in which the test's thread waited for a processor are left out: they tell of the other processes.
    """

    def __init__(self, *, is_whole: bool) -> None:
        self.seconds: Counter[str] = Counter()
        self._is_whole = is_whole
        self._failed: set[str] = set()
        self._waited = 0.0
        self._files: set[str] = set()
        self._tests: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        """Begin to count what a test waits."""
        self._waited = waited_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Take from the duration of a phase what it has waited."""
        report = yield
        waited = waited_seconds()
        report.duration = max(0.0, report.duration - (waited - self._waited))
        self._waited = waited
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the duration of a phase."""
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the slowest tests, each with its file, and the sum of each folder."""
        if len(self.seconds) <= 1:
            return
        write = terminalreporter.write_line
        slow = [(nodeid, seconds) for nodeid, seconds in self.seconds.most_common(SHOWN) if seconds >= 1]
        terminalreporter.section(f"the slowest of {len(self.seconds)} tests, from 1 second")
        for nodeid, seconds in slow:
            write(f"{seconds:7.1f}  {nodeid}")
        write("")
        for folder, seconds in sums(self.seconds).most_common():
            write(f"{seconds:7.0f}  {folder}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Note which tests there are in the files that were collected whole, before any is left out."""
        if any("::" in argument for argument in config.args):
            return
        self._files |= {item.nodeid.partition("::")[0] for item in items}
        self._tests |= {item.nodeid for item in items}

    def _may_be_there(self, nodeid: str) -> bool:
        """Whether there may be such a test still: neither its file nor its name is gone."""
        file = nodeid.partition("::")[0]
        return nodeid in self._tests if file in self._files else (ROOT / file).exists()

    def pytest_sessionfinish(self) -> None:
        """Keep the durations for `make check`."""
        if self.seconds:
            kept = {nodeid: value for nodeid, value in read().items() if self._may_be_there(nodeid)}
            for nodeid, seconds in self.seconds.items():
                if nodeid not in self._failed and (self._is_whole or seconds < kept.get(nodeid, 0.0)):
                    kept[nodeid] = round(seconds, 3)
            RECORD.parent.mkdir(exist_ok=True)
            draft = RECORD.with_suffix(f".{os.getpid()}")
            draft.write_text(json.dumps(kept))
            draft.replace(RECORD)


def pytest_configure(config: pytest.Config) -> None:
    """Listen in the process that hears of all tests."""
    if not config.option.collectonly and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations(is_whole=config.option.at_once > 1), "durations-of-tests")


def sums(seconds: Mapping[str, float]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for nodeid, of_one in seconds.items():
        sums[folder_of(nodeid)] += of_one
    return sums


def read() -> dict[str, float]:
    """Return the seconds of each test in the record, by its id."""
    return dict(json.loads(RECORD.read_text())) if RECORD.exists() else {}


def complaints(seconds: Mapping[str, float]) -> Iterator[str]:
    """Yield a sentence for each test that is too long for its folder, and each folder that is over its budget."""
    for nodeid, of_one in sorted(seconds.items(), key=lambda item: -item[1]):
        if (
            of_one > MOST_SECONDS
            and folder_of(nodeid) != "tests/system"
            and nodeid.partition("::")[0] not in STILL_LONG
        ):
            yield (
                f"{nodeid} took {of_one:.1f} s. A test over {MOST_SECONDS:.0f} s lives in tests/system, and its "
                "docstring names the fault that only it finds. If you have shortened it, run it once more."
            )
    for folder, total in sums(seconds).items():
        if total > BUDGETS.get(folder, total):
            budget = f"their budget in tests/kit/durations.py is {BUDGETS[folder]} s"
            yield f"The tests of {folder} took {total:.0f} s, and {budget}."


if __name__ == "__main__":
    found = list(complaints(read()))
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))
