"""Vectors of chunks in databases: who makes them, what they find beside words, and that they go with their chunks."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from django.db.backends.base.base import BaseDatabaseWrapper

from responses_app.protocol.files.searches import Filter, Weights
from responses_app.protocol.requests.pages import ListQuery
from responses_app.resources.vector_stores import nearest
from responses_app.resources.vector_stores.fields import Meaning
from responses_app.resources.vector_stores.model import VectorStoreCodes, VectorStoreFile, VectorStoreVector
from responses_app.resources.vector_stores.settings import VectorStoreSettings
from responses_app.resources.vector_stores.work import FileToEmbed
from responses_app.stores.database.transfer.erasure import Subject, erase
from responses_app.tools.meaning import BaseEmbedder, ChunkEmbedder, EmbedderFailed, TextRefused
from responses_app.tools.settings import MeaningSettings
from tests.contracts.adapters.stores import within
from tests.contracts.adapters.test_vector_stores import LIMITS, MINE, THEIRS, Kept
from tests.contracts.files import Hands
from tests.contracts.store import present
from tests.kit.waiting import eventually

A, B = "model-a (3)", "model-b (3)"
SEA, LAND, AIR = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)
TEXTS = {"sea.txt": ["Turtles swim.", "Whales sing."], "land.txt": ["Horses run."], "air.txt": ["Larks sing."]}
OF_TEXTS = {"Turtles swim.": SEA, "Whales sing.": (0.9, 0.1, 0.0), "Horses run.": LAND, "Larks sing.": AIR}
LEASE = 60.0


class Meant(Kept):
    """Stores whose chunks have vectors."""

    async def embed(self, worker: str = "w", model: str = A) -> list[FileToEmbed]:
        """Give every chunk that lacks one its vector; return the files that were claimed for it."""
        claimed = []
        while pending := await self.stores.claim_vectors(worker, model, lease_seconds=LEASE):
            claimed.append(pending)
            start = pending.start
            while chunks := await self.stores.chunks_of(pending, start, 100):
                assert await self.step(pending, start, 100)
                start += len(chunks)
            await self.stores.end_vectors(pending, whole=True)
        return claimed

    async def step(self, pending: FileToEmbed, start: int, limit: int) -> bool:
        """Keep the vectors of some chunks."""
        chunks = await self.stores.chunks_of(pending, start, limit)
        vectors = [(key, OF_TEXTS.get(text, AIR)) for key, text in chunks]
        return not vectors or await self.stores.keep_vectors(pending, start, vectors, lease_seconds=LEASE)

    async def near(self, store_id: str, vector: Sequence[float], model: str = A, **more: object) -> list[str]:
        """Return the texts that a vector alone finds."""
        meaning = Meaning(model=model, vectors=[vector], weights=Weights(embedding=1, text=0))
        return await self.found(store_id, "nothing", meaning=meaning, **more)

    async def is_embedded(self) -> bool:
        """Whether every file has all of its vectors."""
        rows = VectorStoreFile.objects.using(self.alias).filter(embedded_by="")
        return not await asyncio.to_thread(within, self.alias, lambda _: rows.exists())

    async def vectors(self) -> tuple[int, int]:
        """Return how many rows there are of codes, and of vectors."""
        return await asyncio.to_thread(
            within,
            self.alias,
            lambda _: (
                VectorStoreCodes.objects.using(self.alias).count(),
                VectorStoreVector.objects.using(self.alias).count(),
            ),
        )


@pytest.fixture
async def at(alias: str, hands: Hands) -> AsyncIterator[Meant]:
    """Everything, emptied behind each test, whatever vectors it has."""
    kept = Meant(alias, hands)
    yield kept
    for project in (MINE, THEIRS):
        for store in await kept.stores.listed(project, ListQuery(limit=100)):
            await kept.stores.delete(project, store.row.pk)
    await kept.swept()
    assert await kept.rows() == [0, 0, 0, 0]
    assert await kept.vectors() == (0, 0)
    await kept.files.aclose()
    await kept.stores.aclose()


async def test_words_are_searched_before_there_are_vectors_and_both_after(at: Meant) -> None:
    store_id, _ = await at.filled(TEXTS)
    meaning = Meaning(model=A, vectors=[SEA])
    words = await at.hits(store_id, "sing")
    assert await at.hits(store_id, "sing", meaning=meaning) == words, "as without a model"
    assert len(await at.embed()) == 3
    both = await at.hits(store_id, "sing", meaning=meaning)
    assert [hit.text for hit in both] == ["Whales sing.", "Turtles swim.", "Larks sing."], "the whale has both"
    assert 1.0 >= both[0].score > both[1].score > both[2].score > 0
    assert await at.hits(store_id, "sing") == words
    only = Meaning(model=A, vectors=[SEA], weights=Weights(embedding=0, text=1))
    assert {hit.text for hit in await at.hits(store_id, "sing", meaning=only)} == {"Whales sing.", "Larks sing."}
    assert await at.near(store_id, LAND) == ["Horses run.", "Whales sing."]
    assert len(await at.found(store_id, "sing", meaning=meaning, threshold=both[0].score)) == 1
    two = Meaning(model=A, vectors=[LAND, AIR])
    assert set(await at.found(store_id, "x", "y", meaning=two, limit=2)) == {"Horses run.", "Larks sing."}


async def test_filters_and_other_projects(at: Meant) -> None:
    store_id, _ = await at.filled(TEXTS)
    theirs, _ = await at.filled({"land.txt": ["Horses run."]}, THEIRS)
    assert [pending.row.store.project for pending in await at.embed()].count(THEIRS) == 1
    only = Filter({"type": "eq", "key": "kind", "value": "air"}).matches
    assert await at.near(store_id, (0.5, 0.5, 0.5), matches=only) == ["Larks sing."]
    assert len(await at.near(store_id, (0.5, 0.5, 0.5))) == 4
    assert await at.near(theirs, LAND, project=THEIRS) == ["Horses run."]


async def test_a_dead_workers_file_goes_on_where_it_was(at: Meant, hands: Hands) -> None:
    many = [f"chunk {number}" for number in range(10)]
    await at.filled({"a.txt": many})
    first = present(await at.stores.claim_vectors("dead", A, lease_seconds=LEASE))
    assert await at.step(first, 0, 4)
    assert await at.stores.claim_vectors("other", A, lease_seconds=LEASE) is None, "it is leased"
    hands.time += LEASE - 1
    assert await at.step(first, 4, 2), "each step leases it again"
    hands.time += LEASE - 1
    assert await at.stores.claim_vectors("other", A, lease_seconds=LEASE) is None
    hands.time += 2
    second = present(await at.stores.claim_vectors("other", A, lease_seconds=LEASE))
    assert second.start == 6, "what was kept stays"
    assert not await at.step(first, 6, 4), "it is another worker's"
    await at.stores.end_vectors(first, whole=True)
    assert await at.step(second, 6, 4)
    await at.stores.end_vectors(second, whole=True)
    assert await at.embed() == []
    assert await at.vectors() == (3, 10)


async def test_a_step_that_is_done_twice_is_kept_once(at: Meant) -> None:
    store_id, _ = await at.filled({"a.txt": ["Turtles swim.", "Whales sing."]})
    pending = present(await at.stores.claim_vectors("w", A, lease_seconds=LEASE))
    assert await at.step(pending, 0, 2)
    assert await at.step(pending, 0, 2), "its commit may not have been heard of"
    assert await at.vectors() == (1, 2)
    assert await at.near(store_id, SEA) == ["Turtles swim.", "Whales sing."]


async def test_another_model_embeds_again_and_meanwhile_words_are_searched(at: Meant) -> None:
    store_id, _ = await at.filled(TEXTS)
    await at.embed()
    other = Meaning(model=B, vectors=[SEA])
    words = await at.hits(store_id, "sing")
    assert await at.hits(store_id, "sing", meaning=other) == words, "vectors of another model are not compared"
    pending = present(await at.stores.claim_vectors("w", B, lease_seconds=LEASE))
    assert pending.start == 0, "what the other model made is gone"
    await at.stores.end_vectors(pending, whole=False)
    assert pending.row in [again.row for again in await at.embed(model=A)], "the model came back"
    assert len(await at.embed(model=B)) == 3
    assert await at.near(store_id, SEA, model=B) == ["Turtles swim.", "Whales sing."]
    assert await at.near(store_id, SEA, model=A) == []
    assert await at.vectors() == (3, 4)


async def test_what_is_deleted_leaves_no_vector(at: Meant) -> None:
    store_id, files = await at.filled(TEXTS)
    theirs, _ = await at.filled(TEXTS, THEIRS)
    await at.embed()
    assert await at.stores.remove_file(MINE, store_id, files["sea.txt"])
    assert await at.near(store_id, SEA) == [], "at once, before anything is swept"
    await at.files.delete(MINE, files["land.txt"])
    assert await at.near(store_id, LAND) == []
    await at.swept()
    assert await at.vectors() == (1 + 3, 1 + 4)
    assert await at.stores.delete(MINE, store_id)
    await at.swept()
    assert await at.vectors() == (3, 4)
    await asyncio.to_thread(within, at.alias, lambda _: list(erase(Subject(project=THEIRS), using=at.alias)))
    assert await at.vectors() == (0, 0)
    assert await at.stores.get(THEIRS, theirs) is None


async def test_nothing_is_kept_of_a_file_that_was_deleted_meanwhile(at: Meant) -> None:
    store_id, files = await at.filled({"a.txt": ["Turtles swim."]})
    pending = present(await at.stores.claim_vectors("w", A, lease_seconds=LEASE))
    chunks = await at.stores.chunks_of(pending, 0, 9)
    assert await at.stores.remove_file(MINE, store_id, files["a.txt"])
    await at.swept()
    assert not await at.stores.keep_vectors(pending, 0, [(key, SEA) for key, _ in chunks], lease_seconds=LEASE)
    await at.stores.end_vectors(pending, whole=True)
    assert await at.vectors() == (0, 0)


async def test_among_more_chunks_than_are_compared_exactly_the_nearest_is_found(at: Meant) -> None:
    names = [f"chunk {number}" for number in range(nearest.CANDIDATES + 50)]
    store_id, _ = await at.filled({"a.txt": [*names, "Turtles swim."], "b.txt": ["Horses run."]})
    await at.embed()
    assert await at.near(store_id, SEA, limit=1) == ["Turtles swim."]
    assert await at.near(store_id, LAND, limit=1) == ["Horses run."]
    assert len(await at.near(store_id, AIR, limit=30)) == 30


@asynccontextmanager
async def beside(
    at: Meant,
    hands: Hands,
    limits: VectorStoreSettings = LIMITS,
) -> AsyncIterator[Meant]:
    """Give what another process would have on the same database."""
    other = Meant(at.alias, hands, limits)
    yield other
    await other.files.aclose()
    await other.stores.aclose()


class Reads:
    """How many rows of codes were read from the database in each search that read any."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._counts: list[int] = []
        self._real = nearest.binary_rows
        monkeypatch.setattr(nearest, "binary_rows", self._rows)

    def _rows(self, connection: BaseDatabaseWrapper, sql: str, arguments: Sequence[object]) -> list[tuple[Any, ...]]:
        rows = self._real(connection, sql, arguments)
        if nearest.CODES in sql:
            self._counts.append(len(rows))
        return rows

    def taken(self) -> list[int]:
        """Return them, and begin anew."""
        counts, self._counts = self._counts, []
        return counts


async def test_codes_are_read_once_and_changes_by_other_processes_are_seen(
    at: Meant,
    hands: Hands,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = Reads(monkeypatch)
    store_id, files = await at.filled(TEXTS)
    await at.embed()
    assert await at.near(store_id, SEA) == ["Turtles swim.", "Whales sing."]
    only = Filter({"type": "eq", "key": "kind", "value": "land"}).matches
    assert await at.near(store_id, (0.5, 0.5, 0.5), matches=only) == ["Horses run."]
    assert await at.near(store_id, AIR) == ["Larks sing."]
    assert reads.taken() == [3], "the three files, once"

    async with beside(at, hands) as other:
        assert await other.stores.remove_file(MINE, store_id, files["sea.txt"])
        assert await at.near(store_id, SEA) == []
        await other.swept()
        assert await at.near(store_id, (0.5, 0.5, 0.5)) == ["Horses run.", "Larks sing."]
        assert sum(reads.taken()) == 0, "nothing came that was not known"

        file = await other.file("new.txt")
        assert await other.stores.add(MINE, store_id, [file])
        pending = present(await other.stores.claim("w", lease_seconds=60))
        assert await other.stores.keep(pending, ["Turtles swim."])
        await other.embed()
        assert await at.near(store_id, SEA) == ["Turtles swim."]
        assert reads.taken() == [1], "the new file"
        assert len(await other.embed(model=B)) == 3
        assert await at.near(store_id, SEA) == [], "vectors of another model are not compared"
        assert await at.near(store_id, SEA, model=B) == ["Turtles swim."]


@pytest.mark.parametrize(("most", "again"), [(0, [3, 3]), (2 * nearest.OBJECTS, [3])])
async def test_codes_are_kept_within_the_setting(
    at: Meant,
    hands: Hands,
    monkeypatch: pytest.MonkeyPatch,
    most: int,
    again: list[int],
) -> None:
    first, _ = await at.filled(TEXTS)
    second, _ = await at.filled(TEXTS)
    await at.embed()
    reads = Reads(monkeypatch)
    async with beside(at, hands, VectorStoreSettings(file_search_cache_bytes=most)) as small:
        for store_id in (first, second):
            for _ in range(2):
                assert await small.near(store_id, SEA) == ["Turtles swim.", "Whales sing."]
            assert reads.taken() == again
        assert await small.near(first, SEA) == ["Turtles swim.", "Whales sing."]
        assert reads.taken() == [3], "it made room for the second"


class Embedder(BaseEmbedder):
    """Knows the vectors of the texts of this file; fails as often as `failures` says, and refuses `too_long`."""

    dimensions = 3

    def __init__(self, *, failures: int = 0, too_long: int = 10**6) -> None:
        self.failures = failures
        self.too_long = too_long
        self.asked: list[Sequence[str]] = []

    @property
    def model(self) -> str:
        return A

    async def embed(
        self, texts: Sequence[str], project: str, *, behind_all: bool, seconds: float
    ) -> Sequence[Sequence[float]]:
        assert behind_all
        self.asked.append(texts)
        if self.failures:
            self.failures -= 1
            raise EmbedderFailed("it is down")
        if max(map(len, texts)) > self.too_long:
            raise TextRefused("too long")
        return [OF_TEXTS.get(text, AIR) for text in texts]


@asynccontextmanager
async def embedding(at: Meant, embedder: Embedder, failed: Callable[[], None] = lambda: None) -> AsyncIterator[None]:
    """Have chunks embedded meanwhile."""
    chunks = ChunkEmbedder(at.stores, embedder, MeaningSettings(), worker="w", failed=failed, poll_seconds=0.05)
    chunks.start()
    try:
        yield
    finally:
        await chunks.aclose()


async def test_chunks_are_embedded_in_the_background_and_a_failure_is_made_up_for(at: Meant) -> None:
    store_id, _ = await at.filled(TEXTS)
    embedder, failures = Embedder(failures=1), []
    async with embedding(at, embedder, lambda: failures.append(1)):
        await eventually(at.is_embedded)
    assert await at.vectors() == (3, 4)
    assert len(failures) == 1
    assert await at.near(store_id, SEA) == ["Turtles swim.", "Whales sing."]
    assert await at.embed() == [], "nothing is left to do"


async def test_what_the_model_refuses_is_cut_and_the_others_are_not(at: Meant) -> None:
    store_id, _ = await at.filled({"a.txt": ["Turtles swim.", "x" * 1000, "Horses run."]})
    embedder = Embedder(too_long=400)
    async with embedding(at, embedder):
        await eventually(at.is_embedded)
    assert await at.vectors() == (1, 3)
    assert await at.near(store_id, SEA) == ["Turtles swim."]
    assert ["x" * 250] in embedder.asked
    assert await at.near(store_id, AIR) == ["x" * 1000]
