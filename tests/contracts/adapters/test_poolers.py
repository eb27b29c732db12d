"""A session that a pooler lends to one transaction after another: no store leaves a setting or a cursor in it."""

from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest
from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from responses_app.kit.sql import read_in_chunks
from responses_app.kit.threads import DatabaseReaders
from responses_app.models.engines import EngineDoor
from tests.contracts.adapters.conftest import OpenDatabase
from tests.kit.pgbouncer import PgBouncer
from tests.kit.postgres_server import PostgresServer

MODELS = ["a", "b", "c"]
LEFT = """
SELECT current_setting('statement_timeout'), current_setting('idle_in_transaction_session_timeout'),
    (SELECT count(*) FROM pg_cursors), (SELECT count(*) FROM pg_prepared_statements)
"""
NOTHING = ("0", "0", 0, 0)


def left_in(connection: BaseDatabaseWrapper) -> tuple[object, ...]:
    with connection.cursor() as cursor:
        cursor.execute(LEFT)
        return tuple(cursor.fetchone())


def names(connection: BaseDatabaseWrapper) -> Iterator[str]:
    rows = EngineDoor.objects.using(connection.alias).order_by("pk").values_list("model", flat=True)
    return rows.iterator(chunk_size=1)


def fill(connection: BaseDatabaseWrapper) -> None:
    for model in MODELS:
        EngineDoor.objects.using(connection.alias).update_or_create(model=model, defaults={"number": 1})


def read_all(connection: BaseDatabaseWrapper) -> None:
    """Read as stores and pages of the admin do, and leave it half done."""
    assert next(names(connection)) == "a"
    with read_in_chunks(connection.alias):
        assert left_in(connection) == ("20s", "20s", 0, 0)
        every = names(connection)
        assert next(every) == "a"
        assert left_in(connection)[2] == 1, "a chunk is to be in memory at a time"
    with transaction.atomic(using=connection.alias):
        assert left_in(connection)[:2] == ("20s", "20s")
        fill(connection)


@pytest.fixture
def url(postgres_url: str) -> str:
    return postgres_url


@pytest.fixture
async def readers(alias: str) -> AsyncIterator[DatabaseReaders]:
    readers = DatabaseReaders(alias, timeout=20.0).held()
    await readers.run(fill)
    yield readers
    await readers.aclose()


class TestASessionOfOthers:
    @pytest.fixture(autouse=True)
    def pooled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Name clients a process that is not the server's, as poolers do."""
        monkeypatch.setattr(psycopg.ConnectionInfo, "backend_pid", property(lambda _: 1))

    async def test_nothing_is_left_in_it(self, readers: DatabaseReaders) -> None:
        await readers.run(read_all)
        assert await readers.run(left_in) == NOTHING


async def test_its_own_has_the_limits(readers: DatabaseReaders) -> None:
    await readers.run(read_all)
    assert await readers.run(left_in) == ("20s", "20s", 0, 0)


async def test_chunks_are_read_on_beside_a_connection_that_is_made_anew(readers: DatabaseReaders) -> None:
    def read(connection: BaseDatabaseWrapper) -> tuple[list[str], list[str]]:
        outside = names(connection)
        begun = [next(outside)]
        connection.has_failed = True  # type: ignore[attr-defined] # as where the server has told that it only reads
        left_in(connection)
        assert not connection.has_failed  # type: ignore[attr-defined]
        with read_in_chunks(connection.alias):
            inside = names(connection)
            more = [next(inside)]
            connection.has_failed = True  # type: ignore[attr-defined]
            left_in(connection)
            more += inside
        return begun + list(outside), more

    assert await readers.run(read) == (MODELS, MODELS)


@pytest.mark.needs("pgbouncer")
async def test_a_real_pooler(postgres_server: PostgresServer, postgres_url: str, open_database: OpenDatabase) -> None:
    name = postgres_url.rpartition("/")[2]
    # One session, which each transaction gets in turn.
    with PgBouncer(postgres_server.port, sessions=1) as pooler, open_database(pooler.url_of(name)) as alias:
        readers = DatabaseReaders(alias, timeout=20.0).held()
        await readers.run(fill)
        await readers.run(read_all)
        with psycopg.connect(pooler.url_of(name), autocommit=True) as other:
            assert other.execute(LEFT).fetchone() == NOTHING
        await readers.aclose()
