"""What a search of one vector store finds: chunks of those files that are there, are read, and match."""

from collections.abc import Sequence

from django.db import connections
from django.db.models import F

from responses_app.models.vector_stores import VectorStoreChunk, VectorStoreFile
from responses_app.stores.database.vector_stores.chunk_search import scores
from responses_app.stores.database.vector_stores.rows import kept_files
from responses_app.stores.vector_stores import Hit, Search


def found(using: str, project: str, store_id: str, search: Search, *, now: float) -> Sequence[Hit]:
    """Return what is found in a store that is there, the best first."""
    among = _files_looked_at(using, project, store_id, search, now=now)
    best: dict[int, float] = {}
    for query in search.queries:
        for key, score in scores(connections[using], store_id, query, limit=search.limit, among=among).items():
            best[key] = max(score, best.get(key, 0.0))
    ordered = sorted((-score, key) for key, score in best.items() if score >= search.threshold)[: search.limit]
    return _hits(using, {key: -score for score, key in ordered})


def _files_looked_at(using: str, project: str, store_id: str, search: Search, *, now: float) -> Sequence[int] | None:
    """Return the keys of the files whose chunks may be found; None for all that the store has rows of."""
    seen = kept_files(using, project, store_id, now=now).filter(status="completed")
    if search.matches is not None:
        return [key for key, attributes in seen.values_list("pk", "attributes") if search.matches(attributes)]
    if VectorStoreFile.objects.using(using).filter(store_id=store_id).count() == seen.count():
        return None
    return list(seen.values_list("pk", flat=True))


def _hits(using: str, scored: dict[int, float]) -> Sequence[Hit]:
    chunks = VectorStoreChunk.objects.using(using).filter(pk__in=scored)
    rows = chunks.annotate(source=F("file__file_id"), name=F("file__filename"), attributes=F("file__attributes"))
    by_key = {row.pk: row for row in rows}
    return [
        Hit(
            key=key,
            file_id=by_key[key].source,
            filename=by_key[key].name,
            attributes=by_key[key].attributes,
            text=by_key[key].text,
            score=score,
        )
        for key, score in scored.items()
        if key in by_key
    ]
