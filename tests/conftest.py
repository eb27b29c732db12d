"""What all tests share: the environment they start from, and servers that are started once."""

import os
import signal
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

# Where a shell has started these tests in the background it ignores Ctrl-C for them, and so for their servers.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Before Django's settings are read: tests never touch the data of the checkout they run in.
os.environ["DATA_DIR"] = tempfile.mkdtemp(prefix="respsite-tests-")
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "respsite.settings")

from tests.redis_server import private_redis_server, redis_of_the_module, shared_redis_server  # noqa: F401 - fixtures
from tests.server import KINDS, Server

collect_ignore = [] if find_spec("vllm") else ["vllm"]  # those run in the venv of `make test-vllm`


@pytest.fixture(scope="session", params=KINDS)
def demo_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the demo engine, of each kind; shared, so tests leave it as they find it."""
    with Server(tmp_path_factory.mktemp(f"demo-{request.param}"), kind=request.param) as server:
        yield server


@pytest.fixture(scope="session")
def daphne_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The demo engine under daphne alone, for what does not depend on the server's kind."""
    with Server(tmp_path_factory.mktemp("demo")) as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for a server of a test's own."""
    return tmp_path / "server"
