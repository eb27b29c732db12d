"""Fixtures that a module of tests makes for itself, by one line."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.kit.server import Server


def module_server(name: str, make: Callable[..., Server] = Server, **settings: Any) -> Any:
    """Return a fixture: a server that all tests of a module share, in a folder of this name."""

    @pytest.fixture(scope="module")
    def server(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
        with make(tmp_path_factory.mktemp(name) / "server", **settings) as started:
            yield started
        assert "Traceback" not in started.output

    return server
