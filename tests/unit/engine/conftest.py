"""Fixtures of the engines' tests: fake vLLM servers, and engines over them, closed at the end."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack

import pytest

from engine.backends.vllm import replica
from engine.backends.vllm.server import VllmServerEngine
from tests.kit.fake_vllm import FakeVllm
from tests.unit.engine.vllm_engines import SCRIPT, OpenEngine, OpenFake, OpenPool, over


@pytest.fixture
async def open_fake(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OpenFake]:
    monkeypatch.setattr(replica, "WAITS", (0, 0.02))
    async with AsyncExitStack() as stack:

        async def open_one(*script: dict[str, object], **switches: object) -> FakeVllm:
            return await stack.enter_async_context(FakeVllm(*(script or SCRIPT), **switches))

        yield open_one


@pytest.fixture
async def fake(open_fake: OpenFake) -> FakeVllm:
    return await open_fake()


@pytest.fixture
async def vllm_over() -> AsyncIterator[OpenEngine]:
    opened: list[VllmServerEngine] = []

    async def open_one(*fakes: FakeVllm, **options: object) -> VllmServerEngine:
        engine = over(*fakes, **options)
        opened.append(engine)
        await engine.start()
        return engine

    yield open_one
    for engine in opened:
        await engine.aclose()


@pytest.fixture
async def engine(fake: FakeVllm, vllm_over: OpenEngine) -> VllmServerEngine:
    return await vllm_over(fake)


@pytest.fixture
def pool(open_fake: OpenFake, vllm_over: OpenEngine) -> OpenPool:
    """Start so many servers, each with this script and these switches, and an engine over them with `options`."""

    async def open_pool(
        count: int, *script: dict[str, object], options: Mapping[str, object] = {}, **switches: object
    ) -> tuple[list[FakeVllm], VllmServerEngine]:
        fakes = [await open_fake(*script, **switches) for _ in range(count)]
        return fakes, await vllm_over(*fakes, **options)

    return open_pool
