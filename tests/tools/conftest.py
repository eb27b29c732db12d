"""What tests of tools share."""

from collections.abc import AsyncIterator

import pytest

from tests.tools.web_server import WebServer, web_server


@pytest.fixture
async def web() -> AsyncIterator[WebServer]:
    """A web server without pages."""
    async with web_server() as server:
        yield server
