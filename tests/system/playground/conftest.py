"""One server, one browser and one tab for all tests here; the tab begins anew with every test."""

import json
import sys
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.kit.browser import chromium, needs_chromium
from tests.kit.image_server import image_server
from tests.kit.search_servers import settings, small_web
from tests.kit.server import Server
from tests.kit.threads import in_a_thread
from tests.system.playground.browser import Playground, playground
from tests.system.playground.held import APPLICATION

PROGRAM = "tests.kit.mcp_program"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave these tests out where there is no browser."""
    for item in items:
        if "tests/system/playground/" in item.path.as_posix():
            item.add_marker(needs_chromium)


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The demo engine under daphne, with an MCP server, a web to search, and a service that paints."""
    with in_a_thread(small_web()) as web, in_a_thread(image_server()) as images:
        chosen = {
            "mcp_servers": json.dumps({"tests": f"{sys.executable} -m {PROGRAM}"}),
            "image_service_url": images.url,
            **settings(web),
        }
        with Server(tmp_path_factory.mktemp("playground"), application=APPLICATION, **chosen) as server:
            yield server


@pytest.fixture(scope="package")  # none of these tests has an event loop
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="package")
def tab(browser: Browser) -> Iterator[Playground]:
    """A tab of a desktop: a new one for each test would cost three times as much."""
    with playground(browser) as page:
        yield page


@pytest.fixture(scope="package")
def loaded(server: Server, browser: Browser) -> Iterator[Playground]:
    """A page that is loaded once, for tests of its modules."""
    with playground(browser) as page:
        yield page.open(server.url)


@pytest.fixture
def modules(loaded: Playground) -> Iterator[Playground]:
    """A page whose modules a test tries by themselves: it leaves the page as it is, but for what it appends."""
    loaded.page.evaluate("() => document.querySelector('.transcript').replaceChildren()")
    yield loaded
    assert loaded.problems == []


@pytest.fixture
def page(server: Server, tab: Playground) -> Iterator[Playground]:
    """The tab as on the first visit, connected; nothing may go wrong on it."""
    yield tab.open(server.url, anew=True)
    assert tab.problems == []
