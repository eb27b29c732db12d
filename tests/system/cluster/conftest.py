"""Only `make test-cluster` runs all of these, each fault CLUSTER_TIMES times in a row; `make test` the smoke alone."""

import os
from collections.abc import Iterator

import pytest

from tests.system.cluster.cluster import Cluster
from tests.system.cluster.figures import table

collect_ignore_glob = [] if os.environ.get("CLUSTER") else ["test_[!s]*.py", "test_soak.py"]
PACE = 10.0  # tokens a second: 200 streams of them are what two cores do beside their clients
TIMES = int(os.environ.get("CLUSTER_TIMES") or 3)


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), tokens_per_second=PACE) as cluster:
        yield cluster


@pytest.fixture(params=range(1, TIMES + 1), ids="time-{}".format)
def time_in_a_row(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def cluster(installation: Cluster, time_in_a_row: int) -> Cluster:
    """A cluster that every fault finds whole, and leaves whole."""
    return installation


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the figures of all faults."""
    lines = table()
    if lines:
        terminalreporter.section("figures of the faults")
        for line in lines:
            terminalreporter.write_line(line)
