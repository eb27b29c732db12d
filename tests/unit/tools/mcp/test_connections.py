"""Connections to MCP servers that do not end as they should."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from responses_app.tools.mcp import connections
from responses_app.tools.mcp.connections import Connections, McpConnection
from tests.kit.waiting import eventually


@asynccontextmanager
async def without_farewell(_: McpConnection) -> AsyncIterator[object]:
    """A client whose server leaves its farewell unanswered."""
    yield object()
    await asyncio.Event().wait()


async def test_one_that_does_not_close_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CLOSE_SECONDS", 0.05)
    kept = Connections()
    async with kept.use("wiki", without_farewell) as first:
        await first.client()
    first.close()
    async with kept.use("wiki", without_farewell) as second:
        await second.client()
    assert second is not first
    await eventually(lambda: first.is_over)
    assert not second.is_over
    await kept.aclose()
    assert second.is_over


async def test_a_stop_ends_one_that_is_closing_still(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Connections()
    async with kept.use("wiki", without_farewell) as first:
        await first.client()
    first.close()
    async with kept.use("wiki", without_farewell):
        assert not first.is_over
    monkeypatch.setattr(connections, "CLOSE_SECONDS", 0.05)
    await kept.aclose()
    assert first.is_over
