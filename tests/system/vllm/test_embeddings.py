"""The contract of embeddings over a real vLLM with a pooling model, whose weights are dummies.

There is one engine core: vLLM's own server answers from the engine that is in this process. Only this finds vectors or
refusals of a real vLLM that are not as the contract says.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from engine.backends.vocabulary_folder import write_vocabulary
from engine.embeddings.base import BaseEmbeddings
from engine.embeddings.vllm_local import VllmEmbeddings
from engine.embeddings.vllm_server import VllmServerEmbeddings
from engine.errors import EngineConfigurationError, EngineUnavailable
from tests.contracts.embeddings import EmbeddingsContract, embed
from tests.kit.server import ROOT, clean_environ, free_port
from tests.kit.waiting import eventually
from tests.system.vllm.server import API_KEY, EXECUTOR, START_SECONDS, descendants, wait_until_gone

MODEL = "embedding-model"
FOLDER = Path(__file__).parent / "embedding_model"
MAX_MODEL_LEN = 2048


def options_with(vocabulary: Path) -> dict[str, object]:
    """Return the options of a dummy that needs no accelerator."""
    return {
        **{"tokenizer": str(vocabulary), "load_format": "dummy", "dtype": "float32", "enforce_eager": True},
        **{"max_model_len": MAX_MODEL_LEN, "distributed_executor_backend": EXECUTOR},
    }


def cores() -> list[psutil.Process]:
    return [child for child in descendants(os.getpid()) if "EngineCore" in " ".join(child.cmdline())]


@pytest.fixture(scope="module")
def foreign() -> list[psutil.Process]:
    """The engine cores that were there before: of other tests."""
    return cores()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def local(
    foreign: list[psutil.Process], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[VllmEmbeddings]:
    vocabulary = tmp_path_factory.mktemp("vocabulary")
    write_vocabulary(vocabulary)
    engine = VllmEmbeddings(model=str(FOLDER), options=options_with(vocabulary))
    async with asyncio.timeout(START_SECONDS):
        info = await engine.start()
    assert (info.model, info.max_model_len) == (str(FOLDER), MAX_MODEL_LEN)
    yield engine
    await engine.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(local: VllmEmbeddings) -> AsyncIterator[str]:
    """The address of vLLM's own server, which asks the same engine."""
    import uvicorn
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    llm: Any = local._kept.llm
    arguments = ["--model", str(FOLDER), "--served-model-name", MODEL, "--api-key", API_KEY, "--runner", "pooling"]
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(arguments)
    tasks = await llm.get_supported_tasks()
    app = build_app(args, tasks, llm.model_config)
    await init_app_state(llm, app.state, args, tasks)
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning", lifespan="off"))
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
    serving = asyncio.create_task(server.serve())
    await eventually(lambda: server.started, timeout=START_SECONDS)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    await serving


class TestVllmServer(EmbeddingsContract):
    max_model_len = MAX_MODEL_LEN

    @pytest.fixture
    def new_engine(self, served: str) -> VllmServerEmbeddings:
        return VllmServerEmbeddings(model=MODEL, options={"urls": (served,), "api_key": API_KEY})

    @pytest_asyncio.fixture(loop_scope="session")  # the tests' own, in this folder
    async def engine(self, new_engine: VllmServerEmbeddings) -> AsyncIterator[BaseEmbeddings]:
        info = await new_engine.start()
        assert (info.model, info.max_model_len) == (MODEL, MAX_MODEL_LEN)
        yield new_engine
        await new_engine.aclose()

    async def test_its_vectors_are_those_of_the_engine(
        self, engine: VllmServerEmbeddings, local: VllmEmbeddings
    ) -> None:
        assert engine.dimensions == local.dimensions == 64
        for given, tokens in (("text", 4), ([1, 2, 3], 3)):  # the vocabulary has no merges: a token a byte
            theirs, ours = [await embed(each, given) for each in (engine, local)]
            assert theirs.tokens == ours.tokens == tokens
            assert list(theirs.vectors[0]) == pytest.approx(list(ours.vectors[0]), abs=1e-5)


class TestVllmInProcess(EmbeddingsContract):
    max_model_len = MAX_MODEL_LEN

    @pytest.fixture
    def new_engine(self) -> VllmEmbeddings:
        return VllmEmbeddings(model=str(FOLDER))

    @pytest_asyncio.fixture(loop_scope="session")
    async def engine(self, local: VllmEmbeddings) -> VllmEmbeddings:
        return local

    async def test_an_option_that_vllm_does_not_know(self) -> None:
        engine = VllmEmbeddings(model=str(FOLDER), options={"max_model_length": 1})
        with pytest.raises(EngineConfigurationError, match=r"EMBEDDINGS_OPTIONS has 'max_model_length', .* is one"):
            await engine.start()
        await engine.aclose()

    async def test_who_gives_up_ends_what_vllm_does(self, local: VllmEmbeddings) -> None:
        asking = asyncio.create_task(embed(local, *[[token] * 2000 for token in range(100, 160)]))
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert not local._kept.llm.output_processor.has_unfinished_requests()
        assert await embed(local, "text")

    async def test_before_the_start_and_behind_the_end(  # type: ignore[override]
        self, new_engine: VllmEmbeddings, local: VllmEmbeddings, foreign: list[psutil.Process]
    ) -> None:
        """The last one: it closes the engine that all share."""
        with pytest.raises(EngineUnavailable):
            await embed(new_engine, "text")
        await new_engine.aclose()
        (core,) = [each for each in cores() if each not in foreign]
        processes = [core, *descendants(core.pid)]
        await local.aclose()
        await local.aclose()
        for asked in (local.health(), embed(local, "text"), local.start()):
            with pytest.raises(EngineUnavailable):
                await asked
        wait_until_gone(processes)


def test_a_server_with_an_embedding_model_in_its_process_has_not_loaded_torch() -> None:
    """Nothing is imported before an engine starts."""
    code = (
        "import sys, django; django.setup()\n"
        "import respsite.asgi\n"
        "assert 'engine.embeddings.vllm_local' in sys.modules, 'it is not made'\n"
        "assert not {'torch', 'vllm'} & set(sys.modules)\n"
    )
    environ = clean_environ(EMBEDDINGS_MODEL=str(FOLDER))
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environ, check=True, timeout=60)
