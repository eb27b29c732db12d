"""`EngineStarter`: what can pass is tried again, what cannot stops the server; and the clock that sites have."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.backends import base
from engine.backends.base import BaseEngine
from engine.errors import EngineConfigurationError, EngineError, EngineUnavailable
from engine.types import EngineInfo, GenerationRequest, TokenChunk
from responses_app.kit.clock import StoreClock, own_clock
from responses_app.settings.conf import from_environ
from responses_app.wiring.engines import REFUSED, Engines, EngineStarter
from responses_app.wiring.site import Site


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


@pytest.mark.parametrize("failure", [EngineUnavailable("away"), ConnectionResetError("a bug")])
async def test_an_engine_that_is_away_is_tried_again(
    failure: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(base, "RESTART_SECONDS", (0,))
    ready: list[bool] = []
    engine = StubbornEngine(failure, failure)
    starter = EngineStarter(engine, ready=lambda: ready.append(True))
    starter.start()
    await starter.wait()
    assert starter.info is not None
    assert ready == [True]
    assert caplog.text.count("trying again in 0 s") == 2
    assert ("Traceback" in caplog.text) is (not isinstance(failure, EngineError)), "what nobody expects says where"
    await starter.aclose()


async def test_an_engine_that_cannot_work_stops_the_server_and_the_log_alone_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stopped: list[bool] = []
    starter = EngineStarter(StubbornEngine(EngineConfigurationError("no model")), fatal=lambda: stopped.append(True))
    starter.start()
    await starter.wait()
    assert stopped == [True]
    assert await starter.trouble() == REFUSED
    assert "no model" in caplog.text
    await starter.aclose()


def several(folder: Path, *, fatal: Callable[[], None] = lambda: None, **entries: dict[str, object]) -> Engines:
    """Return the engines of these models; `scripted` without a script cannot start."""
    settings, _ = from_environ({"MODELS": json.dumps(entries), "DATA_DIR": str(folder)})
    return Engines(settings, fatal=fatal)


async def test_one_model_that_cannot_be_loaded_leaves_the_others_alone(tmp_path: Path) -> None:
    stopped: list[bool] = []
    wrong: dict[str, object] = {"engine": "scripted", "script": str(tmp_path / "missing.json")}
    engines = several(tmp_path, fatal=lambda: stopped.append(True), good={"engine": "demo"}, wrong=wrong)
    assert not engines.any_started
    engines.start()
    await asyncio.wait_for(engines.begun(), 60)
    assert engines.any_started
    troubles = await engines.troubles()
    assert troubles == {"wrong": REFUSED}
    assert stopped == []
    await engines.aclose()


async def test_where_none_can_be_loaded_the_server_stops(tmp_path: Path) -> None:
    stopped = asyncio.Event()
    wrong: dict[str, object] = {"engine": "scripted", "script": str(tmp_path / "missing.json")}
    engines = several(tmp_path, fatal=stopped.set, one=wrong, other=wrong)
    engines.start()
    await asyncio.wait_for(stopped.wait(), 60)  # the first in a process reads the vocabulary
    assert list(await engines.troubles()) == ["one", "other"]
    await engines.aclose()


def test_options_that_cannot_work_are_told_with_the_models_name(tmp_path: Path) -> None:
    with pytest.raises(EngineConfigurationError, match=r"^MODELS, 'b': The demo engine does not know 'speed'"):
        several(tmp_path, a={"engine": "demo"}, b={"engine": "demo", "options": {"speed": 1}}).check()


TTL, AHEAD = 300, 600.0


@pytest.mark.parametrize(("age", "forgotten"), [(0.0, False), (TTL - 10.0, False), (TTL + 10.0, True)])
@pytest.mark.parametrize("ahead", [AHEAD, -AHEAD])
def test_how_old_a_response_is_that_runs_is_judged_by_the_clock_that_dates_it(
    age: float, forgotten: bool, ahead: float
) -> None:
    """The store's clock is ten minutes from this machine's: a new response would be too old, or an old one new."""
    settings, _ = from_environ({"RESPONSES_STORE_TTL": str(TTL)})
    site = Site(settings)
    clock = site.service.now
    assert isinstance(clock, StoreClock)
    asked = own_clock()
    clock.heard(time.time() + ahead, asked=asked, answered=asked)
    plan = SimpleNamespace(stored=True, created_at=site.service.now() - age, origin=SimpleNamespace(project="p"))
    run: Any = SimpleNamespace(deleted=False, plan=plan)
    assert site.registry.is_forgotten(run) is forgotten
