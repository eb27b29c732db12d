"""A SQLite database of a test's own, for real stores where there is no server."""

import shutil
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from pytest_django.plugin import DjangoDbBlocker

from responses_app.resources.conversations.store import Conversations
from responses_app.resources.files.store import Files
from responses_app.resources.rollouts.store import RolloutStore
from responses_app.stores.approvals import ApprovalStore
from respsite.settings import database
from tests.kit.databases import migrated_file
from tests.kit.fakes import Site
from tests.kit.server import manage


@contextmanager
def known_to_django(url: str, blocker: DjangoDbBlocker) -> Iterator[str]:
    """Make a database known to Django, from its URL, for as long as a `with` lasts; it gives the alias.

    Connections that threads of the test have made are closed at its end: which thread of several has one is chance, and
    Python 3.13 warns of each that is left. Raises `AssertionError` where a store's pool has left one.
    """
    alias = f"test_{uuid.uuid4().hex}"
    made: list[BaseDatabaseWrapper] = []

    def note(connection: BaseDatabaseWrapper, **_: object) -> None:
        if connection.alias == alias:
            made.append(connection)

    connections.databases[alias] = connections.configure_settings({"default": {}, alias: database(url)})[alias]
    connection_created.connect(note)
    try:
        with blocker.unblock():
            yield alias
    finally:
        connection_created.disconnect(note)
        del connections.databases[alias]
        left = [each for each in made if each.connection is not None]
        of_pools = sum(each.allow_thread_sharing for each in left)
        for each in left:
            each.inc_thread_sharing()  # its thread may be gone
            each.close()
    assert not of_pools, f"{of_pools} connections of pools are open still"


@pytest.fixture
def sqlite_alias(tmp_path: Path, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    """The name of a migrated database to Django."""
    file = shutil.copy(migrated_file(manage), tmp_path / "store.sqlite3")
    with known_to_django(f"sqlite:///{file}", django_db_blocker) as alias:
        yield alias


@pytest.fixture
async def files(sqlite_alias: str) -> AsyncIterator[Files]:
    store = Files(using=sqlite_alias)
    yield store
    await store.aclose()


@pytest.fixture
async def conversations(sqlite_alias: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Conversations]:
    """The store of conversations, lent to the sites of the test."""
    store = Conversations(using=sqlite_alias)
    await store.start()
    monkeypatch.setitem(Site.lent, "conversations", store)
    yield store
    await store.aclose()


@pytest.fixture
async def rollout_store(sqlite_alias: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RolloutStore]:
    """The store of roll-outs, lent to the sites of the test."""
    store = RolloutStore(using=sqlite_alias)
    monkeypatch.setitem(Site.lent, "rollouts", store)
    yield store
    await store.aclose()


@pytest.fixture
async def approvals(sqlite_alias: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApprovalStore]:
    """The store of who holds approvals, lent to the sites of the test."""
    store = ApprovalStore(using=sqlite_alias)
    monkeypatch.setitem(Site.lent, "approvals", store)
    yield store
    await store.aclose()
