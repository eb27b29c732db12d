"""The contract of engines over vLLM in this process; it is started once and shared.

Only this finds a version of vLLM that does not keep the contract in our process.
"""

import os
from unittest.mock import patch

import pytest
import pytest_asyncio

from engine.backends.base import BaseEngine
from engine.backends.vllm.local import VllmEngine
from engine.errors import EngineUnavailable
from tests.contracts.engine import EngineContract, StartedEngine
from tests.kit.waiting import eventually
from tests.system.vllm.engines import LocalEngine
from tests.system.vllm.server import ENGINE_OPTIONS, MODEL_FOLDER, descendants, engine_core, wait_until_gone
from tests.system.vllm.transcripts import prompt


class TestVllmEngineContract(EngineContract):
    @pytest.fixture
    def new_engine(self) -> VllmEngine:
        return VllmEngine(model=str(MODEL_FOLDER), options=ENGINE_OPTIONS)

    @pytest_asyncio.fixture(loop_scope="session")
    async def started(self, local_engine: StartedEngine) -> StartedEngine:
        return local_engine

    def short_prompt(self) -> list[int]:
        return prompt("say short")

    def long_prompt(self) -> list[int]:
        return prompt("say long")

    async def wait_until_idle(self, engine: BaseEngine) -> None:
        looked_at = LocalEngine(StartedEngine(engine, info=None))  # type: ignore[arg-type]
        await eventually(lambda: looked_at.running() == 0)

    test_it_is_unavailable_after_aclose = None  # part of the next one, which comes last: it closes the shared engine

    async def test_aclose_ends_what_runs(self, started: StartedEngine) -> None:
        core = engine_core(os.getpid())
        processes = [core, *descendants(core.pid)]
        with patch.object(started.engine, "start"):  # it runs already
            await super().test_aclose_ends_what_runs(started.engine)
        await started.engine.aclose()
        with pytest.raises(EngineUnavailable):
            await started.engine.start()
        await self.assert_unavailable(started.engine)
        wait_until_gone(processes)
