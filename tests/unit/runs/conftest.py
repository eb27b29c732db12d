"""What tests of runs share beside `fakes`."""

import asyncio

import pytest

from tests.kit.fakes import Site
from tests.kit.sqlite import approvals, conversations, files, rollout_store, sqlite_alias  # noqa: F401 - fixtures
from tests.unit.runs.closing import all_sites_closed, closed  # noqa: F401 - fixtures


@pytest.fixture
def site() -> Site:
    """A service whose model says hello, and nothing else."""
    return Site()


@pytest.fixture
def gate() -> asyncio.Event:
    """An event for a model to wait for."""
    return asyncio.Event()
