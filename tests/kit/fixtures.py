"""Fixtures that a module of tests makes for itself, by one line."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from tests.kit.clients import http_client
from tests.kit.heartbeat import APPLICATION
from tests.kit.sdk import sdk_of
from tests.kit.server import KINDS, Server

Make = Callable[..., Server]
Pair = tuple[Server, Server]
HELLO = {"input": "Hello"}


def module_server(name: str, make: Make = Server, **settings: Any) -> Any:
    """Return a fixture: a server that all tests of a module share, in a folder of this name.

    The setting `script` may be what makes one for its folder.
    """

    @pytest.fixture(scope="module")
    def server(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
        yield from _served(tmp_path_factory.mktemp(name) / "server", make, settings)

    return server


def server_of_each_kind(name: str, make: Make = Server, **settings: Any) -> Any:
    """Return a fixture like that of `module_server`, of each kind of server."""

    @pytest.fixture(scope="module", params=KINDS)
    def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
        yield from _served(tmp_path_factory.mktemp(name) / "server", make, {"kind": request.param, **settings})

    return server


def measured_server(name: str, *, warm: dict[str, Any] = HELLO, **settings: Any) -> Any:
    """Return a fixture: a server of each kind that measures itself (`tests.kit.heartbeat`), and is warm."""

    @pytest.fixture(scope="module", params=KINDS)
    def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
        chosen = {"kind": request.param, "application": APPLICATION, **settings}
        folder = tmp_path_factory.mktemp(name) / "server"
        # uvicorn writes a traceback where a client breaks the protocol.
        for server in _served(folder, Server, chosen, noises=("Unhandled", "never retrieved", "RuntimeError")):
            server.post("/responses", **warm)
            yield server

    return server


def module_sdk(name: str = "server") -> Any:
    """Return a fixture: an unmodified SDK, a client of the server that another fixture of the module is."""

    # `database`: the server begins anew with another one, which pytest does not know of one that is asked for by name.
    @pytest.fixture(scope="module")
    def client(request: pytest.FixtureRequest, database: str) -> Iterator[OpenAI]:
        with sdk_of(request.getfixturevalue(name)) as client:
            yield client

    return client


def _served(
    folder: Path, make: Make, settings: dict[str, Any], *, noises: Sequence[str] = ("Traceback",)
) -> Iterator[Server]:
    """Run a server that logs none of these noises."""
    folder.mkdir()
    if callable(script := settings.get("script")):
        settings = {**settings, "script": script(folder)}
    with make(folder, **settings) as server:
        yield server
    for noise in noises:
        assert noise not in server.output, server.output[-3000:]


def two_of(folder: Path, make: Make = Server, **settings: Any) -> Pair:
    """Return two servers of one folder, not started."""
    first, second = make(folder, **settings), make(folder, **settings)
    second.log = folder / "second.log"
    return first, second


def module_pair(name: str, make: Make = Server, *, redis: bool = False, **settings: Any) -> Any:
    """Return a fixture: two workers of one folder that all tests of a module share, with Redis or without."""

    @pytest.fixture(scope="module")
    def pair(database: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
        places = {"redis_url": request.getfixturevalue("redis").url} if redis else {}
        pair = first, second = two_of(tmp_path_factory.mktemp(name), make, **places, **settings)
        with first, second:
            yield pair
        for noise in ("Traceback", "was never", " ERROR ", "locked"):
            assert noise not in first.output + second.output, (first.output + second.output)[-3000:]

    return pair


@pytest.fixture
async def one(pair: Pair) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the first."""
    async with http_client(pair[0]) as http:
        yield http


@pytest.fixture
async def two(pair: Pair) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the second."""
    async with http_client(pair[1]) as http:
        yield http
