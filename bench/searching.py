"""What searches take: of files, by words and by vectors, for questions as people ask them, and of deferred tools."""

import asyncio
import random
import time
from collections.abc import Iterator
from statistics import median

from bench.loads import database_of
from bench.report import Result, beside
from bench.servers import Bench, settle

CHUNKS = 10_000
CHUNKS_WITH_VECTORS = 100_000
CHUNKS_OF_A_FILE = 20_000
DIMENSIONS = 1024  # of a vector
MODEL = "bench (1024)"
TOOLS = 2_000
ROUNDS = 20
# 30 ms, where PostgreSQL took 84 ms of CPU for the SELECT. On SQLite that is far cheaper.
SEARCH_TARGETS = {"SQLite": 3.0, "PostgreSQL": 0.35}
_WORDS = 300  # of a chunk, about 400 tokens
_VOCABULARY = 20_000
_QUESTION = "What does the handbook say about {}, and is it the same for {} and the other {}?"


def file_search(bench: Bench) -> Iterator[Result]:
    """Search a store on each database."""
    for name in ("SQLite", "PostgreSQL"):
        with database_of(bench, name) as alias:
            filled, walls, ranked = asyncio.run(_searched(alias))
        yield beside(
            f"a question to {CHUNKS:,} chunks on {name}",
            walls,
            yardstick="a SELECT that ranks by its rare words",
            its=ranked,
            unit="ms",
            target=SEARCH_TARGETS[name],
            details={"the slowest, ms": max(walls), "chunks put in, a second": CHUNKS / filled},
        )


def vector_search(bench: Bench) -> Iterator[Result]:
    """Search a store on each database by words and vectors. Embedding the query is no part of what is measured."""
    for name in ("SQLite", "PostgreSQL"):
        with database_of(bench, name) as alias:
            walls, of_words = asyncio.run(_searched_by_meaning(alias, CHUNKS_WITH_VECTORS))
        yield Result(
            what=f"a question to {CHUNKS_WITH_VECTORS:,} chunks with vectors of {DIMENSIONS} on {name}, wall",
            measured=median(walls),
            unit="ms",
            target=80.0,
            details={"the slowest, ms": max(walls), "by words alone, ms": median(of_words)},
        )


def tool_search(bench: Bench) -> Iterator[Result]:
    """Search the deferred tools of a request."""
    from responses_app.protocol.items.tool_search import ToolQuery, find, groups_of

    chance = random.Random(1)
    namespaces = [
        {
            "type": "namespace",
            "name": f"n{n}",
            "description": chunk(chance)[:200],
            "tools": [_tool(chance) for _ in range(20)],
        }
        for n in range(TOOLS // 20)
    ]
    took = []
    for _ in range(ROUNDS):
        wanted = ToolQuery(chunk(chance)[:100])
        began = time.thread_time()
        find(wanted, groups_of(namespaces, {}))
        took.append((time.thread_time() - began) * 1e3)
    what = f"a search of {TOOLS:,} deferred tools, CPU"
    details = {"the slowest, ms": max(took)}
    yield Result(what=what, measured=median(took), unit="ms", target=50.0, details=details)


def _tool(chance: random.Random) -> dict[str, object]:
    words = chunk(chance).split()
    properties = {word: {"type": "string"} for word in words[3:6]}
    return {
        "type": "function",
        "name": "_".join(words[:3]),
        "description": " ".join(words[6:40]),
        "parameters": {"type": "object", "properties": properties},
        "defer_loading": True,
    }


def chunk(random_: random.Random) -> str:
    """Return a text whose words are as rare as those of a language: the nth is as frequent as 1/n."""
    ranks = (int(_VOCABULARY ** random_.random()) for _ in range(_WORDS))
    return " ".join(f"word{rank}" for rank in ranks) + " the handbook says what it says about all that is the same"


async def _searched(alias: str) -> tuple[float, list[float], list[float]]:
    """Return how many seconds it took to fill a store, and milliseconds of each search, and of the yardstick."""
    from responses_app.kit.clock import utc
    from responses_app.resources.files.fields import NewFile
    from responses_app.resources.files.store import Files
    from responses_app.resources.vector_stores.fields import NewStoreFile, Search
    from responses_app.resources.vector_stores.model import VectorStore
    from responses_app.resources.vector_stores.store import VectorStores

    chance, now = random.Random(1), int(time.time())
    files, stores = Files(using=alias), VectorStores(using=alias)
    await files.create("default", "file-1", NewFile(filename="a.txt", purpose="assistants", bytes=1), [b"x"])
    store = VectorStore(id="vs_1", project="default", created_at=utc(now), last_active_at=utc(now))
    await stores.create(store, [NewStoreFile(file_id="file-1", filename="a.txt")])
    pending = await stores.claim("bench", lease_seconds=600)
    assert pending is not None
    chunks = [chunk(chance) for _ in range(CHUNKS)]
    began = time.perf_counter()
    assert await stores.keep(pending, chunks)
    filled = time.perf_counter() - began
    await asyncio.to_thread(settle, alias)
    walls, ranked = [], []
    for _ in range(ROUNDS):
        rare = [f"word{int(_VOCABULARY ** chance.uniform(0.3, 1))}" for _ in range(3)]
        began = time.perf_counter()
        hits = await stores.search("default", "vs_1", Search(queries=[_QUESTION.format(*rare)]))
        walls.append((time.perf_counter() - began) * 1e3)
        assert hits
        ranked.append(await asyncio.to_thread(_ranked, alias, rare))
    await files.aclose()
    await stores.aclose()
    return filled, walls, ranked


def _ranked(alias: str, words: list[str]) -> float:
    """Return the milliseconds of the database's own order of all chunks that have one of these words."""
    from django.db import connections

    from responses_app.resources.vector_stores.search import CHUNKS as TABLE
    from responses_app.resources.vector_stores.search import WORDS

    if connections[alias].vendor == "postgresql":
        sql = (
            f"SELECT id FROM {TABLE}, to_tsquery('english', %s) query WHERE words @@ query "
            "ORDER BY ts_rank(words, query, 1) DESC LIMIT 10"
        )
        query = " | ".join(words)
    else:
        sql = f"SELECT rowid FROM {WORDS} WHERE words MATCH %s ORDER BY bm25({WORDS}) LIMIT 10"
        query = " OR ".join(words)
    with connections[alias].cursor() as cursor:
        began = time.perf_counter()
        cursor.execute(sql, [query])
        assert cursor.fetchall()
        took = time.perf_counter() - began
    connections[alias].close()
    return took * 1e3


async def _searched_by_meaning(alias: str, count: int) -> tuple[list[float], list[float]]:
    """Return milliseconds of searches by words and vectors, and of those by words alone."""
    import numpy as np

    from responses_app.kit.clock import utc
    from responses_app.resources.files.fields import NewFile
    from responses_app.resources.files.store import Files
    from responses_app.resources.vector_stores.fields import Meaning, NewStoreFile, Search
    from responses_app.resources.vector_stores.model import VectorStore
    from responses_app.resources.vector_stores.store import VectorStores

    chance, numbers, now = random.Random(1), np.random.default_rng(1), int(time.time())
    files, stores = Files(using=alias), VectorStores(using=alias)
    store = VectorStore(id="vs_1", project="default", created_at=utc(now), last_active_at=utc(now))
    await stores.create(store)
    for number, first in enumerate(range(0, count, CHUNKS_OF_A_FILE)):
        file = NewFile(filename="a.txt", purpose="assistants", bytes=1)
        await files.create("default", f"file-{number}", file, [b"x"])
        await stores.add("default", "vs_1", [NewStoreFile(file_id=f"file-{number}", filename="a.txt")])
        pending = await stores.claim("bench", lease_seconds=600)
        assert pending is not None
        assert await stores.keep(pending, [chunk(chance) for _ in range(min(CHUNKS_OF_A_FILE, count - first))])
        claimed = await stores.claim_vectors("bench", MODEL, lease_seconds=600)
        assert claimed is not None
        position = 0
        while some := await stores.chunks_of(claimed, position, 64):
            vectors = numbers.standard_normal((len(some), DIMENSIONS), np.float32)
            pairs = [(key, vector) for (key, _), vector in zip(some, vectors, strict=True)]
            assert await stores.keep_vectors(claimed, position, pairs, lease_seconds=600)
            position += len(some)
        await stores.end_vectors(claimed, whole=True)
    await asyncio.to_thread(settle, alias)
    walls: tuple[list[float], list[float]] = ([], [])
    for round_ in range(2 * ROUNDS):
        rare = [f"word{int(_VOCABULARY ** chance.uniform(0.3, 1))}" for _ in range(3)]
        meaning = Meaning(model=MODEL, vectors=[numbers.standard_normal(DIMENSIONS, np.float32)])
        search = Search(queries=[_QUESTION.format(*rare)], meaning=None if round_ % 2 else meaning)
        began = time.perf_counter()
        hits = await stores.search("default", "vs_1", search)
        walls[round_ % 2].append((time.perf_counter() - began) * 1e3)
        assert hits
    await files.aclose()
    await stores.aclose()
    return walls
