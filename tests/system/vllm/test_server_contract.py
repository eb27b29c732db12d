"""The contract of engines over a real vLLM server; each test has an engine of its own, and all share the server.

Only this finds a version of vLLM's server that does not keep the contract.
"""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from engine.backends.base import BaseEngine
from engine.backends.vllm.server import VllmServerEngine
from tests.contracts.engine import EngineContract, StartedEngine
from tests.kit.waiting import eventually
from tests.system.vllm.server import API_KEY, SERVED_MODEL, VllmServer
from tests.system.vllm.transcripts import prompt


class TestVllmServerEngineContract(EngineContract):
    @pytest.fixture(autouse=True)
    def server(self, vllm_server: VllmServer) -> None:
        self._server = vllm_server

    @pytest.fixture
    def new_engine(self, vllm_server: VllmServer) -> VllmServerEngine:
        return VllmServerEngine(model=SERVED_MODEL, options={"urls": [vllm_server.url], "api_key": API_KEY})

    @pytest_asyncio.fixture(loop_scope="session")
    async def started(self, new_engine: VllmServerEngine) -> AsyncIterator[StartedEngine]:
        """Start it on the loop of the tests."""
        yield StartedEngine(new_engine, await new_engine.start())
        await new_engine.aclose()

    def short_prompt(self) -> list[int]:
        return prompt("say short")

    def long_prompt(self) -> list[int]:
        return prompt("say long")

    async def wait_until_idle(self, engine: BaseEngine) -> None:
        await eventually(lambda: self._server.running() == 0)
