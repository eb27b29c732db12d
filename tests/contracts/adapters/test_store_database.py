"""The store in a database: the contract on SQLite and PostgreSQL, and what only a database can do or suffer."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import NoneType

import pytest
from django.db import connections
from django.db.models.expressions import RawSQL

from responses_app.kit.errors import StoreError
from responses_app.models import ChainPart, Response, json_text
from responses_app.protocol.errors import JsonObject
from responses_app.stores.base import NameTaken
from responses_app.stores.database.responses.lookups import _LOG_SINCE
from responses_app.stores.database.responses.rows import pack, time_value, unpack
from responses_app.stores.database.responses.store import DatabaseResponseStore
from tests.contracts.adapters.conftest import OpenDatabase, migrate
from tests.contracts.adapters.stores import queries, rows, within
from tests.contracts.store import UNTAMED, StoreContract, Turn, exchange, new_id, present, same_chain, sampled_text
from tests.contracts.store_claims import ClaimsContract
from tests.contracts.store_life import LifeContract, OpenStore, reclaimed
from tests.contracts.store_logs import LogsContract
from tests.contracts.store_names import NamesContract, called, leg_of
from tests.contracts.store_parents import ParentContract
from tests.kit.postgres_server import PostgresServer


class TestInDatabases(StoreContract, LifeContract, ParentContract, ClaimsContract, LogsContract, NamesContract):
    """The contract."""


class TestOnBoth:
    async def test_what_was_saved_survives_the_store(self, open_store: OpenStore, store: DatabaseResponseStore) -> None:
        item = sampled_text("Answer.")
        stored = Turn().saying(*exchange(1), sampled=[item])
        await store.save(stored)
        await store.aclose()
        another = await open_store()
        assert await same_chain(another, stored)
        assert await another.sampled_items(stored.project, [item.id]) == {item.id: item}

    async def test_a_response_comes_back_as_it_went_out(self, store: DatabaseResponseStore, alias: str) -> None:
        stored = Turn().saying(*exchange(1))
        stored.response.update({"z": UNTAMED, "a": [1.0, 10**30, None, {}], UNTAMED: True})
        await store.save(stored)
        [row] = await asyncio.to_thread(rows, alias, Response, pk=stored.response["id"])
        assert row.body == stored.response
        assert list(row.body) == list(stored.response)
        assert row.input_items == list(stored.input_items)
        assert (row.project, row.status, row.model) == (stored.project, "completed", "test")
        assert row.created_at.timestamp() == stored.response["created_at"]

    @pytest.mark.parametrize("state", ["queued", "in_progress"])
    @pytest.mark.parametrize("body", ["", "[]", '{"id": 1}', "[" * 9999], ids=["none", "array", "little", "deep"])
    async def test_a_damaged_row_keeps_no_other_from_being_taken_over(
        self, store: DatabaseResponseStore, alias: str, state: str, body: str
    ) -> None:
        whole = Turn()
        damaged = Turn(whole.project)
        await store.accept(damaged.begun(state))
        await store.accept(whole.begun("queued"))
        row = Response.objects.using(alias).filter(pk=damaged.response_id)
        assert await asyncio.to_thread(within, alias, lambda _: row.update(body=RawSQL("%s", [body]))) == 1
        claimed, orphans = await reclaimed(store, "worker_heir", whole.project)
        assert [accepted.response["id"] for accepted in claimed] == [whole.response_id]
        assert orphans.failed >= 1
        again, orphans = await reclaimed(store, "worker_heir", whole.project, whole.response_id)
        assert (again, orphans.failed) == ([], 0)

    async def test_of_workers_that_give_the_same_public_id_at_once_one_does(
        self, open_store: OpenStore, store: DatabaseResponseStore
    ) -> None:
        another = await open_store()
        project, name = new_id("proj"), new_id("name")
        for leg in range(1, 6):
            wanted = [called(Turn(project), name, leg) for _ in range(8)]
            accepting = [(store, another)[index % 2].accept(each) for index, each in enumerate(wanted)]
            answers = await asyncio.gather(*accepting, return_exceptions=True)
            assert Counter(map(type, answers)) == {NoneType: 1, NameTaken: 7}
            kept = wanted[answers.index(None)]
            assert await another.newest_leg(project, name) == leg_of(kept)

    async def test_a_chain_whose_part_is_lost_cannot_be_continued(
        self, store: DatabaseResponseStore, alias: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        first = Turn().saying(*exchange(0))
        second = Turn().after(first).saying(*exchange(1))
        third = Turn().after(second).saying(*exchange(2))
        for stored in (first, second, third):
            await store.save(stored)
        part = ChainPart.objects.using(alias).filter(pk=second.response["id"])
        assert (await asyncio.to_thread(within, alias, lambda _: part.delete()))[0] == 1
        assert await store.chain(third.project, str(third.response["id"])) is None
        assert f"part {second.response['id']} of its chain is lost" in caplog.text
        assert await same_chain(store, first)

    @pytest.mark.parametrize("wrong", [{"metadata": {"key": object()}}, {"model": "x" * 300}], ids=["no JSON", "long"])
    async def test_one_that_cannot_be_kept_fails_alone(
        self, store: DatabaseResponseStore, url: str, wrong: JsonObject, caplog: pytest.LogCaptureFixture
    ) -> None:
        if "model" in wrong and not url.startswith("postgres"):
            return  # columns of SQLite take any length
        good = [Turn().saying(*exchange(number)) for number in range(20)]
        bad = Turn().saying(*exchange(1))
        bad.response.update(wrong)
        answers = await asyncio.gather(*(store.save(stored) for stored in (*good, bad)), return_exceptions=True)
        assert answers[:-1] == [None] * 20
        assert isinstance(answers[-1], StoreError)
        assert await store.chain(bad.project, str(bad.response["id"])) is None
        assert all([await same_chain(store, stored) for stored in good])
        assert "model" not in wrong or "failed together" in caplog.text

    async def test_closed_it_refuses(self, store: DatabaseResponseStore) -> None:
        stored = Turn().saying(*exchange(1))
        await store.save(stored)
        await store.aclose()
        with pytest.raises(StoreError):
            await store.save(stored)
        with pytest.raises(StoreError):
            await store.chain(stored.project, str(stored.response["id"]))
        with pytest.raises(StoreError):
            await store.start()

    async def test_not_started_it_refuses_to_save(self, alias: str) -> None:
        store = DatabaseResponseStore(using=alias)
        with pytest.raises(StoreError, match="does not run"):
            await store.save(Turn().saying(*exchange(1)))
        await store.aclose()

    async def test_who_follows_a_log_looks_at_nothing_before_its_position(
        self, store: DatabaseResponseStore, alias: str
    ) -> None:
        def plan() -> str:
            with connections[alias].cursor() as cursor:
                if cursor.db.vendor == "postgresql":
                    cursor.execute("SET enable_seqscan = off")  # the table is small
                explain = "EXPLAIN" if cursor.db.vendor == "postgresql" else "EXPLAIN QUERY PLAN"
                cursor.execute(f"{explain} {_LOG_SINCE}", ["id", 1000, "id", "project", time_value(cursor.db, 0)])
                told = " ".join(str(row) for row in cursor.fetchall())
            connections[alias].close()
            return told

        told = await asyncio.to_thread(plan)
        assert "position>?" in told or 'position" >=' in told, told


class TestCheck:
    async def test_says_what_to_do_until_all_is_migrated(self, empty_url: str, open_database: OpenDatabase) -> None:
        with open_database(empty_url) as alias:
            store = DatabaseResponseStore(using=alias)
            said = present(await store.check())
            assert "`respsite manage migrate`" in said
            await asyncio.to_thread(migrate, alias)
            assert await store.check() is None
            await store.aclose()

    async def test_says_that_the_database_is_away(
        self, tmp_path: Path, open_database: OpenDatabase, caplog: pytest.LogCaptureFixture
    ) -> None:
        with open_database(f"sqlite:///{tmp_path}") as alias:
            store = DatabaseResponseStore(using=alias)
            said = present(await store.check())
            assert "cannot be reached" in said
            assert "unable to open" in caplog.text
            await store.aclose()

    async def test_asks_no_more_than_it_has_to_once_all_was_well(
        self, sqlite_url: str, open_database: OpenDatabase
    ) -> None:
        with open_database(sqlite_url) as alias, queries(alias) as statements:
            store = DatabaseResponseStore(using=alias)
            assert await store.check() is None
            statements.clear()
            assert await store.check() is None
            assert statements == ["SELECT 1"]
            await store.aclose()


class TestAHang:
    """PostgreSQL stops to answer under an open store, as a whole or where it serves the store's connections."""

    @pytest.mark.parametrize("accepts", [False, True])
    async def test_whatever_waits_fails_in_time_and_nothing_is_kept_waiting_after_it(
        self, own_postgres_server: PostgresServer, open_database: OpenDatabase, accepts: bool
    ) -> None:
        timeout = 2.0
        url = own_postgres_server.url_of(own_postgres_server.create_database())
        with open_database(url) as alias:
            await asyncio.to_thread(migrate, alias)
            store = DatabaseResponseStore(using=alias, timeout=timeout)
            await store.start()
            stored = Turn().saying(*exchange(0))
            await store.save(stored)
            assert await same_chain(store, stored)
            with own_postgres_server.hanging(accepts=accepts):
                asked = time.monotonic()
                waiting = [
                    *(store.save(Turn().saying(*exchange(number))) for number in range(20)),
                    *(store.chain(stored.project, str(stored.response["id"])) for _ in range(20)),
                ]
                done = await asyncio.gather(*waiting, return_exceptions=True)
                assert time.monotonic() - asked < 4 * timeout, "not one behind the other, which would be 5 times"
                failed = sum(isinstance(each, StoreError) for each in done)
                assert failed >= 1 if accepts else failed == len(done), "one connection was open"
                if accepts:
                    assert await eventually_works(lambda: same_chain(store, stored))
                    await store.save(Turn().saying(*exchange(1)))
            assert await eventually_works(lambda: same_chain(store, stored))
            await store.save(Turn().saying(*exchange(2)))
            await store.aclose()


async def eventually_works(act: Callable[[], Awaitable[bool]]) -> bool:
    """Return what comes of something that may fail at first."""
    for _ in range(10):
        with suppress(StoreError):
            return await act()
    return await act()


class TestAnOutage:
    """PostgreSQL is stopped under an open store."""

    @pytest.fixture
    def url(self, own_postgres_server: PostgresServer) -> str:
        return own_postgres_server.url_of(own_postgres_server.create_database())

    @pytest.fixture
    async def store(self, alias: str, open_store: OpenStore) -> DatabaseResponseStore:
        await asyncio.to_thread(migrate, alias)
        store = await open_store()
        assert isinstance(store, DatabaseResponseStore)
        return store

    async def test_a_restart_between_is_not_noticed(
        self, own_postgres_server: PostgresServer, store: DatabaseResponseStore
    ) -> None:
        before = Turn().saying(*exchange(0))
        await store.save(before)
        assert await same_chain(store, before)
        await asyncio.to_thread(own_postgres_server.stop)
        await asyncio.to_thread(own_postgres_server.start)
        assert await same_chain(store, before)
        after = Turn().after(before).saying(*exchange(1))
        await store.save(after)
        assert await same_chain(store, after)

    async def test_while_it_is_away_everything_fails_and_then_works_again(
        self, own_postgres_server: PostgresServer, store: DatabaseResponseStore
    ) -> None:
        stored = Turn().saying(*exchange(0))
        await store.save(stored)
        await asyncio.to_thread(own_postgres_server.stop)
        with pytest.raises(StoreError):
            await store.save(stored)
        with pytest.raises(StoreError):
            await store.chain(stored.project, str(stored.response["id"]))
        said = present(await store.check())
        assert "cannot be reached" in said
        await asyncio.to_thread(own_postgres_server.start)
        assert await same_chain(store, stored)
        await store.save(stored)
        assert await store.check() is None


def test_numbers_are_packed_little_endian() -> None:
    assert pack([1, 2**32 - 1]) == b"\x01\x00\x00\x00\xff\xff\xff\xff"
    assert unpack(pack([1, 2**32 - 1])).tolist() == [1, 2**32 - 1]


@pytest.mark.parametrize(
    ("value", "text"),
    [({"a": math.nan}, '{"a":null}'), ("\ud800", '"\\ud800"'), ([2**70], f"[{2**70}]"), ({1: 2}, '{"1":2}')],
    ids=["nan", "surrogate", "large", "key"],
)
def test_json_is_written_whatever_it_holds(value: object, text: str) -> None:
    assert json_text(value) == text
