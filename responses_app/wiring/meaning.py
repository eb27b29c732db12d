"""Gives the file search the embedding model that the settings name."""

from collections.abc import Iterable
from functools import partial

from responses_app.observing.metrics import Metrics
from responses_app.runs.stateless.embedding import EmbeddingModels
from responses_app.settings.conf import Settings
from responses_app.settings.models import ModelSettings
from responses_app.tools.base import BaseTool
from responses_app.tools.meaning import ChunkEmbedder, QueryVectors
from responses_app.wiring.search_embedding import SearchEmbedder


def search_by_meaning(
    tools: Iterable[BaseTool],
    settings: Settings,
    model: ModelSettings | None,
    models: EmbeddingModels,
    metrics: Metrics,
) -> None:
    """Have the file search, if there is one, use this model."""
    from responses_app.tools.file_search import FileSearchTool

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
