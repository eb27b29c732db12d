"""A SQLite database of a test's own, for real stores where there is no server."""

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.db import connections
from pytest_django.plugin import DjangoDbBlocker

from respsite.settings import database
from tests.kit.databases import migrated_file
from tests.kit.server import manage


@contextmanager
def known_to_django(url: str, blocker: DjangoDbBlocker) -> Iterator[str]:
    """Make a database known to Django, from its URL, for as long as a `with` lasts; it gives the alias.

    Whoever connects in there closes the connection.
    """
    alias = f"test_{uuid.uuid4().hex}"
    connections.databases[alias] = connections.configure_settings({"default": {}, alias: database(url)})[alias]
    try:
        with blocker.unblock():
            yield alias
    finally:
        del connections.databases[alias]


@pytest.fixture
def sqlite_alias(tmp_path: Path, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    """The name of a migrated database to Django."""
    file = shutil.copy(migrated_file(manage), tmp_path / "store.sqlite3")
    with known_to_django(f"sqlite:///{file}", django_db_blocker) as alias:
        yield alias
