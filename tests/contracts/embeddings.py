"""What every embeddings engine does."""

import asyncio
import math
from collections.abc import AsyncIterator

import pytest

from engine.embeddings.base import BaseEmbeddings, Embedded, EmbeddingRequest
from engine.errors import EmbeddingRefused, EngineUnavailable

PATIENCE = 60.0  # seconds until a test gives up on an engine
TEXTS = ("The cat sat on the mat.", "Prices of shares fell today", "é 😀 漢字")


async def embed(engine: BaseEmbeddings, *inputs: str | list[int], dimensions: int | None = None) -> Embedded:
    """Embed some inputs."""
    async with asyncio.timeout(PATIENCE):
        return await engine.embed(EmbeddingRequest(inputs=inputs, dimensions=dimensions))


def close(left: list[float], right: list[float]) -> bool:
    """Whether two vectors are the same but for what another order of sums makes of them."""
    return len(left) == len(right) and all(math.isclose(a, b, abs_tol=2e-2) for a, b in zip(left, right, strict=True))


class EmbeddingsContract:
    """Give a subclass the fixture `new_engine`; `resizable` says whether vectors can be cut."""

    resizable = True
    max_model_len = 8192

    @pytest.fixture
    def new_engine(self) -> BaseEmbeddings:
        """Return an engine that is not started."""
        raise NotImplementedError

    @pytest.fixture
    async def engine(self, new_engine: BaseEmbeddings) -> AsyncIterator[BaseEmbeddings]:
        """Start an engine, and close it at the end."""
        new_engine.check()
        info = await new_engine.start()
        assert info.model == new_engine.model
        assert info.max_model_len == self.max_model_len
        yield new_engine
        await new_engine.aclose()

    async def test_each_input_has_a_vector_of_length_one_in_its_place(self, engine: BaseEmbeddings) -> None:
        whole = await embed(engine, *TEXTS)
        assert whole.tokens >= len(TEXTS)
        assert [len(vector) for vector in whole.vectors] == [engine.dimensions] * len(TEXTS)
        for text, vector in zip(TEXTS, whole.vectors, strict=True):
            assert math.isclose(math.hypot(*vector), 1.0, rel_tol=1e-3)
            (alone,) = (await embed(engine, text)).vectors
            assert close(list(alone), list(vector))
        assert not close(list(whole.vectors[0]), list(whole.vectors[1]))

    async def test_tokens_are_taken_and_counted(self, engine: BaseEmbeddings) -> None:
        embedded = await embed(engine, [1, 2, 3], [4, 5])
        assert len(embedded.vectors) == 2
        assert embedded.tokens == 5 == engine.count([[1, 2, 3], [4, 5]])
        assert engine.count(["one two"]) >= 1

    async def test_fewer_dimensions(self, engine: BaseEmbeddings) -> None:
        few = engine.dimensions // 2
        if not self.resizable:
            with pytest.raises(EmbeddingRefused) as refused:
                await embed(engine, TEXTS[0], dimensions=few)
            assert refused.value.param == "dimensions"
            return
        (whole,) = (await embed(engine, TEXTS[0])).vectors
        (cut,) = (await embed(engine, TEXTS[0], dimensions=few)).vectors
        assert math.isclose(math.hypot(*cut), 1.0, rel_tol=1e-3)
        length = math.hypot(*whole[:few])
        assert close(list(cut), [value / length for value in whole[:few]])

    async def test_all_dimensions_are_no_fewer(self, engine: BaseEmbeddings) -> None:
        (whole,) = (await embed(engine, TEXTS[0])).vectors
        (asked,) = (await embed(engine, TEXTS[0], dimensions=engine.dimensions)).vectors
        assert close(list(whole), list(asked))

    async def test_more_dimensions_than_there_are(self, engine: BaseEmbeddings) -> None:
        with pytest.raises(EmbeddingRefused) as refused:
            await embed(engine, TEXTS[0], dimensions=engine.dimensions + 1)
        assert refused.value.param == "dimensions"
        assert str(engine.dimensions) in refused.value.reason

    async def test_an_input_that_is_too_long(self, engine: BaseEmbeddings) -> None:
        with pytest.raises(EmbeddingRefused) as refused:
            await embed(engine, [1] * (self.max_model_len + 1))
        assert refused.value.param == "input"
        assert str(self.max_model_len) in refused.value.reason
        assert await embed(engine, TEXTS[0])

    async def test_a_token_that_the_model_lacks(self, engine: BaseEmbeddings) -> None:
        with pytest.raises(EmbeddingRefused, match="vocabulary"):
            await embed(engine, [1, 2**31 - 1])
        assert await embed(engine, TEXTS[0])

    async def test_many_at_once(self, engine: BaseEmbeddings) -> None:
        several = await asyncio.gather(*(embed(engine, *TEXTS) for _ in range(8)))
        assert all(close(list(several[0].vectors[1]), list(each.vectors[1])) for each in several)

    async def test_before_the_start_and_behind_the_end(self, new_engine: BaseEmbeddings) -> None:
        new_engine.check()
        with pytest.raises(EngineUnavailable):
            await embed(new_engine, TEXTS[0])
        await new_engine.start()
        await new_engine.health()
        await new_engine.aclose()
        await new_engine.aclose()
        with pytest.raises(EngineUnavailable):
            await embed(new_engine, TEXTS[0])
