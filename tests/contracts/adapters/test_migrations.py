"""The migrations go back and forth, with rows, and are all there are."""

import asyncio
import sys
from typing import Any

import psycopg
from django.apps import apps
from django.core.management import call_command
from django.db import connections
from django.db.migrations.autodetector import MigrationAutodetector
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ProjectState

from responses_app.management.commands.migrate import LOCK
from responses_app.resources.conversations.model import Conversation
from responses_app.stores.database.responses.store import DatabaseResponseStore
from tests.contracts.adapters.conftest import OpenDatabase
from tests.contracts.store import Turn, exchange, same_chain, sampled_text
from tests.contracts.store_life import seen
from tests.kit.postgres_server import PostgresServer
from tests.kit.server import ROOT, manage, server_environ

SAVED = ("responses_app_response", "responses_app_chainpart", "responses_app_sampleditem")


async def test_they_go_back_and_forth_with_rows(empty_url: str, open_database: OpenDatabase) -> None:
    with open_database(empty_url) as alias:
        await asyncio.to_thread(migrate, alias)
        item = sampled_text("Answer.")
        first = Turn().saying(*exchange(0), sampled=[item])
        second = Turn().after(first).saying(*exchange(1))
        await save(alias, first, second)
        await asyncio.to_thread(converse, alias)
        await asyncio.to_thread(migrate, alias, "responses_app", "0001")
        assert await asyncio.to_thread(counts, alias) == [2, 2, 1]
        await asyncio.to_thread(migrate, alias, "responses_app")
        store = DatabaseResponseStore(using=alias)
        await store.start()
        for stored in (first, second):
            assert await seen(store, stored) == stored.response
            assert await same_chain(store, stored)
        assert await store.sampled_items(first.project, [item.id]) == {item.id: item}
        await store.save(Turn().after(second).saying(*exchange(2)))
        await store.aclose()


def test_no_change_of_the_models_lacks_one() -> None:
    loader = MigrationLoader(None)
    changes = MigrationAutodetector(loader.project_state(), ProjectState.from_apps(apps)).changes(loader.graph)
    assert "responses_app" not in changes


async def save(alias: str, *batch: object) -> None:
    store = DatabaseResponseStore(using=alias)
    await store.start()
    for stored in batch:
        await store.save(stored)  # type: ignore[arg-type]
    await store.aclose()


def migrate(alias: str, *target: str) -> None:
    call_command("migrate", *target, database=alias, verbosity=0)
    connections[alias].close()


def converse(alias: str) -> None:
    Conversation.objects.using(alias).create(pk="conv_1", created_at="2026-01-01T00:00:00Z")
    connections[alias].close()


def counts(alias: str) -> list[int]:
    found = []
    for table in SAVED:
        with connections[alias].cursor() as cursor:
            cursor.execute(f"SELECT COUNT(*) FROM {table}")
            found += cursor.fetchone()
    connections[alias].close()
    return found


async def test_processes_that_start_together_migrate_one_after_the_other(postgres_server: PostgresServer) -> None:
    url = postgres_server.url_of(postgres_server.create_database())
    together = [asyncio.to_thread(manage, "migrate", "--verbosity", "0", DATABASE_URL=url) for _ in range(3)]
    await asyncio.gather(*together)  # each would have failed, but one
    assert "[ ]" not in await asyncio.to_thread(manage, "showmigrations", DATABASE_URL=url)


async def test_whoever_waits_says_so(postgres_server: PostgresServer) -> None:
    url = postgres_server.url_of(postgres_server.create_database())
    arguments = ["manage.py", "migrate", "--verbosity", "0"]
    with psycopg.connect(url) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
        waiting: Any = await asyncio.create_subprocess_exec(
            sys.executable,
            *arguments,
            cwd=ROOT,
            env=server_environ(DATABASE_URL=url),
            stderr=asyncio.subprocess.PIPE,
        )
        assert b"Another process migrates" in await waiting.stderr.readline()
    _, rest = await waiting.communicate()
    assert (waiting.returncode, rest) == (0, b"")
