"""`EngineStarter`: what can pass is tried again, what cannot stops the server."""

import re
from collections.abc import AsyncGenerator

import pytest

from engine.backends.base import BaseEngine
from engine.errors import EngineConfigurationError, EngineUnavailable
from engine.types import EngineInfo, GenerationRequest, TokenChunk
from responses_app import engines
from responses_app.engines import EngineStarter
from tests.server import Server
from tests.waiting import eventually


class StubbornEngine(BaseEngine):
    """Fails to start with each of `failures`, then starts."""

    def __init__(self, *failures: Exception) -> None:
        super().__init__(model="stubborn")
        self.failures = list(failures)

    async def start(self) -> EngineInfo:
        if self.failures:
            raise self.failures.pop(0)
        return EngineInfo(backend="stubborn", model=self.model, max_model_len=10)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenChunk, None]:
        raise NotImplementedError
        yield

    async def aclose(self) -> None:
        """Nothing to close."""


async def test_an_engine_that_is_away_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "RETRY_SECONDS", (0,))
    ready: list[bool] = []
    engine = StubbornEngine(EngineUnavailable("away"), EngineUnavailable("away"))
    starter = EngineStarter(engine, ready=lambda: ready.append(True))
    starter.start()
    await starter.wait()
    assert starter.info is not None
    assert ready == [True]
    await starter.aclose()


async def test_an_engine_that_cannot_work_stops_the_server() -> None:
    stopped: list[bool] = []
    starter = EngineStarter(StubbornEngine(EngineConfigurationError("no model")), fatal=lambda: stopped.append(True))
    starter.start()
    await starter.wait()
    assert stopped == [True]
    assert starter.problem == "no model"
    await starter.aclose()


@pytest.mark.parametrize("kind", ["daphne", "uvicorn"])
async def test_a_missing_script_ends_the_process_with_one_sentence(folder, kind: str) -> None:  # type: ignore[no-untyped-def]
    server = Server(folder, kind=kind, engine="scripted", engine_script=folder / "missing.json")
    try:
        server.start(wait=False)
    except AssertionError as ended:  # it may end before it answers
        assert "the server ended" in str(ended)  # noqa: PT017
    assert server.process is not None
    await eventually(lambda: server.process is not None and server.process.poll() is not None)
    assert "cannot start" in server.output
    assert "missing.json" in server.output
    assert not re.search(r'File ".*/(engine|responses_app)/', server.output)  # Django logs a request that is cut off
