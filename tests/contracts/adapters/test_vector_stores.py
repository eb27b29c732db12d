"""Vector stores in databases: what is found, by whom, and what becomes of files that are deleted or not read."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace

import pytest

from responses_app.kit.clock import IdFactory, utc
from responses_app.kit.places import KEPT_SECONDS, GonePlace
from responses_app.protocol.files.searches import Filter
from responses_app.protocol.requests.pages import ListQuery
from responses_app.resources.files.store import Files
from responses_app.resources.vector_stores.fields import FileCounts, Hit, NewStoreFile, Search
from responses_app.resources.vector_stores.model import VectorStore, VectorStoreBatch, VectorStoreChunk, VectorStoreFile
from responses_app.resources.vector_stores.settings import VectorStoreSettings
from responses_app.resources.vector_stores.store import VectorStores, VectorStoresFull
from responses_app.resources.vector_stores.tool import Indexer
from responses_app.resources.vector_stores.work import CHUNKS_AT_ONCE, MAX_TRIES
from responses_app.resources.webhooks.settings import WebhookSettings
from responses_app.resources.webhooks.store import Webhooks
from responses_app.stores.database.transfer.retention import DatabaseRetentions
from responses_app.tools.reading.processes import DocumentReader
from tests.contracts.adapters.stores import within
from tests.contracts.adapters.test_webhooks import claimed_by, endpoint, told
from tests.contracts.files import NOW, Hands, kept
from tests.contracts.store import present
from tests.kit.waiting import eventually

DAY = 86_400  # seconds
LIMITS = VectorStoreSettings(vector_stores_max_entries=3, vector_store_max_files=5, vector_store_max_chunks=200)
_new_id = IdFactory(time.time)
MINE, THEIRS = "mine", "theirs"
TURTLES = {
    "shell.txt": ("The shell of a turtle is made of bone.", "Turtles leave their eggs on the beach."),
    "birds.txt": ("A bird has feathers. Its beak has no teeth, and its shell is that of an egg.",),
    "空.txt": ("海龟的壳是由骨头组成的。", "Größe und Gewicht der Schildkröte"),
}


def counts(**by_status: int) -> FileCounts:
    """Return how many files have which status."""
    return FileCounts(
        **{**dict.fromkeys(("in_progress", "completed", "failed", "cancelled"), 0), **by_status},
        total=sum(by_status.values()),
    )


class Kept:
    """Stores on one database, and what tests do with them."""

    def __init__(self, alias: str, hands: Hands, limits: VectorStoreSettings = LIMITS) -> None:
        self.alias = alias
        self.files = Files(using=alias, now=hands)
        self.stores = VectorStores(using=alias, settings=limits, now=hands)

    async def store(self, project: str = MINE, files: Sequence[NewStoreFile] = (), days: int | None = None) -> str:
        row = VectorStore(id=_new_id("vs_"), project=project, name="s", metadata={"a": "b"}, expires_days=days)
        row.created_at = row.last_active_at = utc(NOW)
        await self.stores.create(row, files)
        return str(row.pk)

    async def file(self, name: str = "a.txt", project: str = MINE, **attributes: str | int) -> NewStoreFile:
        """Keep a file that has only a name."""
        record = await kept(self.files, b"text", project=project, filename=name)
        return NewStoreFile(file_id=record.id, filename=name, attributes=attributes)

    async def filled(
        self, texts: Mapping[str, Sequence[str]] = TURTLES, project: str = MINE
    ) -> tuple[str, dict[str, str]]:
        """Keep a store with these chunks, by the names of their files; return its id and those of the files."""
        files = [await self.file(name, project, kind=name.partition(".")[0]) for name in texts]
        store_id = await self.store(project, files)
        for _ in files:
            pending = present(await self.stores.claim("w", lease_seconds=60))
            assert await self.stores.keep(pending, texts[pending.row.filename])
        return store_id, {file.filename: file.file_id for file in files}

    async def found(self, store_id: str, *queries: str, project: str = MINE, **more: object) -> list[str]:
        """Return the texts that are found."""
        return [hit.text for hit in await self.hits(store_id, *queries, project=project, **more)]

    async def hits(self, store_id: str, *queries: str, project: str = MINE, **more: object) -> Sequence[Hit]:
        hits = await self.stores.search(project, store_id, Search(queries=queries, **more))  # type: ignore[arg-type]
        assert hits is not None
        return hits

    async def rows(self) -> list[int]:
        models = (VectorStore, VectorStoreFile, VectorStoreChunk, VectorStoreBatch)
        counted = [model.objects.using(self.alias) for model in models]
        numbers = await asyncio.to_thread(within, self.alias, lambda db: [each.count() for each in counted])
        if "sqlite" in await asyncio.to_thread(within, self.alias, lambda db: db.vendor):
            words = await asyncio.to_thread(within, self.alias, _index_rows)
            assert words == numbers[2], "the index has what there is"
        return numbers

    async def swept(self) -> None:
        while await self.stores.sweep():
            pass


def _index_rows(connection: object) -> int:
    with connection.cursor() as cursor:  # type: ignore[attr-defined]
        cursor.execute("SELECT count(*) FROM responses_app_chunkwords")
        return int(cursor.fetchone()[0])


@pytest.fixture
async def at(alias: str, hands: Hands) -> AsyncIterator[Kept]:
    """Everything, emptied behind each test."""
    kept = Kept(alias, hands)
    yield kept
    for project in (MINE, THEIRS):
        for store in await kept.stores.listed(project, ListQuery(limit=100)):
            await kept.stores.delete(project, store.row.pk)
    await kept.swept()
    assert await kept.rows() == [0, 0, 0, 0]
    await kept.files.aclose()
    await kept.stores.aclose()


async def test_words_find_what_has_them_the_rarest_count_most(at: Kept) -> None:
    store_id, files = await at.filled()
    hits = await at.hits(store_id, "What is the shell of a turtle made of?")
    assert hits[0].text.startswith("The shell of a turtle")
    assert [hit.filename for hit in hits[1:]] in (["birds.txt", "shell.txt"], ["shell.txt", "birds.txt"])
    assert hits[0].file_id == files["shell.txt"]
    assert hits[0].attributes == {"kind": "shell"}
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True)
    assert 0 < scores[-1] < scores[0] <= 1
    assert await at.found(store_id, "turtles") == await at.found(store_id, "TURTLE")
    assert await at.found(store_id, "turtle", threshold=2.0) == []
    assert len(await at.found(store_id, "shell turtle", limit=1)) == 1
    assert len(await at.found(store_id, "feathers", "beach")) == 2, "either of the queries"
    (store,) = await at.stores.listed(MINE, ListQuery())
    assert store.file_counts == counts(completed=3)
    assert store.usage_bytes == sum(len(text.encode()) for texts in TURTLES.values() for text in texts)


async def test_languages_without_spaces_and_with_accents(at: Kept) -> None:
    store_id, _ = await at.filled()
    assert await at.found(store_id, "海龟") == ["海龟的壳是由骨头组成的。"]
    assert (
        await at.found(store_id, "GROSSE") == await at.found(store_id, "größe") == ["Größe und Gewicht der Schildkröte"]
    )


HARMLESS = (
    *('"', "'", "*", "a OR", "NEAR(a b)", "words : x", "-turtle", "(turtle", "turtle'; DROP TABLE x; --", "\x00turtle"),
    *("\ud800 turtle", "turtle " * 50_000, "t" * 100_000, "%s %(a)s", "{} [] ^ + :*", "و ﷽", "🐢", "the", ""),
    " ".join(f"word{n}" for n in range(5000)),
)


async def test_no_query_is_anything_but_words(at: Kept) -> None:
    store_id, _ = await at.filled({"a.txt": ["Shells, turtles"]})
    for query in HARMLESS:
        assert len(await at.found(store_id, query)) == int("turtle" in query), query[:50]


async def test_filters_leave_files_out(at: Kept) -> None:
    store_id, files = await at.filled()
    only = Filter({"type": "eq", "key": "kind", "value": "birds"}).matches
    assert [hit.filename for hit in await at.hits(store_id, "shell", matches=only)] == ["birds.txt"]
    assert await at.stores.set_attributes(MINE, store_id, files["shell.txt"], {"kind": "birds", "age": 80})
    assert [hit.filename for hit in await at.hits(store_id, "bone feathers", matches=only)] == [
        "shell.txt",
        "birds.txt",
    ]


async def test_nobody_else_finds_it_and_scores_tell_nothing_of_others(at: Kept) -> None:
    store_id, files = await at.filled()
    before = [hit.score for hit in await at.hits(store_id, "shell bone")]
    theirs, their_files = await at.filled({"b.txt": ["bone " * 20, "bone", "bones of a turtle"]}, THEIRS)
    assert [hit.score for hit in await at.hits(store_id, "shell bone")] == pytest.approx(before, abs=0.05)
    assert await at.stores.search(MINE, theirs, Search(queries=["bone"])) is None
    for project, other, file_id in ((THEIRS, store_id, files["shell.txt"]), (MINE, theirs, their_files["b.txt"])):
        assert await at.stores.get(project, other) is None
        assert not await at.stores.delete(project, other)
        assert await at.stores.add(project, other, []) is None
        assert await at.stores.file(project, other, file_id) is None
        assert await at.stores.content(project, other, file_id) is None
        assert await at.stores.set_attributes(project, other, file_id, {}) is None
        assert not await at.stores.remove_file(project, other, file_id)
        assert await at.stores.update(project, other, {"name": "x"}) is None
        await at.stores.forget_file(project, file_id)
    assert [hit.filename for hit in await at.hits(theirs, "bone", project=THEIRS)] == ["b.txt"] * 3


async def test_a_file_that_is_taken_out_or_deleted_is_not_found(at: Kept) -> None:
    store_id, files = await at.filled()
    assert await at.stores.content(MINE, store_id, files["shell.txt"]) == list(TURTLES["shell.txt"])
    assert await at.stores.remove_file(MINE, store_id, files["shell.txt"])
    assert not await at.stores.remove_file(MINE, store_id, files["shell.txt"])
    assert [hit.filename for hit in await at.hits(store_id, "shell")] == ["birds.txt"]
    await at.files.delete(MINE, files["birds.txt"])
    assert await at.found(store_id, "shell") == [], "at once, before anything is swept"
    assert await at.stores.file(MINE, store_id, files["birds.txt"]) is None
    await at.swept()
    assert await at.rows() == [1, 1, 2, 0]


async def test_a_store_that_has_expired_finds_nothing_and_stays(at: Kept, hands: Hands) -> None:
    store_id = await at.store(days=2)
    await at.stores.add(MINE, store_id, [await at.file()])
    pending = present(await at.stores.claim("w", lease_seconds=60))
    assert await at.stores.keep(pending, ["turtle"])
    hands.time += 1.5 * DAY
    assert await at.found(store_id, "turtle") == ["turtle"]
    hands.time += 1.5 * DAY
    assert await at.found(store_id, "turtle") == ["turtle"], "it was active"
    await at.swept()
    hands.time += 2 * DAY
    assert await at.stores.search(MINE, store_id, Search(queries=["turtle"])) is None
    assert await at.stores.add(MINE, store_id, [await at.file()]) is None
    await at.swept()
    store = present(await at.stores.counted(MINE, store_id))
    assert store.file_counts["total"] == 0
    assert store.row.expires_at is not None
    assert store.row.expires_at <= utc(hands.time)


async def test_projects_take_turns(at: Kept) -> None:
    """A small file of one project waited two minutes behind 36 of others."""
    for project, count in ((THEIRS, 3), (MINE, 2)):
        await at.store(project, [await at.file(f"{project} {number}", project) for number in range(count)])
    read, after = [], ""
    while pending := await at.stores.claim("w", lease_seconds=60, after=after):
        read.append(pending.row.filename)
        after = pending.row.store.project
        assert await at.stores.keep(pending, ["text"])
    assert read == ["mine 0", "theirs 0", "mine 1", "theirs 1", "theirs 2"]


async def test_a_worker_that_dies_leaves_its_file_to_others_and_at_last_it_fails(at: Kept, hands: Hands) -> None:
    file = await at.file()
    store_id = await at.store(files=[file])
    first = present(await at.stores.claim("dead", lease_seconds=60))
    many = [f"turtle {number}" for number in range(CHUNKS_AT_ONCE + 5)]
    assert await at.stores.claim("other", lease_seconds=60) is None, "it is read"
    hands.time += 61
    second = present(await at.stores.claim("other", lease_seconds=60))
    assert (second.row.pk, second.row.file_id) == (first.row.pk, file.file_id)
    assert not await at.stores.keep(first, many), "it is another worker's"
    assert await at.found(store_id, "turtle") == [], "nothing is found before it is whole"
    hands.time += 61
    third = present(await at.stores.claim("other", lease_seconds=60))
    assert await at.stores.keep(third, many)
    assert len(await at.found(store_id, "turtle", limit=100)) == len(many)
    await at.stores.add(MINE, store_id, [file])  # once more
    for _ in range(3):
        assert await at.stores.claim("dead", lease_seconds=60)
        hands.time += 61
    assert await at.stores.claim("other", lease_seconds=60) is None
    record = present(await at.stores.file(MINE, store_id, file.file_id))
    assert (record.status, record.error_code) == ("failed", "server_error")


async def test_a_worker_that_stops_gives_its_file_back_and_another_reads_it(at: Kept) -> None:
    class Endless(DocumentReader):
        async def chunks(self, *_: object, **__: object) -> Sequence[str]:
            begun.set()
            await asyncio.Event().wait()
            return []

    begun, file = asyncio.Event(), await at.file(kind="read")
    store_id = await at.store(files=[file])
    stopped = Indexer(at.stores, at.files, Endless(), worker="stopped")
    stopped.start()
    async with asyncio.timeout(30):
        await begun.wait()
    await stopped.aclose()
    other = Indexer(at.stores, at.files, DocumentReader(), worker="other")
    other.start()

    async def is_read() -> bool:
        record = await at.stores.file(MINE, store_id, file.file_id)
        return record is not None and record.status == "completed"

    await eventually(is_read)
    await other.aclose()
    await other.aclose()
    assert await at.found(store_id, "text") == ["text"]


async def test_what_a_file_comes_to_is_told_once(at: Kept, hands: Hands) -> None:
    webhooks = Webhooks(using=at.alias, settings=WebhookSettings(), now=hands)
    wants = endpoint(MINE)
    await webhooks.create(wants)
    files = [await at.file(name) for name in ("read.txt", "unreadable.txt", "deadly.txt", "unwanted.txt")]
    store_id = await at.store(files=files[:3])
    await at.stores.add(MINE, store_id, files[3:], batch_id="vsfb_1")
    read, unreadable = [await at.stores.claim(worker, lease_seconds=60) for worker in ("w1", "w2")]
    assert read is not None
    assert unreadable is not None
    for _ in range(2):  # the second time as where the answer got lost
        await at.stores.keep(read, ["turtle"])
        await at.stores.fail(unreadable, "server_error", "It cannot be read.")
    await at.stores.cancel_batch(MINE, store_id, "vsfb_1")  # nothing is told of that
    for _ in range(MAX_TRIES):
        assert await at.stores.claim("w3", lease_seconds=60) is not None
    assert await at.stores.claim("w3", lease_seconds=60) is None
    claimed = await claimed_by(webhooks)
    assert told(claimed) == [
        ("vector_store.file.completed", files[0].file_id),
        ("vector_store.file.failed", files[1].file_id),
        ("vector_store.file.failed", files[2].file_id),
    ]
    assert all(f'"vector_store_id":"{store_id}"' in each.body for each in claimed.due)
    await webhooks.delete(MINE, wants.id)
    await webhooks.aclose()


async def test_a_batch_can_be_cancelled_while_it_is_read(at: Kept) -> None:
    store_id = await at.store()
    files = [await at.file(f"{number}.txt") for number in range(3)]
    await at.stores.add(MINE, store_id, files, batch_id="vsfb_1")
    done, under_way = [await at.stores.claim(worker, lease_seconds=60) for worker in ("w1", "w2")]
    assert done is not None
    assert under_way is not None
    assert await at.stores.keep(done, ["turtle"])
    batch = present(await at.stores.cancel_batch(MINE, store_id, "vsfb_1"))
    assert (batch.row.cancelled, batch.file_counts) == (True, counts(completed=1, cancelled=2))
    assert not await at.stores.keep(under_way, ["turtle"])
    await at.stores.fail(under_way, "server_error", "late")
    page = ListQuery(descending=False)
    listed = await at.stores.files(MINE, store_id, page, batch_id="vsfb_1", status="cancelled")
    assert [row.filename for row in listed] == ["1.txt", "2.txt"]
    behind = replace(page, after=files[1].file_id)
    assert await at.stores.files(MINE, store_id, behind, batch_id="vsfb_1") == listed[1:]
    assert await at.stores.files(MINE, store_id, replace(page, limit=1), batch_id="vsfb_1") != listed, "one more alone"
    assert await at.stores.batch(THEIRS, store_id, "vsfb_1") is None
    assert len(await at.found(store_id, "turtle")) == 1


async def test_a_file_that_was_swept_away_keeps_its_place_as_a_cursor_for_a_day(at: Kept) -> None:
    store_id = await at.store()
    first, gone, last = files = [await at.file(f"{number}.txt") for number in range(3)]
    await at.stores.add(MINE, store_id, files[::-1])  # another order than that of their ids
    assert await at.stores.remove_file(MINE, store_id, gone.file_id)
    while await at.stores.sweep():
        pass
    for descending, cursor, expected in ((False, "after", first), (True, "after", last), (False, "before", last)):
        page = ListQuery(descending=descending, **{cursor: gone.file_id})
        listed = await at.stores.files(MINE, store_id, page)
        assert [record.file_id for record in listed] == [expected.file_id]
    for later, left in ((0.0, 1), (KEPT_SECONDS + 60.0, 0)):
        retentions = DatabaseRetentions(using=at.alias, now=lambda later=later: time.time() + later)
        await retentions.forget_places()
        await retentions.aclose()
        places = GonePlace.objects.using(at.alias).filter(list_id=store_id)
        assert await asyncio.to_thread(within, at.alias, lambda _, places=places: places.count()) == left


async def test_limits(at: Kept) -> None:
    store_id, *_ = [await at.store() for _ in range(3)]
    with pytest.raises(VectorStoresFull, match="3 vector stores"):
        await at.store()
    await at.store(THEIRS)
    with pytest.raises(VectorStoresFull, match="5 files"):
        await at.stores.add(MINE, store_id, [await at.file() for _ in range(6)])
    assert await at.stores.files(MINE, store_id, ListQuery()) == []
    assert await at.stores.add(MINE, store_id, [await at.file()])
    pending = present(await at.stores.claim("w", lease_seconds=60))
    assert pending.room == LIMITS.vector_store_max_chunks


async def test_stores_are_listed_changed_and_deleted(at: Kept) -> None:
    first, second, third = [await at.store() for _ in range(3)]
    listed = await at.stores.listed(MINE, ListQuery(after=third, limit=1))
    assert [store.row.pk for store in listed] == [second, first], "one more tells that there is more"
    assert await at.stores.listed(THEIRS, ListQuery(after=third, limit=1)) == []
    changed = present(await at.stores.update(MINE, first, {"name": "new", "metadata": {}, "expires_days": 3})).row
    assert (changed.name, changed.metadata, changed.expires_days) == ("new", {}, 3)
    assert await at.stores.delete(MINE, first)
    assert not await at.stores.delete(MINE, first)
    assert await at.stores.get(MINE, first) is None
    assert await at.stores.get(MINE, "vs_\x00\ud800") is None
