"""Two workers on one database, with Redis between them, that all tests here share."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.kit.browser import browser, page  # noqa: F401 - fixtures
from tests.kit.clients import http_client
from tests.kit.fixtures import two_of
from tests.kit.redis_server import RedisServer
from tests.kit.scripts import BEGIN, CALL, HELLO
from tests.kit.server import Server

LEASE = 2.0  # WORKER_LEASE_SECONDS, where one worker is to take over
THOUGHT = "<|channel|>analysis<|message|>Let me think about it.<|end|><|start|>assistant"
GATES = ("seen", "live", "watch", "admin")


def gated(folder: Path, name: str) -> dict[str, object]:
    """Return what is said to `[gate name]`: a thought and the beginning of an answer, the rest once it is released."""
    say = f"{THOUGHT}{BEGIN}Hello there, friend.<|return|>"
    return {"when": f"[gate {name}]", "say": say, "hang_after": 16, "wait_for_file": str(folder / f"gate-{name}")}


@contextmanager
def two_workers(folder: Path, redis: RedisServer, **settings: Any) -> Iterator[tuple[Server, Server]]:
    """Run two workers."""
    script = [
        *(gated(folder, name) for name in GATES),
        {"when": "[weather]", "say": f"{THOUGHT}{CALL}"},
        {"say": HELLO},
    ]
    first, second = two_of(folder, script=script, redis_url=redis.url, **settings)
    with first, second:
        yield first, second
        assert "Traceback" not in first.output + second.output


@pytest.fixture(scope="package")
def workers(tmp_path_factory: pytest.TempPathFactory, redis_server: RedisServer) -> Iterator[tuple[Server, Server]]:
    """Two workers that live; each test leaves them so."""
    with two_workers(tmp_path_factory.mktemp("watch"), redis_server) as workers:
        yield workers


@pytest.fixture
async def two(workers: tuple[Server, Server]) -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient]]:
    """A client of each worker."""
    async with http_client(workers[0]) as first, http_client(workers[1]) as second:
        yield first, second


@pytest.fixture(scope="package")
def folder_of(workers: tuple[Server, Server]) -> Path:
    """Where gates are released."""
    return workers[0].folder
