"""Connections of a process: as many as a setting allows, and those that a server refuses for now are waited for."""

import asyncio
import math
import threading
from collections.abc import Iterator
from contextlib import nullcontext

import psycopg
import pytest
from django.db import OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from responses_app.kit import pool
from responses_app.kit.errors import StoreError, cause_of
from responses_app.kit.threads import THREADS, DatabaseReaders
from responses_app.kit.writer import CoalescingWriter
from responses_app.stores.database.responses.store import DatabaseResponseStore
from tests.contracts.adapters.conftest import OpenDatabase
from tests.kit.postgres_server import PostgresServer
from tests.kit.waiting import eventually

MOST = 4
NO_ROOM = "no connection left"


def count(connection: BaseDatabaseWrapper) -> int:
    """Return how many connections the database has."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid IS NOT NULL")
        return int(cursor.fetchone()[0])


class TestABound:
    @pytest.fixture
    def alias(
        self, postgres_server: PostgresServer, migrated_postgres: str, open_database: OpenDatabase
    ) -> Iterator[str]:
        name = postgres_server.create_database(template=migrated_postgres)
        with open_database(postgres_server.url_of(name)) as alias:
            connections.databases[alias]["MAX_CONNECTIONS"] = MOST
            yield alias
        postgres_server.drop_database(name)

    async def test_no_more_are_open_whatever_waits(self, alias: str) -> None:
        everybody = [DatabaseReaders(alias) for _ in range(3)]
        urgent, begun, go_on = DatabaseReaders(alias, urgent=True), [], threading.Event()

        def slow(connection: BaseDatabaseWrapper) -> int:
            begun.append(count(connection))
            assert go_on.wait(60.0)
            return 1

        slow_ones = [asyncio.create_task(each.run(slow)) for each in everybody for _ in range(THREADS)]
        await eventually(lambda: len(begun) == MOST - pool.URGENT)
        # They come through beside those that take all that is theirs.
        assert max(await asyncio.gather(*(urgent.run(count) for _ in range(THREADS)))) <= MOST
        assert len(begun) == MOST - pool.URGENT
        go_on.set()
        assert sum(await asyncio.gather(*slow_ones)) == len(slow_ones)
        assert max(begun) <= MOST
        for each in (*everybody, urgent):
            await each.aclose()

    async def test_urgent_work_leaves_others_what_is_theirs(self, alias: str) -> None:
        urgent, others = DatabaseReaders(alias, urgent=True), DatabaseReaders(alias, timeout=30.0)
        begun, go_on = threading.Semaphore(0), threading.Event()

        def slow(_: BaseDatabaseWrapper) -> None:
            begun.release()
            assert go_on.wait(60.0)

        slow_ones = [asyncio.create_task(urgent.run(slow)) for _ in range(pool.URGENT)]
        for _ in slow_ones:
            assert await asyncio.to_thread(begun.acquire, timeout=60.0)
        assert await others.run(count) >= 1
        go_on.set()
        await asyncio.gather(*slow_ones)
        for each in (urgent, others):
            await each.aclose()

    async def test_who_gets_none_in_time_is_told_so(self, alias: str) -> None:
        readers, begun, go_on = DatabaseReaders(alias), threading.Semaphore(0), threading.Event()

        def slow(_: BaseDatabaseWrapper) -> None:
            begun.release()
            assert go_on.wait(60.0)

        slow_ones = [asyncio.create_task(readers.run(slow)) for _ in range(MOST - pool.URGENT)]
        for _ in slow_ones:
            assert await asyncio.to_thread(begun.acquire, timeout=60.0)
        borrowed = pool.hold(alias)
        with pytest.raises(OperationalError) as failed, borrowed.lent(ends_at=0.0):
            raise AssertionError("one more than there are")
        assert "DATABASE_CONNECTIONS" in str(cause_of(failed.value))
        impatient, patient = DatabaseReaders(alias, timeout=0.1), asyncio.create_task(readers.run(count))
        await eventually(lambda: borrowed.is_waited_for)
        with pytest.raises(StoreError) as too_late:
            await impatient.run(count)
        assert "DATABASE_CONNECTIONS" in str(too_late.value.cause)
        go_on.set()
        await asyncio.gather(*slow_ones, patient)
        await impatient.aclose()
        pool.let_go(borrowed)
        await readers.aclose()


class TestAServerThatHasNoneLeft:
    """One role may have a single connection, and somebody has it."""

    @pytest.fixture
    def url(self, postgres_server: PostgresServer, postgres_url: str) -> Iterator[str]:
        role = postgres_server.create_role(connections=1)
        yield postgres_url.replace("postgres@", f"{role}@")
        postgres_server.drop_role(role)

    @pytest.fixture
    def taken(self, url: str) -> Iterator[psycopg.Connection]:
        with psycopg.connect(url) as connection:
            yield connection

    async def test_it_is_waited_for(
        self, alias: str, taken: psycopg.Connection, caplog: pytest.LogCaptureFixture
    ) -> None:
        readers = DatabaseReaders(alias, timeout=60.0)
        reading = asyncio.create_task(readers.run(count))
        await eventually(lambda: NO_ROOM in caplog.text)
        taken.close()
        assert await reading >= 1
        await readers.aclose()

    async def test_a_write_waits_for_it(
        self, alias: str, taken: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("responses_app.kit.writer.RETRY_PAUSES", ())
        committed: list[str] = []
        writer = CoalescingWriter[str](committed.extend, using=alias, timeout=60.0)
        writer.start()
        writing = asyncio.create_task(writer.write("a"))
        await eventually(lambda: "trying again" in caplog.text)
        taken.close()
        await writing
        assert committed == ["a"]
        await writer.aclose()

    async def test_the_reason_is_told(self, alias: str, taken: psycopg.Connection) -> None:
        readers, store = DatabaseReaders(alias, timeout=60.0), DatabaseResponseStore(using=alias, timeout=60.0)
        with pytest.raises(StoreError) as failed:
            await readers.run(count, waits=False)
        assert NO_ROOM in str(failed.value.cause)
        assert NO_ROOM in str(await store.check()), "as /ready has it"
        taken.close()
        await store.aclose()
        await readers.aclose()


@pytest.mark.parametrize(
    "text",
    [
        "FATAL:  sorry, too many clients already",
        "FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute",
        'FATAL:  too many connections for role "respsite"',
        'FATAL:  too many connections for database "respsite"',
        "FATAL:  no more connections allowed (max_client_conn)",
    ],
)
def test_a_refusal_is_known_by_its_text(text: str) -> None:
    cause = str(cause_of(OperationalError(f'connection to server at "127.0.0.1", port 1 failed: {text}')))
    assert NO_ROOM in cause
    assert "DATABASE_CONNECTIONS" in cause


@pytest.mark.parametrize("of_a_pool", [True, False])
def test_tests_close_connections_of_their_threads_and_find_those_of_pools(
    sqlite_url: str, open_database: OpenDatabase, of_a_pool: bool
) -> None:
    made: list[BaseDatabaseWrapper] = []

    def connect() -> None:
        held = pool.ConnectionPool(alias)
        with held.lent(ends_at=math.inf) if of_a_pool else nullcontext(connections[alias]) as connection:
            connection.ensure_connection()
            made.append(connection)

    with (
        pytest.raises(AssertionError, match="1 connections of pools") if of_a_pool else nullcontext(),
        open_database(sqlite_url) as alias,
    ):
        thread = threading.Thread(target=connect)
        thread.start()
        thread.join()
    assert [each.connection for each in made] == [None]
