"""Fixtures of the engines' tests: fake vLLM servers, and engines over them, closed at the end."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from engine.backends.vllm import replica
from engine.backends.vllm.server import VllmServerEngine
from tests.kit.fake_vllm import FakeVllm
from tests.unit.engine.vllm_engines import SCRIPT, OpenEngine, OpenFake, over


@pytest.fixture
async def open_fake(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OpenFake]:
    """Start servers, and kill them at the end; engines look at one that is away every 20 ms."""
    monkeypatch.setattr(replica, "WAITS", (0, 0.02))
    async with AsyncExitStack() as stack:

        async def open_one(*script: dict[str, object], **switches: object) -> FakeVllm:
            return await stack.enter_async_context(FakeVllm(*(script or SCRIPT), **switches))

        yield open_one


@pytest.fixture
async def fake(open_fake: OpenFake) -> FakeVllm:
    """One server with everything."""
    return await open_fake()


@pytest.fixture
async def vllm_over() -> AsyncIterator[OpenEngine]:
    """Start engines over servers, and close them at the end."""
    opened: list[VllmServerEngine] = []

    async def open_one(*fakes: FakeVllm, **options: object) -> VllmServerEngine:
        engine = over(*fakes, **options)
        opened.append(engine)
        await engine.start()
        return engine

    yield open_one
    for engine in opened:
        await engine.aclose()
