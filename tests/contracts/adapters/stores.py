"""Stores on a migrated database, and what they do with it."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.db.models import Model, QuerySet

from responses_app.stores.database.responses.store import DatabaseResponseStore
from tests.contracts.adapters.conftest import OpenDatabase
from tests.contracts.store_life import OpenStore
from tests.kit.waiting import eventually

Result = TypeVar("Result")

SQLITE_AND_POSTGRES = ("sqlite_url", "postgres_url")


class DatabaseCase:
    """Stores on a migrated database that a module's tests share; a subclass gives its `url`."""

    @pytest.fixture
    def alias(self, url: str, open_database: OpenDatabase) -> Iterator[str]:
        with open_database(url) as alias:
            yield alias

    @pytest.fixture
    async def open_store(self, alias: str) -> AsyncIterator[OpenStore]:
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
    async def store(self, open_store: OpenStore) -> DatabaseResponseStore:
        store = await open_store()
        assert isinstance(store, DatabaseResponseStore)
        return store


class OnBothCase(DatabaseCase):
    """The same on SQLite and on PostgreSQL."""

    @pytest.fixture(params=SQLITE_AND_POSTGRES)
    def url(self, request: pytest.FixtureRequest) -> str:
        return request.getfixturevalue(request.param)


@contextmanager
def queries(alias: str) -> Iterator[list[str]]:
    """Collect the statements of all connections to `alias` that are made in here, transactions' own left out."""
    statements: list[str] = []

    def note(execute: Callable[..., Any], sql: str, params: object, many: bool, context: object) -> Any:
        statements.append(sql)
        return execute(sql, params, many, context)

    def watch(connection: Any, **_: object) -> None:
        if connection.alias == alias:
            connection.execute_wrappers.append(note)

    connection_created.connect(watch)
    try:
        yield statements
    finally:
        connection_created.disconnect(watch)


def reads(statements: list[str]) -> list[str]:
    """Return those that read."""
    return [sql for sql in statements if "SELECT" in sql]


def rows(alias: str, model: type[Model], **filters: object) -> list[Any]:
    """Return rows; not on an event loop."""
    found: QuerySet[Any] = model._default_manager.using(alias).filter(**filters)
    try:
        return list(found)
    finally:
        connections[alias].close()


def within(alias: str, act: Callable[[BaseDatabaseWrapper], Result]) -> Result:
    """Do something in a transaction; not on an event loop."""
    try:
        with transaction.atomic(using=alias):
            return act(connections[alias])
    finally:
        connections[alias].close()


class Held:
    """A transaction on a thread of its own that has done something, and commits when it is told to."""

    def __init__(self, alias: str, act: Callable[[BaseDatabaseWrapper], object]) -> None:
        self._acted, self._release = threading.Event(), threading.Event()

        def hold(connection: BaseDatabaseWrapper) -> None:
            act(connection)
            self._acted.set()
            assert self._release.wait(10)

        self._task = asyncio.create_task(asyncio.to_thread(within, alias, hold))

    async def acted(self) -> "Held":
        """Wait until it has done it."""
        assert await asyncio.to_thread(self._acted.wait, 10)
        return self

    async def commit(self) -> None:
        """Let it end."""
        self._release.set()
        await self._task


async def waits_for_a_lock(alias: str, url: str) -> None:
    """Return once another connection waits; nobody can see that on SQLite, where everybody waits from the start."""

    def is_waiting(connection: BaseDatabaseWrapper) -> bool:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            )
            return bool(cursor.fetchone()[0])

    if url.startswith("postgres"):
        await eventually(lambda: asyncio.to_thread(within, alias, is_waiting))
