"""Servers in this process that tests share (see `tests.kit.pool`); one is active at a time, the others begin anew."""

from collections.abc import Iterator

import pytest

from tests.kit.admin_fixtures import admin, raw, sdk  # noqa: F401 - fixtures
from tests.kit.client_fixtures import Connect, http, open_socket, socket  # noqa: F401 - fixtures, and their type
from tests.kit.collector import Collector
from tests.kit.inprocess import ClosedServer, Server
from tests.kit.pool import ServerPool


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerPool]:
    """All shared servers."""
    servers = ServerPool(tmp_path_factory.mktemp("servers"), Server, ClosedServer)
    yield servers
    servers.close()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let no server be active beside the test database of Django: both are the default one of their process."""
    if "db" in getattr(item, "fixturenames", ()):
        Server.rest()


@pytest.fixture(scope="package", autouse=True)
def _nothing_active_behind() -> Iterator[None]:
    """Let no server go on behind a folder: what follows may use the database of its own."""
    yield
    Server.rest()


@pytest.fixture
def demo_server(pool: ServerPool) -> Server:
    """The demo engine; shared, so tests leave it as they find it."""
    return _of(pool, "demo")


@pytest.fixture
def server(pool: ServerPool) -> Server:
    """The server for most tests."""
    return _of(pool, "main")


@pytest.fixture
def strict_server(pool: ServerPool) -> Server:
    """A server that takes one response a connection, and has few connections."""
    return _of(pool, "strict")


@pytest.fixture
def closed(pool: ServerPool) -> ClosedServer:
    """A server that asks everybody for a key; it serves the model `m`."""
    server = _of(pool, "closed")
    assert isinstance(server, ClosedServer)
    return server


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector on loopback, to which servers that are made from now on send their spans."""
    with Collector() as collector:
        for name, value in collector.environ.items():
            monkeypatch.setenv(name, value)
        yield collector
        collector.shutdown()


def _of(pool: ServerPool, name: str) -> Server:
    server = pool.get(name, "in process")
    assert isinstance(server, Server)
    server.activate()
    return server
