"""One server for all tests here; in each file one browser, and one tab that begins anew with every test."""

import json
import sys
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.kit.browser import browser, needs_chromium  # noqa: F401 - browser is a fixture
from tests.kit.image_server import image_server_in_thread
from tests.kit.search_servers import settings, small_web
from tests.kit.server import Server
from tests.kit.threads import in_a_thread
from tests.system.playground.browser import Playground, playground

PROGRAM = "tests.kit.mcp_program"
TOKENS_PER_SECOND = 150  # so slow that there is time to steer, and so fast that nobody waits


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave these tests out where there is no browser."""
    for item in items:
        if "tests/system/playground/" in item.path.as_posix():
            item.add_marker(needs_chromium)


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The demo engine under daphne, with an MCP server, a web to search, and a service that paints."""
    with in_a_thread(small_web()) as web, image_server_in_thread() as images:
        chosen = {
            "engine_options": json.dumps({"tokens_per_second": TOKENS_PER_SECOND}),
            "mcp_servers": json.dumps({"tests": f"{sys.executable} -m {PROGRAM}"}),
            "image_service_url": images.url,
            **settings(web),
        }
        with Server(tmp_path_factory.mktemp("playground"), **chosen) as server:
            yield server


@pytest.fixture(scope="module")
def tab(browser: Browser) -> Iterator[Playground]:  # noqa: F811 - the fixture
    """A tab of a desktop: a new one for each test would cost three times as much."""
    with playground(browser) as page:
        yield page


@pytest.fixture
def page(server: Server, tab: Playground) -> Iterator[Playground]:
    """The tab as on the first visit, connected; nothing may go wrong on it."""
    yield tab.open(server.url, anew=True)
    assert tab.problems == []
