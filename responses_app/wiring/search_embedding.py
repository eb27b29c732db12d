"""Search by meaning. `SearchEmbedder`: an embedding model that the server has, as file search uses it.

What it embeds is not charged to the limits of a key. Its turns at the engine are those of the project whose files they
are, and what is embedded is counted as that of clients is.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from functools import partial

from engine.embeddings.base import EmbeddingRequest
from engine.errors import EmbeddingRefused, EngineError, reason_of
from responses_app.observing.metrics import Metrics
from responses_app.protocol.errors import ApiError
from responses_app.protocol.tiers import BEHIND_ALL
from responses_app.runs.stateless.embedding import TIER, EmbeddingModels, ServedEmbeddings
from responses_app.settings.conf import Settings
from responses_app.settings.models import ModelSettings
from responses_app.tools.base import BaseTool
from responses_app.tools.meaning import BaseEmbedder, ChunkEmbedder, EmbedderFailed, QueryVectors, TextRefused

logger = logging.getLogger("respsite.runs")

MAX_NAME = 200  # characters of a model's name that count: it is kept with each file


class SearchEmbedder(BaseEmbedder):
    """Embeds queries and chunks with one served model."""

    def __init__(self, served: ServedEmbeddings, metrics: Metrics) -> None:
        """Ask nothing yet."""
        self._served = served
        self._metrics = metrics

    @property
    def model(self) -> str | None:
        """Its name and how long its vectors are: another model under the name that clients know is another one."""
        info = self._served.info()
        return None if info is None else f"{info.model[:MAX_NAME]} ({self.dimensions})"

    @property
    def dimensions(self) -> int:
        """How long its vectors are."""
        return self._served.engine.dimensions

    async def embed(
        self, texts: Sequence[str], project: str, *, behind_all: bool, seconds: float
    ) -> Sequence[Sequence[float]]:
        """Return the vectors of texts."""
        served, loop = self._served, asyncio.get_running_loop()
        place = served.turns.place(project, TIER, BEHIND_ALL if behind_all else 0)
        try:
            place.admit()
            async with asyncio.timeout(seconds) as ends, place.turn():
                ends.reschedule(loop.time() + seconds)
                made = await served.engine.embed(EmbeddingRequest(inputs=texts))
        except EmbeddingRefused as error:
            raise TextRefused(error.reason) from error
        except EngineError as error:
            raise EmbedderFailed(f"{type(error).__name__}: {reason_of(error)}") from error
        except TimeoutError as error:
            raise EmbedderFailed(f"no turn or no answer within {seconds:g} s") from error
        except ApiError as error:
            raise EmbedderFailed("too many requests wait for it") from error
        finally:
            place.leave()
        lengths = {len(vector) for vector in made.vectors}
        if len(made.vectors) != len(texts) or lengths - {self.dimensions}:
            raise EmbedderFailed(
                f"{len(texts)} vectors of {self.dimensions} numbers were asked for, and {len(made.vectors)} came, of "
                f"{sorted(lengths)} numbers"
            )
        self._metrics.embedded_inputs.count(served.name, by=len(texts))
        self._metrics.embedded_tokens.count(served.name, by=made.tokens)
        return made.vectors


def search_by_meaning(
    tools: Iterable[BaseTool],
    settings: Settings,
    model: ModelSettings | None,
    models: EmbeddingModels,
    metrics: Metrics,
) -> None:
    """Have the file search, if there is one, use this model."""
    from responses_app.resources.vector_stores.tool import FileSearchTool

    served = None if model is None else models.named(model.name)
    if served is None:
        return
    embedder = SearchEmbedder(served, metrics)
    for tool in tools:
        if isinstance(tool, FileSearchTool):
            failed = metrics.search_embedding_failures.count
            tool.use(
                QueryVectors(embedder, settings, failed=partial(failed, "query")),
                ChunkEmbedder(
                    tool.stores, embedder, settings, worker=tool.indexer.worker, failed=partial(failed, "chunks")
                ),
            )
