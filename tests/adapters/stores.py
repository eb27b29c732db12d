"""Stores on a migrated database, and what they do with it."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connections
from django.db.backends.signals import connection_created
from django.db.models import Model, QuerySet

from responses_app.stores.database import DatabaseResponseStore
from tests.adapters.conftest import OpenDatabase
from tests.contracts.store_life import OpenStore

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
