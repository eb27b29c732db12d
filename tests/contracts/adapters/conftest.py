"""Databases for tests of what runs on threads of its own, where pytest-django's transactions do not reach."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections
from pytest_django.plugin import DjangoDbBlocker

from responses_app.kit.threads import DatabaseReaders
from responses_app.stores.database.responses.store import DatabaseResponseStore
from tests.contracts.files import Hands
from tests.contracts.store_life import OpenStore
from tests.kit.databases import migrated_database, migrated_file, postgres
from tests.kit.postgres_server import PostgresServer, private_postgres_server  # noqa: F401 - a fixture
from tests.kit.server import manage
from tests.kit.sqlite import known_to_django

OpenDatabase = Callable[[str], AbstractContextManager[str]]


@pytest.fixture
def hands() -> Hands:
    """A clock that the test sets."""
    return Hands()


@pytest.fixture(scope="session")
def open_database(django_db_blocker: DjangoDbBlocker) -> OpenDatabase:
    """Make a database known to Django, from its URL, for as long as a `with` lasts; it gives the alias."""
    return partial(known_to_django, blocker=django_db_blocker)


@pytest.fixture(scope="session")
def migrated_sqlite() -> Path:
    """A migrated file, to be copied."""
    return migrated_file(manage)


@pytest.fixture(scope="session")
def postgres_server() -> PostgresServer:
    """The server that all tests share who leave it running."""
    return postgres()


@pytest.fixture(scope="session")
def migrated_postgres(postgres_server: PostgresServer) -> str:
    """The name of a migrated database of the shared server, to be copied."""
    return migrated_database(manage)


@pytest.fixture(scope="module")
def sqlite_url(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A migrated SQLite file of the module's own."""
    file = tmp_path_factory.mktemp("store") / "store.sqlite3"
    file.write_bytes(migrated_sqlite.read_bytes())
    return f"sqlite:///{file}"


@pytest.fixture(scope="module")
def postgres_url(postgres_server: PostgresServer, migrated_postgres: str) -> Iterator[str]:
    """A migrated PostgreSQL database of the module's own."""
    name = postgres_server.create_database(template=migrated_postgres)
    yield postgres_server.url_of(name)
    postgres_server.drop_database(name)


@pytest.fixture(params=["sqlite_url", "postgres_url"])
def url(request: pytest.FixtureRequest) -> str:
    """Each of the module's two databases."""
    return str(request.getfixturevalue(request.param))


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Each of two databases of the test's own, without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/new.sqlite3"
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return server.url_of(server.create_database())


@pytest.fixture
def alias(url: str, open_database: OpenDatabase) -> Iterator[str]:
    """The name of the database to Django."""
    with open_database(url) as alias:
        yield alias


@pytest.fixture
async def readers(alias: str) -> AsyncIterator[DatabaseReaders]:
    """Readers of the database."""
    readers = DatabaseReaders(alias, timeout=60.0).held()
    yield readers
    await readers.aclose()


@pytest.fixture
async def open_store(alias: str) -> AsyncIterator[OpenStore]:
    """Starts stores of responses, and closes them at the end."""
    opened: list[DatabaseResponseStore] = []

    async def open_one(**options: Any) -> DatabaseResponseStore:
        store = DatabaseResponseStore(using=alias, **options)
        opened.append(store)
        await store.start()
        return store

    yield open_one
    for store in opened:
        await store.aclose()


@pytest.fixture
async def store(open_store: OpenStore) -> DatabaseResponseStore:
    """One of them."""
    store = await open_store()
    assert isinstance(store, DatabaseResponseStore)
    return store


def migrate(alias: str) -> None:
    """Apply all migrations; not on an event loop."""
    call_command("migrate", database=alias, verbosity=0)
    connections[alias].close()
