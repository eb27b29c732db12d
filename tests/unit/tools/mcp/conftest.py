"""A server of tools, and what calls it."""

from collections.abc import AsyncIterator

import pytest

from responses_app.tools.mcp.tool import McpTool
from tests.kit.mcp_servers import McpServer, mcp_server, mcp_tool


@pytest.fixture
async def tool() -> AsyncIterator[McpTool]:
    async with mcp_tool() as tool:
        yield tool


@pytest.fixture
async def running() -> AsyncIterator[McpServer]:
    async with mcp_server() as server:
        yield server
