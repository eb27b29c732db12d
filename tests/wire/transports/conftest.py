"""The servers that transport tests share (see `tests.kit.pool`), of each kind, ended behind these tests."""

from collections.abc import Iterator

import pytest

from tests.kit.admin_fixtures import admin, raw, sdk  # noqa: F401 - fixtures
from tests.kit.client_fixtures import Connect, http, open_socket, socket  # noqa: F401 - fixtures, and their type
from tests.kit.closed import ClosedServer
from tests.kit.fixtures import one, two  # noqa: F401 - fixtures
from tests.kit.pool import ServerPool
from tests.kit.server import KINDS, Server


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
