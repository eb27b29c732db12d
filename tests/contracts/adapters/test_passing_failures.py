"""Failures of PostgreSQL that pass: known by their SQLSTATE, and done again on a new connection."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import psycopg
import pytest
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from responses_app.kit.errors import StoreError
from responses_app.kit.threads import THREADS, DatabaseReaders
from responses_app.kit.writer import CoalescingWriter
from responses_app.models.engines import EngineDoor
from responses_app.stores.database.postgres import base
from tests.contracts.adapters.conftest import OpenDatabase
from tests.kit.databases import url_on
from tests.kit.postgres_server import PostgresServer
from tests.kit.server import manage
from tests.kit.waiting import eventually

# https://www.postgresql.org/docs/current/errcodes-appendix.html
PASS = """
    25006 25P03 25P04 57P01 57P02 57P03 57P04 57P05 53000 53100 53200 53300 53400 08000 08001 08003 08004 08006 XX000
    40001 40P01 55P03 57014 58000 58030
""".split()
STAY = ["22P02", "23505", "42501", "42601", "XX001", "25P02"]  # a value, a rule, a right, a fault of our own


def raised(state: str) -> Callable[[BaseDatabaseWrapper], None]:
    """Return a query that fails with this SQLSTATE; without one, as where a pooler has lost its server."""

    def query(connection: BaseDatabaseWrapper) -> None:
        if not state:
            with connection.wrap_database_errors:
                raise psycopg.InternalError("received 2 results from command 'BEGIN'")
        with connection.cursor() as cursor:
            cursor.execute(f"DO $$ BEGIN RAISE EXCEPTION 'it fails' USING ERRCODE = '{state}'; END $$")

    return query


def process_of(connection: BaseDatabaseWrapper) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def record(connection: BaseDatabaseWrapper, models: Sequence[str]) -> None:
    for model in models:
        if model == "bad":
            raised("XX000")(connection)
        EngineDoor.objects.using(connection.alias).update_or_create(model=model, defaults={"number": 1})


class TestStates:
    @pytest.fixture
    def url(self, postgres_url: str) -> str:
        return postgres_url

    @pytest.mark.parametrize("state", [*PASS, *STAY])
    async def test_what_passes_is_known(self, readers: DatabaseReaders, state: str) -> None:
        with pytest.raises(StoreError) as failed:
            await readers.run(raised(state))
        assert failed.value.passing is (state in PASS)
        assert await readers.run(process_of) > 0

    @pytest.mark.parametrize("state", [None, "", *sorted(base.PASSING_STATES)])
    async def test_it_is_done_again_on_a_new_connection(self, readers: DatabaseReaders, state: str | None) -> None:
        """Without a state it has an answer, with which the server tells that it is no primary."""
        processes: list[int] = []

        def fails_once(connection: BaseDatabaseWrapper) -> int:
            processes.append(process_of(connection))
            if len(processes) == 1 and state is None:
                connection.has_failed = True  # type: ignore[attr-defined] # as what was told since the last answer
            elif len(processes) == 1:
                raised(state)(connection)
            return processes[-1]

        assert await readers.run(fails_once) != processes[0]

    async def test_what_was_committed_with_that_answer_is_not_done_twice(self, readers: DatabaseReaders) -> None:
        calls: list[str] = []

        def write(connection: BaseDatabaseWrapper) -> None:
            calls.append("write")
            with transaction.atomic(using=connection.alias):
                record(connection, ["once"])
            connection.has_failed = True  # type: ignore[attr-defined] # as what the answer to COMMIT has told

        await readers.run(write)
        assert calls == ["write"]
        assert await readers.run(process_of) > 0

    async def test_one_record_that_postgresql_did_not_foresee_fails_alone(self, alias: str) -> None:
        writer = CoalescingWriter[str](lambda models: record(connections[alias], models), using=alias, timeout=60.0)
        writer.start()
        written = await asyncio.gather(*map(writer.write, ["a", "bad", "b"]), return_exceptions=True)
        assert [type(each) for each in written] == [type(None), StoreError, type(None)]
        await writer.aclose()

    async def test_a_write_gets_through_though_each_idle_connection_was_ended(
        self, postgres_server: PostgresServer, alias: str, readers: DatabaseReaders, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("responses_app.kit.writer.RETRY_PAUSES", (0.0,))
        committed: list[str] = []
        together = threading.Barrier(THREADS)

        def beside_others(connection: BaseDatabaseWrapper) -> int:
            together.wait(60.0)
            return process_of(connection)

        def write(batch: Sequence[str]) -> None:
            assert process_of(connections[alias])
            committed.extend(batch)

        writer = CoalescingWriter(write, using=alias, timeout=60.0)
        writer.start()
        idle = await asyncio.gather(*(readers.run(beside_others) for _ in range(THREADS)))
        with psycopg.connect(postgres_server.url, autocommit=True) as killing:
            for process in set(idle):
                assert killing.execute("SELECT pg_terminate_backend(%s, 60000)", [process]).fetchone() == (True,)
        await writer.write("a")
        assert committed == ["a"]
        await writer.aclose()


class TestAServerThatOnlyReads:
    @pytest.fixture
    def alias(self, own_postgres_server: PostgresServer, open_database: OpenDatabase) -> Iterator[str]:
        with open_database(url_on(own_postgres_server, manage)) as alias:
            yield alias

    async def test_no_connection_to_it_is_kept(
        self, readers: DatabaseReaders, own_postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = {await readers.run(process_of) for _ in range(4 * THREADS)}
        monkeypatch.setattr(base, "ANEW_SECONDS", 0.0)

        async def is_told() -> bool:
            await readers.run(process_of)
            return before.isdisjoint({await readers.run(process_of) for _ in range(4 * THREADS)})

        with own_postgres_server.only_reading():
            await eventually(is_told)  # it only ever reads

    async def test_a_write_waits_until_it_takes_some(self, alias: str, own_postgres_server: PostgresServer) -> None:
        def keep(models: Sequence[str]) -> None:
            attempts.append(len(models))
            if len(attempts) == 2:
                switched.close()  # behind the first attempt that was refused
            for model in models:
                EngineDoor.objects.using(alias).update_or_create(model=model, defaults={"number": 1})

        attempts: list[int] = []
        writer = CoalescingWriter(keep, using=alias, timeout=60.0)
        writer.start()
        switched = ExitStack()
        switched.enter_context(own_postgres_server.only_reading())
        await writer.write("a")
        assert len(attempts) > 1
        await writer.aclose()

    async def test_the_reason_is_told(self, readers: DatabaseReaders, own_postgres_server: PostgresServer) -> None:
        with own_postgres_server.only_reading(), pytest.raises(StoreError) as failed:
            await readers.run(lambda db: EngineDoor.objects.using(db.alias).create(model="a"))
        assert failed.value.cause is not None
        assert "only lets read" in failed.value.cause
