"""One server and, in each file, one browser for all tests."""

import json
import sys
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.browser import browser, needs_chromium  # noqa: F401 - browser is a fixture
from tests.playground.browser import Playground, playground
from tests.server import Server

PROGRAM = "tests.tools.mcp.mcp_program"
TOKENS_PER_SECOND = 150  # so slow that there is time to steer, and so fast that nobody waits


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave these tests out where there is no browser."""
    for item in items:
        if "tests/playground/" in item.path.as_posix():
            item.add_marker(needs_chromium)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The demo engine under daphne, with an MCP server."""
    settings = {
        "engine_options": json.dumps({"tokens_per_second": TOKENS_PER_SECOND}),
        "mcp_servers": json.dumps({"tests": f"{sys.executable} -m {PROGRAM}"}),
    }
    with Server(tmp_path_factory.mktemp("playground"), **settings) as server:
        yield server


@pytest.fixture
def page(server: Server, browser: Browser) -> Iterator[Playground]:  # noqa: F811 - the fixture
    """A page that is connected; nothing may go wrong on it."""
    with playground(browser) as page:
        yield page.open(server.url)
        assert page.problems == []
