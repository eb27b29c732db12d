"""Databases for tests of what runs on threads of its own, where pytest-django's transactions do not reach."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connections
from pytest_django.plugin import DjangoDbBlocker

from respsite.settings import database
from tests.kit.databases import migrated_database, migrated_file, postgres
from tests.kit.postgres_server import PostgresServer, private_postgres_server  # noqa: F401 - a fixture
from tests.kit.server import manage

OpenDatabase = Callable[[str], AbstractContextManager[str]]


@pytest.fixture(scope="session")
def open_database(django_db_blocker: DjangoDbBlocker) -> OpenDatabase:
    """Make a database known to Django, from its URL, for as long as a `with` lasts; it gives the alias.

    Whoever connects in there closes the connection.
    """

    @contextmanager
    def opened(url: str) -> Iterator[str]:
        alias = f"test_{uuid.uuid4().hex}"
        config = database(url)
        connections.databases[alias] = connections.configure_settings({"default": {}, alias: config})[alias]
        try:
            with django_db_blocker.unblock():
                yield alias
        finally:
            del connections.databases[alias]

    return opened


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


def migrate(alias: str) -> None:
    """Apply all migrations; not on an event loop."""
    call_command("migrate", database=alias, verbosity=0)
    connections[alias].close()
