"""The servers that transport tests share: four of each kind, started when first needed, ended behind these tests.

`server` has small limits and answers everything; `impatient_server` gives connections a short life; `strict_server`
has few connections, takes one response at a time on each, beats fast, and drops slow readers soon. `closed` asks
everybody for a key.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from tests.kit.clients import Socket, http_client
from tests.kit.closed import ClosedServer
from tests.kit.databases import chosen_database
from tests.kit.scripts import LIMIT, flood_script, main_script
from tests.kit.server import KINDS, Server

# Seconds: far longer than what a test does within them takes on a machine that is busy.
LIFETIME = 3.0
WARNED_BEFORE = 2.0  # the end of life
LAST_GRACE = 4.0
NOISE = (
    "was never",
    "Task was destroyed",
    "Exception in ASGI",
    "Exception inside application",
    "Unhandled",
    "took too",
)
Connect = Callable[..., Awaitable[Socket]]


class ServerPool:
    """Starts each server once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._servers: dict[str, Server] = {}

    def get(self, name: str, kind: str) -> Server:
        """Return a server that runs."""
        key = f"{name}-{kind}-{chosen_database()}"
        if key not in self._servers:
            self._servers[key] = _MAKERS[name](self._folder / key, kind).start()
        return self._servers[key]

    def close(self) -> None:
        """End them all; whatever the tests did to them, no task or connection broke."""
        for server in self._servers.values():
            server.stop()
            noise = [line for line in server.output.splitlines() if any(word in line for word in NOISE)]
            assert not noise, f"{server.log}: {noise[:5]}"


def _main(folder: Path, kind: str) -> Server:
    return Server(
        folder,
        kind=kind,
        script=main_script(folder),
        engine_options={"max_model_len": 4000},
        journal=True,
        model_name="test-model",
        websocket_max_queued=4,
        websocket_max_message_bytes=LIMIT,
        max_body_bytes=LIMIT,
        responses_ping_interval_seconds=0,
    )


def _impatient(folder: Path, kind: str) -> Server:
    return Server(
        folder,
        kind=kind,
        script=main_script(folder),
        journal=True,
        websocket_lifetime_seconds=LIFETIME,
        websocket_warning_seconds=LIFETIME - WARNED_BEFORE,
        websocket_grace_seconds=LAST_GRACE,
    )


def _strict(folder: Path, kind: str) -> Server:
    return Server(
        folder,
        kind=kind,
        script=flood_script(folder),
        journal=True,
        max_websocket_connections=5,
        responses_ping_interval_seconds=0.2,
        websocket_busy="reject",
        stream_max_lag_bytes=512 * 1024,
        stream_stall_seconds=1,
    )


def _closed(folder: Path, kind: str) -> Server:
    return ClosedServer(folder, kind=kind, auth="on", model_name="m")


_MAKERS = {"main": _main, "impatient": _impatient, "strict": _strict, "closed": _closed}


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
def impatient_server(kind: str, pool: ServerPool) -> Server:
    """A server whose connections live for `LIFETIME`, and for `LAST_GRACE` more with a response running."""
    return pool.get("impatient", kind)


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
