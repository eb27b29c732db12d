"""Two workers on one database, with Redis between them, that all tests here share."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from tests.kit.browser import browser  # noqa: F401 - a fixture
from tests.kit.clients import http_client
from tests.kit.redis_server import RedisServer
from tests.kit.scripts import BEGIN, CALL, HELLO
from tests.kit.server import Server

LEASE = 1.0  # WORKER_LEASE_SECONDS
THOUGHT = "<|channel|>analysis<|message|>Let me think about it.<|end|><|start|>assistant"
GATES = ("seen", "live", "watch", "admin")


def gated(folder: Path, name: str) -> dict[str, object]:
    """Return what is said to `[gate name]`: a thought and the beginning of an answer, the rest once it is released."""
    say = f"{THOUGHT}{BEGIN}Hello there, friend.<|return|>"
    return {"when": f"[gate {name}]", "say": say, "hang_after": 16, "wait_for_file": str(folder / f"gate-{name}")}


@pytest.fixture(scope="package")
def workers(tmp_path_factory: pytest.TempPathFactory, redis_server: RedisServer) -> Iterator[tuple[Server, Server]]:
    """Two workers; one that was killed is started again for the next test."""
    folder = tmp_path_factory.mktemp("watch")
    script = [
        *(gated(folder, name) for name in GATES),
        {"when": "[weather]", "say": f"{THOUGHT}{CALL}"},
        {"say": HELLO},
    ]
    settings = {"worker_lease_seconds": LEASE, "redis_url": redis_server.url}
    first, second = (Server(folder, script=script, **settings) for _ in range(2))  # type: ignore[arg-type]
    second.log = folder / "second.log"
    with first, second:
        yield first, second
        assert "Traceback" not in first.output + second.output


@pytest.fixture
async def two(workers: tuple[Server, Server]) -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient]]:
    """A client of each worker."""
    for worker in workers:
        if not worker.is_running:
            worker.start()
    async with http_client(workers[0]) as first, http_client(workers[1]) as second:
        yield first, second


@pytest.fixture(scope="package")
def folder_of(workers: tuple[Server, Server]) -> Path:
    """Where gates are released."""
    return workers[0].folder
