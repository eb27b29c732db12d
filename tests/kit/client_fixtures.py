"""Fixtures: clients of the fixture `server`, in process or on a wire, closed behind each test."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import httpx
import pytest

from tests.kit.clients import Socket, http_client
from tests.kit.server import Server

Connect = Callable[..., Awaitable[Socket]]


@pytest.fixture
async def open_socket() -> AsyncIterator[Connect]:
    """Open WebSockets that are closed at the end."""
    async with AsyncExitStack() as stack:

        async def open_one(to: Server, **options: object) -> Socket:
            return await stack.enter_async_context(await Socket.open(to.ws_url, **options))

        yield open_one


@pytest.fixture
async def socket(server: Server, open_socket: Connect) -> Socket:
    return await open_socket(server)


@pytest.fixture
async def http(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with http_client(server) as client:
        yield client
