"""The vectors of queries: what is remembered, and that words alone are searched at once while the model fails."""

import asyncio
import logging
from collections.abc import Sequence

import pytest

from responses_app.protocol.files.searches import Weights, fused
from responses_app.tools.meaning import FIRST_PAUSE, MAX_KNOWN, BaseEmbedder, EmbedderFailed, QueryVectors, TextRefused
from responses_app.tools.settings import MeaningSettings

BOTH = Weights()


class Fake(BaseEmbedder):
    """Embeds a text as its length; `problem` is raised instead, and `hangs` answers never."""

    dimensions = 1

    def __init__(self) -> None:
        self.name: str | None = "fake (1)"
        self.asked: list[str] = []
        self.problem: Exception | None = None
        self.hangs = False

    @property
    def model(self) -> str | None:
        return self.name

    async def embed(
        self, texts: Sequence[str], project: str, *, behind_all: bool, seconds: float
    ) -> Sequence[Sequence[float]]:
        assert not behind_all, "somebody waits for it"
        self.asked += texts
        if self.hangs:
            await asyncio.Event().wait()
        if self.problem is not None:
            raise self.problem
        return [[float(len(text))] for text in texts]


class Setup:
    """Query vectors with a clock that a test sets."""

    def __init__(self) -> None:
        self.embedder = Fake()
        self.time, self.failures = 100.0, 0
        self.queries = QueryVectors(
            self.embedder,
            MeaningSettings(file_search_query_seconds=0.05),
            failed=self._failed,
            now=lambda: self.time,
        )

    def _failed(self) -> None:
        self.failures += 1

    async def vectors(self, *queries: str, weights: Weights = BOTH) -> list[float] | None:
        """Return the vectors of queries; None where words alone are to be searched."""
        meaning = await self.queries.of("p", queries, weights)
        return None if meaning is None else [vector[0] for vector in meaning.vectors]


@pytest.fixture
def setup() -> Setup:
    return Setup()


async def test_each_query_is_embedded_once_and_the_oldest_are_forgotten(setup: Setup) -> None:
    assert await setup.vectors("a", "bb", "a") == [1.0, 2.0, 1.0]
    assert await setup.vectors("bb", "ccc") == [2.0, 3.0]
    assert setup.embedder.asked == ["a", "bb", "ccc"]
    for number in range(MAX_KNOWN):
        await setup.vectors(f"query {number}")
    setup.embedder.asked.clear()
    assert await setup.vectors("a") == [1.0]
    assert setup.embedder.asked == ["a"]
    setup.embedder.name = "another (1)"
    await setup.vectors("a")
    assert setup.embedder.asked == ["a", "a"], "another model has other vectors"


async def test_without_weight_or_queries_the_model_is_not_asked(setup: Setup) -> None:
    assert await setup.vectors("a", weights=Weights(embedding=0)) is None
    assert await setup.vectors() is None
    assert setup.embedder.asked == []


@pytest.mark.parametrize("how", ["fails", "hangs", "has not started"])
async def test_an_outage_is_logged_once_and_costs_one_search_its_wait(
    setup: Setup, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "respsite.tools")
    embedder = setup.embedder
    embedder.problem = EmbedderFailed("wrong") if how == "fails" else None
    embedder.hangs = how == "hangs"
    embedder.name = None if how == "has not started" else embedder.name
    for _ in range(3):
        assert await setup.vectors("a") is None
    asked = len(embedder.asked)
    assert asked == (0 if how == "has not started" else 1), "not again before the pause is over"
    setup.time += FIRST_PAUSE
    assert await setup.vectors("a") is None
    assert setup.failures == 2
    embedder.problem, embedder.hangs, embedder.name = None, False, "fake (1)"
    assert await setup.vectors("a") is None, "the pause has grown"
    setup.time += 2 * FIRST_PAUSE
    assert await setup.vectors("a") == [1.0]
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "files are searched by words alone" in warnings[0].getMessage()
    assert "answers again" in caplog.records[-1].getMessage()


async def test_a_query_that_is_too_long_is_no_outage(setup: Setup) -> None:
    setup.embedder.problem = TextRefused("long")
    assert await setup.vectors("a") is None
    setup.embedder.problem = None
    assert await setup.vectors("a") == [1.0]
    assert setup.failures == 0


def test_ranks_are_fused() -> None:
    scores = fused([1, 2, 3], [2, 4], Weights())
    assert sorted(scores, key=lambda key: -scores[key]) == [2, 1, 4, 3]
    assert fused([1], [1], Weights()) == {1: 1.0}
    assert fused([1], [2], Weights()) == pytest.approx({1: 0.5, 2: 0.5})
    assert fused([1], [2], Weights(embedding=3, text=1)) == pytest.approx({1: 0.25, 2: 0.75})
    assert fused([1], [2], Weights(embedding=1, text=0)) == {2: 1.0}
    assert fused([], [], Weights()) == {}
