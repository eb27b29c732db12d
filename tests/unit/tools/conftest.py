"""What tests of tools share."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from responses_app.tools.base import BaseTool
from tests.kit.fakes import ANSWER, FakeEngine, FakeStore, Site
from tests.kit.image_server import ImageServer, image_server, image_tool
from tests.kit.sqlite import approvals, conversations, files, rollout_store, sqlite_alias  # noqa: F401 - fixtures
from tests.kit.web_server import WebServer, web_server
from tests.unit.runs.closing import all_sites_closed, closed  # noqa: F401 - fixtures
from tests.unit.tools.drawing import SiteOf


@pytest.fixture
async def web() -> AsyncIterator[WebServer]:
    async with web_server() as server:
        yield server


@pytest.fixture
async def images() -> AsyncIterator[ImageServer]:
    async with image_server() as server:
        yield server


@pytest.fixture
async def site_of(images: ImageServer) -> AsyncIterator[SiteOf]:
    """What makes a site whose model says some turns, and then answers."""
    tools: list[BaseTool] = []

    def made(*turns: str, **options: Any) -> Site:
        store = FakeStore()
        tools.append(image_tool(images, stored=store.items, **options))
        return Site(FakeEngine([*turns, ANSWER]), store, tools=tools[-1:])

    yield made
    for tool in tools:
        await tool.aclose()
