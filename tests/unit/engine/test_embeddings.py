"""Engines of embeddings: the hashing model, and a model at servers, over the wire that vLLM has."""

import pytest

from engine.embeddings.hashing import HashingEmbeddings
from engine.embeddings.vllm_server import VllmServerEmbeddings
from engine.errors import EngineConfigurationError, EngineUnavailable
from tests.contracts.embeddings import EmbeddingsContract, embed
from tests.kit.server import free_port
from tests.unit.engine.test_demo_server import Served, served  # noqa: F401 - a fixture

NOBODY = f"http://127.0.0.1:{free_port()}"


class TestHashing(EmbeddingsContract):
    @pytest.fixture
    def new_engine(self) -> HashingEmbeddings:
        return HashingEmbeddings()


class TestServer(EmbeddingsContract):
    @pytest.fixture
    def new_engine(self, served: Served) -> VllmServerEmbeddings:  # noqa: F811
        return at(NOBODY, served.url)  # one of the servers is away, and nobody notices


def at(*urls: str, model: str = "hashing-256") -> VllmServerEmbeddings:
    return VllmServerEmbeddings(model=model, options={"urls": urls, "api_key": "k"})


async def test_texts_that_share_words_are_near_each_other() -> None:
    engine = HashingEmbeddings()
    await engine.start()
    cat, cats, shares = (await embed(engine, "A cat sat there.", "two cats sat there", "Shares fell.")).vectors
    near, far = (sum(a * b for a, b in zip(cat, each, strict=True)) for each in (cats, shares))
    assert near > 0.4 > 0.2 > abs(far)


async def test_signs_alone_and_few_dimensions_have_a_vector_too() -> None:
    engine = HashingEmbeddings()
    await engine.start()
    for text in ("!", "…", " ", "\ud800"):
        (vector,) = (await embed(engine, text, dimensions=1)).vectors
        assert abs(vector[0]) == 1.0


async def test_a_start_that_fails(served: Served) -> None:  # noqa: F811
    for engine, error, text in (
        (at(served.url, model="other"), EngineConfigurationError, r"no model 'other'; it has demo, hashing-256"),
        (at(NOBODY), EngineUnavailable, "in reach"),
    ):
        with pytest.raises(error, match=text):
            await engine.start()
        await engine.aclose()


async def test_without_a_name_the_first_is_meant(served: Served) -> None:  # noqa: F811
    engine = at(served.url, model="")
    assert (await engine.start()).model == "demo"
    await engine.aclose()


@pytest.mark.parametrize("urls", [(), ("file:///servers",), ("http://user:hidden@h",), ("http://h", 1)])
def test_urls_that_are_none(urls: tuple[object, ...]) -> None:
    engine = VllmServerEmbeddings(model="m", options={"urls": urls})
    with pytest.raises(EngineConfigurationError, match="urls") as raised:
        engine.check()
    assert "hidden" not in str(raised.value)
