"""vLLM in this process: what an operator can get wrong, and closing an engine that is still starting.

Only this finds a process of vLLM that outlives a start which was broken off.
"""

import asyncio
import multiprocessing
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import psutil
import pytest
from vllm.utils import system_utils

from engine.backends import base
from engine.backends.vllm import async_llm as vllm_outputs
from engine.backends.vllm import config as vllm_config
from engine.backends.vllm import core as vllm_core
from engine.backends.vllm import local as vllm_local
from engine.backends.vllm.local import VllmEngine
from engine.backends.vllm.shared_core import CoreHost
from engine.errors import EngineConfigurationError, EngineOverloaded, EngineUnavailable, GenerationFailed
from engine.types import EngineInfo
from tests.kit.waiting import eventually
from tests.system.vllm.server import (
    ENGINE_OPTIONS,
    MAX_MODEL_LEN,
    MODEL_FOLDER,
    START_SECONDS,
    descendants,
    wait_until_gone,
)


class TestOptions:
    """What an operator can get wrong with vLLM in this process: one sentence each."""

    async def refusal(self, model: Path = MODEL_FOLDER, options: Mapping[str, object] | None = None) -> str:
        """Return what the engine says at its start."""
        engine = VllmEngine(model=str(model), options={**ENGINE_OPTIONS, **(options or {})})
        with pytest.raises(EngineConfigurationError) as refused:
            await engine.start()
        await engine.aclose()
        sentence = str(refused.value)
        assert sentence.endswith(".")
        assert "\n" not in sentence
        assert len(sentence) < 500
        return sentence

    @pytest.mark.parametrize(
        ("options", "named"),
        [
            ({"max_model_length": 1}, ["'max_model_length'", "'max_model_len' is one"]),
            ({"colour": "red"}, ["'colour'", "AsyncEngineArgs"]),
            ({"model": "other"}, ["'model'", "MODEL"]),
            ({"max_model_len": "lots"}, ["max_model_len", "valid integer"]),
            ({"max_model_len": 10**9}, ["max_model_len", str(MAX_MODEL_LEN)]),
            ({"dtype": "float99"}, ["dtype"]),
        ],
        ids=str,
    )
    async def test_a_wrong_option(self, options: Mapping[str, object], named: list[str]) -> None:
        sentence = await self.refusal(options=options)
        assert [name for name in named if name not in sentence] == [], sentence

    @pytest.mark.parametrize(
        ("option", "sentence"),
        [({"max_model_length": 1}, "'max_model_len' is one"), ({"data_parallel_size": 2}, "data_parallel_size")],
        ids=["the same sentence", "a shared core is one"],
    )
    def test_the_host_of_a_shared_core_refuses_them(
        self, option: dict[str, int], sentence: str, tmp_path: Path
    ) -> None:
        options = {**ENGINE_OPTIONS, **option}
        host = CoreHost(model=str(MODEL_FOLDER), options=options, path=str(tmp_path / "core"), places=2)
        with pytest.raises(EngineConfigurationError, match=sentence):
            host.start()
        host.close()

    async def test_folders_that_hold_no_gpt_oss(self, tmp_path: Path) -> None:
        assert "is not a folder on this machine" in await self.refusal(tmp_path / "missing")
        assert "a folder without a model" in await self.refusal(tmp_path)
        config = tmp_path / "config.json"
        config.write_text("{")
        assert "a folder without a model" in await self.refusal(tmp_path)
        config.write_text('{"model_type": "qwen2"}')
        assert "is a qwen2 model; with MODEL_FORMAT=harmony it must be gpt_oss" in await self.refusal(tmp_path)

    async def test_without_vllm(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(vllm_local, "find_spec", lambda _: None)
        assert "make install-vllm" in await self.refusal()

    async def test_a_model_that_cannot_be_loaded(self) -> None:
        before = engine_cores()
        assert "could not load the model" in await self.refusal(options={"load_format": "no such format"})
        assert engine_cores() == before


class TestWhatVllmSays:
    """Exceptions of vLLM → errors of the contract, where no real vLLM raises them at will."""

    async def test_a_full_queue_is_overloaded(self) -> None:
        from vllm.exceptions import QueueOverflowError

        assert isinstance(vllm_outputs.translated(QueueOverflowError()), EngineOverloaded)

    async def test_a_generation_that_breaks_names_its_cause(self) -> None:
        from vllm.v1.engine.exceptions import EngineGenerateError

        error = EngineGenerateError()
        error.__cause__ = KeyError("somewhere\ninside")
        translated = vllm_outputs.translated(error)
        assert isinstance(translated, GenerationFailed)
        assert "KeyError" in str(translated)

    async def test_a_restart_that_fails_is_tried_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        engine = VllmEngine(model=str(MODEL_FOLDER), options=ENGINE_OPTIONS)
        monkeypatch.setattr(base, "RESTART_SECONDS", (0.0, 0.01))
        outcomes = [EngineConfigurationError("no"), EngineUnavailable("no"), EngineUnavailable("no"), "an AsyncLLM"]
        with patch.object(engine._kept.core, "load", side_effect=outcomes) as load:
            await engine._kept._restart()
        assert load.await_count == 4
        assert engine._kept.llm == "an AsyncLLM"


class TestClosingWhileItStarts:
    async def test_while_nothing_is_loaded_yet(self) -> None:
        engine = VllmEngine(model=str(MODEL_FOLDER), options=ENGINE_OPTIONS)
        starting = asyncio.create_task(engine.start())
        await asyncio.sleep(0)
        await self.assert_close_ends_it(engine, starting, engine_cores())

    async def test_while_the_hub_does_not_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked, answer = threading.Event(), threading.Event()

        def configure(*_: object) -> tuple[object, object]:
            asked.set()
            answer.wait(timeout=60)
            return None, None

        monkeypatch.setattr(vllm_config, "configure", configure)
        engine = VllmEngine(model="hub/model", options={})
        starting = asyncio.create_task(engine.start())
        await eventually(asked.is_set)
        async with asyncio.timeout(1):
            await engine.aclose()
        answer.set()
        await self.assert_close_ends_it(engine, starting, engine_cores())

    async def test_while_a_worker_loads_the_model(self) -> None:
        before = engine_cores()
        options = {**ENGINE_OPTIONS, "distributed_executor_backend": "mp"}
        engine = VllmEngine(model=str(MODEL_FOLDER), options=options)
        starting = asyncio.create_task(engine.start())
        await eventually(lambda: any(descendants(pid) for pid in engine_cores() - before), timeout=START_SECONDS)
        (core,) = engine_cores() - before
        processes = descendants(core)
        await self.assert_close_ends_it(engine, starting, before)
        wait_until_gone(processes)

    async def test_while_nobody_waits_for_the_start_any_more(self) -> None:
        """A server that stops cancels its start first."""
        before = engine_cores()
        engine = VllmEngine(model=str(MODEL_FOLDER), options=ENGINE_OPTIONS)
        starting = asyncio.create_task(engine.start())
        await eventually(lambda: engine_cores() > before, timeout=START_SECONDS)
        starting.cancel()
        await asyncio.wait([starting])
        await engine.aclose()
        assert engine_cores() == before

    async def test_while_a_core_ends_by_itself(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loading = asyncio.get_running_loop().create_future()

        def end(pid: int) -> None:
            """Find out, while its children are looked for, that it is gone."""
            loading.set_result(None)
            raise psutil.NoSuchProcess(pid)

        monkeypatch.setattr(system_utils, "kill_process_tree", end)
        monkeypatch.setattr(multiprocessing, "active_children", lambda: [SimpleNamespace(name="EngineCore", pid=1)])
        await vllm_core._abandon(loading, ())
        assert loading.done()

    async def assert_close_ends_it(
        self, engine: VllmEngine, starting: "asyncio.Task[EngineInfo]", before: set[int]
    ) -> None:
        """Assert that closing takes no longer than it may, and leaves no process."""
        async with asyncio.timeout(vllm_core.CORE_STOP_SECONDS):
            await engine.aclose()
        async with asyncio.timeout(60):  # an import of vLLM cannot be interrupted
            with pytest.raises(EngineUnavailable):
                await starting
        assert engine_cores() == before
        await engine.aclose()


def engine_cores() -> set[int]:
    """Return the engine cores of this process."""
    return {process.pid for process in multiprocessing.active_children() if process.pid}
