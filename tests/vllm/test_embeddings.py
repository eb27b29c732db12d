"""The contract of embeddings over a real vLLM with a pooling model, whose weights are dummies."""

import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from engine.embeddings.base import BaseEmbeddings
from engine.embeddings.vllm_server import VllmServerEmbeddings
from tests.contracts.embeddings import EmbeddingsContract, embed
from tests.vllm.server import API_KEY, EXECUTOR, VllmServer

MODEL = "embedding-model"
FOLDER = Path(__file__).parent / "embedding_model"
MAX_MODEL_LEN = 2048


class PoolingServer(VllmServer):
    """`vllm serve --runner pooling` with the dummy embedding model."""

    def _command(self) -> list[str]:
        flags = {
            **{"model": FOLDER, "served-model-name": MODEL, "host": "127.0.0.1", "port": self.port, "api-key": API_KEY},
            **{"runner": "pooling", "load-format": "dummy", "dtype": "float32", "max-model-len": MAX_MODEL_LEN},
            **{"tokenizer": self._vocabulary, "distributed-executor-backend": EXECUTOR},
        }
        return [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"),
            *(str(each) for name, value in flags.items() for each in (f"--{name}", value)),
        ]


@pytest.fixture(scope="module")
def pooling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """A vLLM that embeds."""
    server = PoolingServer(tmp_path_factory.mktemp("pooling")).start()
    yield server
    server.close()


class TestVllm(EmbeddingsContract):
    max_model_len = MAX_MODEL_LEN

    @pytest.fixture
    def new_engine(self, pooling: VllmServer) -> VllmServerEmbeddings:
        return VllmServerEmbeddings(model=MODEL, options={"urls": (pooling.url,), "api_key": API_KEY})

    @pytest_asyncio.fixture(loop_scope="session")  # the tests' own, in this folder
    async def engine(self, new_engine: VllmServerEmbeddings) -> AsyncIterator[BaseEmbeddings]:
        info = await new_engine.start()
        assert (info.model, info.max_model_len) == (MODEL, MAX_MODEL_LEN)
        yield new_engine
        await new_engine.aclose()

    async def test_its_vectors_are_as_long_as_the_model_says(self, engine: VllmServerEmbeddings) -> None:
        assert engine.dimensions == 64
        assert (await embed(engine, "text")).tokens == 4  # the vocabulary has no merges: a token a byte
