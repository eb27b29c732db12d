"""Responses in a database that several threads and processes write at once, and what they do not pay for it."""

import asyncio
import sqlite3
from dataclasses import replace
from functools import partial
from pathlib import Path

from django.db.backends.base.base import BaseDatabaseWrapper

from responses_app.models import LogPart
from responses_app.resources.rollouts.keeping import GenerationKeeper
from responses_app.stores.base import AcceptedResponse, WorkerState
from responses_app.stores.database.responses.removal import remove
from responses_app.stores.database.responses.store import DatabaseResponseStore
from responses_app.stores.database.responses.writes import LogAppends, ResponseStep, commit
from tests.contracts.adapters.stores import Held, queries, race, reads, waits_for_a_lock, within
from tests.contracts.store import Turn, exchange, new_id, same_chain, sampled_text, save_chain
from tests.contracts.store_life import NOW, OpenStore, forget, is_unknown
from tests.contracts.store_logs import piece
from tests.kit.server import clean_environ


class TestAtOnce:
    async def test_a_chain_is_one_query_and_so_is_each_read(self, open_store: OpenStore, alias: str) -> None:
        with queries(alias) as statements:
            store = await open_store()
            last = await save_chain(store, length=300)
            response_id = str(last.response["id"])
            for read in (store.chain, store.response, store.input_items):
                statements.clear()
                assert await read(last.project, response_id) is not None
                assert len(reads(statements)) == 1
            statements.clear()
            assert await store.sampled_items(last.project, ["msg_1", "msg_2"]) == {}
            assert len(reads(statements)) == 1

    async def test_fifty_responses_are_few_statements(self, open_store: OpenStore, alias: str) -> None:
        with queries(alias) as statements:
            store = await open_store()
            first = Turn().saying(*exchange(0))
            await store.save(first)
            turns = [Turn().after(first) for _ in range(50)]
            statements.clear()
            await asyncio.gather(*(store.accept(turn.begun()) for turn in turns))
            # Two a batch. How many batches they become depends on how soon threads have made their rows; alone they
            # would be fifty.
            assert len(statements) <= 5 * 2
            statements.clear()
            saved = [
                replace(turn.saying(*exchange(1), sampled=[sampled_text("Yes.")]), accepted=True) for turn in turns
            ]
            await asyncio.gather(*(store.save(stored) for stored in saved))
            # Five a batch: who is there still, their ends, parents, parts, items.
            assert len(statements) <= 5 * 5

    async def test_nobody_inherits_what_another_does(self, open_store: OpenStore) -> None:
        """Eight workers at once, each with a connection of its own."""
        project = new_id("proj")
        stores = [await open_store() for _ in range(8)]
        workers = [new_id("worker") for _ in stores]
        left = [Turn(project).begun("queued") for _ in range(200)]
        await asyncio.gather(*(stores[0].accept(accepted) for accepted in left))
        for store, worker in zip(stores, workers, strict=True):
            await store.beat(WorkerState(id=worker, started_at=0.0))
        reclaimed = await asyncio.gather(
            *(store.reclaim(worker, dead_before=0.0) for store, worker in zip(stores, workers, strict=True))
        )
        taken = [accepted for orphans in reclaimed for accepted in orphans.claimed if accepted.project == project]
        assert sorted(ids_of(taken)) == sorted(ids_of(left))

    async def test_deleted_while_somebody_continues_it(
        self, store: DatabaseResponseStore, alias: str, url: str
    ) -> None:
        first = Turn().saying(*exchange(0))
        await store.save(first)
        second = Turn().after(first).saying(*exchange(1))
        deleting = await Held(alias, lambda db: remove(db, [str(first.response["id"])])).acted()
        saving = asyncio.create_task(store.save(second))
        await waits_for_a_lock(alias, url)
        await deleting.commit()
        await saving
        assert await is_unknown(store, first)
        assert await same_chain(store, second)

    async def test_continued_while_somebody_deletes_it(
        self, store: DatabaseResponseStore, alias: str, url: str
    ) -> None:
        first = Turn().saying(*exchange(0))
        await store.save(first)
        second = Turn().after(first).saying(*exchange(1))
        saving = await Held(
            alias, lambda db: commit(db, [ResponseStep(second)], now=NOW, keeper=GenerationKeeper())
        ).acted()
        deleting = asyncio.create_task(forget(store, first))
        await waits_for_a_lock(alias, url)
        await saving.commit()
        assert await deleting
        assert await is_unknown(store, first)
        assert await same_chain(store, second)

    async def test_what_is_appended_while_it_is_erased_goes_too(
        self, store: DatabaseResponseStore, alias: str, url: str
    ) -> None:
        """A whole project is erased, with what runs; nobody has locked the response before."""
        turn = Turn()
        await store.accept(turn.begun())
        append = LogAppends([piece(turn, 0, b"what the model says")])
        appending = await Held(alias, lambda db: commit(db, [append], now=NOW, keeper=GenerationKeeper())).acted()
        erase = partial(remove, response_ids=[turn.response_id])
        erasing = asyncio.create_task(asyncio.to_thread(within, alias, erase))
        await waits_for_a_lock(alias, url)
        await appending.commit()
        await erasing
        assert await asyncio.to_thread(within, alias, parts_of_logs) == 0


def parts_of_logs(connection: BaseDatabaseWrapper) -> int:
    """Return how many there are."""
    return LogPart.objects.using(connection.alias).count()


def ids_of(accepted: list[AcceptedResponse]) -> list[str]:
    return [str(each.response["id"]) for each in accepted]


WRITER = """
import asyncio, sys
from tests.contracts.store import Turn, exchange, sampled_text
import django
django.setup()
from collections.abc import Iterable
from dataclasses import replace
from responses_app.stores.database.responses.store import DatabaseResponseStore

async def client(store, number):
    turn = Turn("project")
    for _ in range(number):
        await store.accept(turn.begun())
        stored = replace(turn.saying(*exchange(1), sampled=[sampled_text("Yes.")]), accepted=True)
        await store.save(stored)
        turn = Turn("project", stored.link)

async def main():
    store = DatabaseResponseStore()
    await store.start()
    print("ready", flush=True)
    sys.stdin.readline()
    await asyncio.gather(*(client(store, 20) for _ in range(25)))
    await store.aclose()

asyncio.run(main())
"""


def test_two_processes_write_to_one_file(migrated_sqlite: Path, tmp_path: Path) -> None:
    """500 responses each, at once; nobody ever finds it locked."""
    file = tmp_path / "store.sqlite3"
    file.write_bytes(migrated_sqlite.read_bytes())
    environ = clean_environ(
        DATABASE_URL=f"sqlite:///{file}", DATA_DIR=str(tmp_path), DJANGO_SETTINGS_MODULE="respsite.settings"
    )
    race(WRITER, (), (), environ=environ)
    with sqlite3.connect(file) as connection:
        kept = connection.execute("SELECT status, COUNT(*) FROM responses_app_response GROUP BY 1").fetchall()
    connection.close()
    assert kept == [("completed", 1000)]
