"""`QueryVectors`: the vectors of the queries of searches.

A search waits for them at most FILE_SEARCH_QUERY_SECONDS. Where the model fails, words alone are searched, and so they
are by the searches that follow, until it is asked again: an outage costs one search its wait, and not all of them.
"""

import asyncio
import logging
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence

from responses_app.protocol.files.fusion import Weights
from responses_app.stores.vector_stores import Meaning
from responses_app.tools.meaning.base import BaseEmbedder, EmbedderFailed, MeaningSettings, Outage, TextRefused

logger = logging.getLogger("respsite.tools")

MAX_KNOWN = 1000  # vectors of queries that are remembered: 4 MB, with 1,024 numbers each


class QueryVectors:
    """Has queries embedded."""

    def __init__(
        self,
        embedder: BaseEmbedder,
        settings: MeaningSettings,
        *,
        failed: Callable[[], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Remember nothing yet. `failed` is called for each failure; `now` is a clock, in seconds."""
        self._embedder = embedder
        self._seconds = settings.file_search_query_seconds
        self._outage = Outage("files are searched by words alone", failed, now=now)
        self._known: OrderedDict[tuple[str, str], array[float]] = OrderedDict()  # by model and query

    async def of(self, project: str, queries: Sequence[str], weights: Weights) -> Meaning | None:
        """Return what a search needs; None where it is to search words alone."""
        model = self._embedder.model
        if not queries or not weights.embedding:
            return None
        if model is None:
            if not self._outage.holds:
                self._outage.failed("it has not started")
            return None
        lacking = [query for query in dict.fromkeys(queries) if (model, query) not in self._known]
        vectors = {query: self._known[model, query] for query in queries if (model, query) in self._known}
        if lacking:
            made = await self._embed(project, lacking)
            if made is None:
                return None
            vectors |= dict(zip(lacking, made, strict=True))
        for query, vector in vectors.items():
            self._known[model, query] = vector
            self._known.move_to_end((model, query))
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return Meaning(model=model, vectors=[vectors[query] for query in queries], weights=weights)

    async def _embed(self, project: str, queries: Sequence[str]) -> "Sequence[array[float]] | None":
        if self._outage.holds:
            return None
        try:
            async with asyncio.timeout(self._seconds):
                made = await self._embedder.embed(queries, project, behind_all=False, seconds=self._seconds)
        except TextRefused:  # a query longer than the model takes is no outage
            logger.info("a query is too long for the embedding model: words alone are searched")
            return None
        except TimeoutError:
            self._outage.failed(f"no answer within {self._seconds:g} s (FILE_SEARCH_QUERY_SECONDS)")
            return None
        except EmbedderFailed as problem:
            self._outage.failed(str(problem))
            return None
        self._outage.worked()
        return [array("f", vector) for vector in made]
