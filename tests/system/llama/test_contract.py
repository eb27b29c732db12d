"""The contract of engines over a real llama-server; each test has an engine of its own, and all share the server.

Only this finds a llama-server that keeps its own interface in another way than our fake of it.
"""

import pytest

from engine.backends.base import BaseEngine
from engine.backends.llama.server import LlamaServerEngine
from tests.contracts.engine import EngineContract
from tests.kit.waiting import eventually
from tests.system.llama.conftest import engine_over
from tests.system.llama.model import LONG, SHORT, prompt
from tests.system.llama.server import LlamaServer


class TestLlamaServerEngineContract(EngineContract):
    @pytest.fixture(autouse=True)
    def server(self, llama: LlamaServer) -> None:
        self._server = llama

    @pytest.fixture
    def new_engine(self, llama: LlamaServer) -> LlamaServerEngine:
        return engine_over(llama)

    def short_prompt(self) -> list[int]:
        return prompt(SHORT)

    def long_prompt(self) -> list[int]:
        return prompt(LONG)

    async def wait_until_idle(self, engine: BaseEngine) -> None:
        await eventually(lambda: self._server.running() == 0)
