"""The servers that transport tests share (see `tests.kit.pool`), of each kind, ended behind these tests."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack

import httpx
import pytest

from tests.kit.clients import Socket, http_client
from tests.kit.closed import ClosedServer
from tests.kit.pool import ServerPool
from tests.kit.server import KINDS, Server

Connect = Callable[..., Awaitable[Socket]]


@pytest.fixture(scope="package")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerPool]:
    """All shared servers."""
    servers = ServerPool(tmp_path_factory.mktemp("servers"))
    yield servers
    servers.close()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind of server."""
    return str(request.param)


@pytest.fixture
def server(kind: str, pool: ServerPool) -> Server:
    """The server for most tests."""
    return pool.get("main", kind)


@pytest.fixture
def strict_server(kind: str, pool: ServerPool) -> Server:
    """A server that takes one response a connection and drops who does not read for 1 s."""
    return pool.get("strict", kind)


@pytest.fixture
def closed(kind: str, pool: ServerPool) -> ClosedServer:
    """A server that asks everybody for a key; it serves the model `m`."""
    server = pool.get("closed", kind)
    assert isinstance(server, ClosedServer)
    return server


@pytest.fixture
async def open_socket() -> AsyncIterator[Connect]:
    """Open WebSockets that are closed at the end."""
    async with AsyncExitStack() as stack:

        async def open_one(to: Server, **options: object) -> Socket:
            return await stack.enter_async_context(await Socket.open(to.ws_url, **options))

        yield open_one


@pytest.fixture
async def socket(server: Server, open_socket: Connect) -> Socket:
    """A WebSocket to `server`."""
    return await open_socket(server)


@pytest.fixture
async def http(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client of `server`."""
    async with http_client(server) as client:
        yield client
