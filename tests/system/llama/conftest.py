"""A llama-server for the tests here, started when the first one needs it, and a server of ours over it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from engine.backends.llama.server import LlamaServerEngine
from tests.kit.sdk import MODEL, sdk_of
from tests.kit.server import Server
from tests.system.llama.model import CONTEXT, write_harmony_model
from tests.system.llama.server import API_KEY, LEFT_OUT, PROGRAM, LlamaServer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave these tests out where there is no llama-server."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skipif(not PROGRAM, reason=LEFT_OUT))


@pytest.fixture(scope="session")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_harmony_model(tmp_path_factory.mktemp("gguf"))


@pytest.fixture(scope="session")
def llama(gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    with LlamaServer(tmp_path_factory.mktemp("llama"), gguf, context=CONTEXT) as server:
        yield server


@pytest.fixture
def own_llama(gguf: Path, tmp_path: Path) -> Iterator[LlamaServer]:
    """A llama-server of the test's own, which is not started."""
    server = LlamaServer(tmp_path, gguf, context=CONTEXT)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def front(llama: LlamaServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with front_of(llama, tmp_path_factory.mktemp("front")) as server:
        yield server


@pytest.fixture
def client(front: Server) -> Iterator[OpenAI]:
    with sdk_of(front) as client:
        yield client


def front_of(llama: LlamaServer, folder: Path, **settings: object) -> Server:
    own = {"engine": "llama-server", "engine_url": llama.url, "engine_api_key": API_KEY, "model_name": MODEL}
    return Server(folder, **{**own, **settings})


def engine_over(llama: LlamaServer, **options: object) -> LlamaServerEngine:
    return LlamaServerEngine(model="", options={"urls": [llama.url], "api_key": API_KEY, **options})
