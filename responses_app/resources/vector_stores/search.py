"""How chunks of one vector store are found by their words: FTS5 on SQLite, tsvector with GIN on PostgreSQL.

Only those of files that are there, are read, and match. The scores mean the same in both databases.

A score is between 0 and 1: for each word that is looked for, how much a chunk says of it beside the chunk of the store
that says most of it (by BM25, or ts_rank), weighed by how rare the word is in the store. A word that no chunk has
counts too. FTS5 knows only how rare a word is among the chunks of all stores: that factor is the same for both, and
cancels out. So scores tell nothing of what others keep, but for the average length of a chunk.

Where a search has vectors too (`Search.meaning`), and chunks of the store have some of the same model, scores are those
of both orders together (`protocol.files.searches`).
"""

import math
from collections.abc import Iterator, Mapping, Sequence

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import F, QuerySet

from responses_app.models import json_text
from responses_app.protocol.files.searches import fused, terms_of, words_of
from responses_app.resources.vector_stores.fields import Hit, Search
from responses_app.resources.vector_stores.model import COMPLETED, VectorStoreChunk, VectorStoreFile
from responses_app.resources.vector_stores.nearest import KeptCodes, nearest

CHUNKS = VectorStoreChunk._meta.db_table
WORDS = "responses_app_chunkwords"  # of FTS5
MAX_ROWS = 3000  # that are ranked by all words together: PostgreSQL takes 15 µs for each
MAX_RANKED = 12  # of a query's words: the rarest
MAX_FUSED = 100  # chunks of either order, where words and vectors make one

_COUNTS = {
    "sqlite": f"SELECT count(*) FROM (SELECT 1 FROM {WORDS} WHERE {WORDS} MATCH %s LIMIT {MAX_ROWS + 1}) few",
    # A query of words that PostgreSQL leaves out has no nodes. The inner SELECT hides the word from the planner: of one
    # that many chunks have, it would look for the first few in the table, and read the index of each chunk on the way.
    "postgresql": "SELECT CASE WHEN numnode(to_tsquery('english', %s)) = 0 THEN -1 ELSE "
    f"(SELECT count(*) FROM (SELECT 1 FROM {CHUNKS} WHERE store_id = %s "
    f"AND words @@ (SELECT to_tsquery('english', %s)) LIMIT {MAX_ROWS + 1}) few) END",
}
_RANKED = {
    "sqlite": f"SELECT rowid AS id, -bm25({WORDS}, 0.0, 1.0) AS rank FROM {WORDS} WHERE {WORDS} MATCH %s",
    "postgresql": "SELECT id, ts_rank(words, query, 1)::float8 AS rank FROM "
    f"{CHUNKS}, to_tsquery('english', %s) query WHERE store_id = %s AND words @@ query",
}
_AMONG = {
    "sqlite": f"id IN (SELECT id FROM {CHUNKS} WHERE file_id IN (SELECT value FROM json_each(%s)))",
    "postgresql": f"id IN (SELECT id FROM {CHUNKS} WHERE file_id = ANY(%s))",
}


def scores(
    connection: BaseDatabaseWrapper, store_id: str, query: str, *, limit: int, among: Sequence[int] | None = None
) -> Mapping[int, float]:
    """Return the keys of the chunks of a store that fit a query best, with their scores; `among` are files' keys."""
    terms = terms_of(query)
    if not terms:
        return {}
    size = VectorStoreChunk.objects.using(connection.alias).filter(store_id=store_id).count()
    counts = _telling(_counts(connection, store_id, terms))
    # The inverse document frequency of BM25: near 0 for a word that every chunk has.
    weights = {term: math.log(1 + (size - count + 0.5) / (count + 0.5)) for term, count in counts.items()}
    # Also of words that nothing has: so a chunk that has all words of the query is the only one near 1.
    most = sum(weights.values())
    ranked_terms = sorted((term for term, count in counts.items() if count), key=lambda term: counts[term])
    if not ranked_terms or most <= 0:
        return {}
    return _ranked(
        connection, store_id, {term: weights[term] / most for term in ranked_terms[:MAX_RANKED]}, limit, among
    )


def insert_words(connection: BaseDatabaseWrapper, chunks: Sequence[VectorStoreChunk]) -> None:
    """Put chunks, whose rows are there, into the index."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            rows = [(" ".join(words_of(chunk.text)), chunk.pk) for chunk in chunks]
            cursor.executemany(f"UPDATE {CHUNKS} SET words = to_tsvector('english', %s) WHERE id = %s", rows)
            return
        entries = [(chunk.pk, _store_word(chunk.store_id), " ".join(words_of(chunk.text))) for chunk in chunks]
        cursor.executemany(f"INSERT OR REPLACE INTO {WORDS} (rowid, store, words) VALUES (%s, %s, %s)", entries)


def _counts(connection: BaseDatabaseWrapper, store_id: str, terms: Sequence[str]) -> dict[str, int]:
    """Return how many chunks have each of the words that the database does not leave out.

    No further than to `MAX_ROWS` + 1: so many are too many to be ranked by, and counting on takes a second.
    """
    vendor = connection.vendor
    with connection.cursor() as cursor:
        arguments: list[object] = []
        for term in terms:
            arguments += [f"'{term}'", store_id, f"'{term}'"] if vendor == "postgresql" else [_match(store_id, term)]
        cursor.execute(
            " UNION ALL ".join(f"SELECT {place}, ({_COUNTS[vendor]})" for place in range(len(terms))), arguments
        )
        return {terms[place]: count for place, count in cursor.fetchall() if count >= 0}


def _telling(counts: Mapping[str, int]) -> Mapping[str, int]:
    """Return the rarest of the words: of those that are found one, and as many as do not take too long to rank by."""
    kept: dict[str, int] = {}
    for term in sorted(counts, key=lambda term: counts[term]):
        if any(kept.values()) and sum(kept.values()) + counts[term] > MAX_ROWS:
            break
        kept[term] = counts[term]
    return kept


def _ranked(
    connection: BaseDatabaseWrapper,
    store_id: str,
    weights: Mapping[str, float],
    limit: int,
    among: Sequence[int] | None,
) -> Mapping[int, float]:
    vendor = connection.vendor
    arguments: list[object] = []
    tables, parts = [], []
    for place, term in enumerate(weights):
        # MATERIALIZED: each word is looked up once, though its table is read twice, for its maximum too.
        tables.append(f"t{place} AS MATERIALIZED ({_RANKED[vendor]})")
        arguments += [f"'{term}'", store_id] if vendor == "postgresql" else [_match(store_id, term)]
    for place, weight in enumerate(weights.values()):
        parts.append(f"SELECT id, rank * %s / (SELECT max(rank) FROM t{place}) AS part FROM t{place}")
        arguments.append(weight)
    where = ""
    if among is not None:
        where = f"WHERE {_AMONG[vendor]}"
        arguments.append(list(among) if vendor == "postgresql" else json_text(among))
    sql = (
        f"WITH {', '.join(tables)} SELECT id, sum(part) AS score FROM ({' UNION ALL '.join(parts)}) every {where} "
        "GROUP BY id ORDER BY score DESC, id LIMIT %s"
    )
    with connection.cursor() as cursor:
        cursor.execute(sql, [*arguments, limit])
        # Rounding may add up to a little more than 1.
        return {key: min(1.0, float(score)) for key, score in cursor.fetchall()}


def _match(store_id: str, term: str) -> str:
    """Return a query of FTS5. What stands in quotes is nothing but letters and digits."""
    return f'store : "{_store_word(store_id)}" AND words : "{term}"'


def _store_word(store_id: str) -> str:
    """Return a store's id as a word that has no other form: digits."""
    return str(int.from_bytes(store_id.encode()))


def find(store_id: str, files: "QuerySet[VectorStoreFile]", search: Search, codes: KeptCodes) -> Sequence[Hit]:
    """Return what is found in a store that is there, the best first; of these files of it."""
    among = _keys_of(store_id, files, search)
    best: dict[int, float] = {}
    for scored in _scored(connections[files.db], codes, store_id, search, among):
        for key, score in scored.items():
            best[key] = max(score, best.get(key, 0.0))
    ordered = sorted((-score, key) for key, score in best.items() if score >= search.threshold)[: search.limit]
    return _hits(files.db, {key: -score for score, key in ordered})


def _scored(
    connection: BaseDatabaseWrapper, kept: KeptCodes, store_id: str, search: Search, among: Sequence[int] | None
) -> Iterator[Mapping[int, float]]:
    """Yield what each query finds, with scores."""
    meaning, most = search.meaning, max(search.limit, MAX_FUSED)
    near: Sequence[Sequence[int]] = []
    if meaning is not None and search.queries:
        near = nearest(connection, kept, store_id, meaning, limit=most, among=among)
    if meaning is None or not any(near):
        for query in search.queries:
            yield scores(connection, store_id, query, limit=search.limit, among=among)
        return
    for query, meanings in zip(search.queries, near, strict=True):
        by_words = scores(connection, store_id, query, limit=most, among=among) if meaning.weights.text else {}
        yield fused(list(by_words), meanings, meaning.weights)


def _keys_of(store_id: str, files: "QuerySet[VectorStoreFile]", search: Search) -> Sequence[int] | None:
    """Return the keys of the files whose chunks may be found; None for all that the store has rows of."""
    seen = files.filter(status=COMPLETED)
    if search.matches is not None:
        return [key for key, attributes in seen.values_list("pk", "attributes") if search.matches(attributes)]
    # Nothing is hidden, pending or failed: the query needs no list of files.
    if VectorStoreFile.objects.using(files.db).filter(store_id=store_id).count() == seen.count():
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
