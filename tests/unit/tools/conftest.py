"""What tests of tools share."""

from collections.abc import AsyncIterator

import pytest

from tests.kit.sqlite import approvals, conversations, files, rollout_store, sqlite_alias  # noqa: F401 - fixtures
from tests.kit.web_server import WebServer, web_server
from tests.unit.runs.closing import all_sites_closed, closed  # noqa: F401 - fixtures


@pytest.fixture
async def web() -> AsyncIterator[WebServer]:
    async with web_server() as server:
        yield server
