"""Only `make test-cluster` runs all of these; `make test` the smoke alone."""

import os
from collections.abc import Iterator

import pytest

from tests.cluster.cluster import Cluster

collect_ignore_glob = [] if os.environ.get("CLUSTER") else ["test_[!s]*.py", "test_soak.py"]
PACE = 10.0  # tokens a second: 200 streams of them are what two cores do beside their clients


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that every fault finds whole, and leaves whole."""
    with Cluster(tmp_path_factory.mktemp("cluster"), tokens_per_second=PACE) as cluster:
        yield cluster
