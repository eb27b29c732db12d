"""Stores on a migrated database, and what they do with it."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any, TypeVar

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.db.models import Model, QuerySet

from responses_app.extensions.playground.chat_store import DatabaseKeptChats
from responses_app.kit import pool
from responses_app.stores.base import BaseResponseStore, RetentionSettings
from responses_app.stores.database.responses.chats import DatabaseChatStore
from tests.contracts.store_life import OpenStore
from tests.kit.server import ROOT, START_SECONDS
from tests.kit.waiting import eventually

Result = TypeVar("Result")
Beside = TypeVar("Beside", DatabaseChatStore, DatabaseKeptChats)


@asynccontextmanager
async def opening(
    open_store: OpenStore, beside: type[Beside], alias: str
) -> AsyncIterator[Callable[..., Awaitable[tuple[BaseResponseStore, Beside]]]]:
    """Open stores of responses, each with a store beside it that has the same settings and clock."""
    opened: list[Beside] = []

    async def open_one(**options: Any) -> tuple[BaseResponseStore, Beside]:
        chats = beside(using=alias, **{"settings": RetentionSettings(), **options})
        opened.append(chats)
        return await open_store(**options), chats

    yield open_one
    for chats in opened:
        await chats.aclose()


@contextmanager
def queries(alias: str) -> Iterator[list[str]]:
    """Collect the statements in here of connections to `alias` that are idle or made, transactions' own left out."""
    statements: list[str] = []

    def note(execute: Callable[..., Any], sql: str, params: object, many: bool, context: object) -> Any:
        statements.append(sql)
        return execute(sql, params, many, context)

    def watch(connection: Any, **_: object) -> None:
        if connection.alias == alias:
            connection.execute_wrappers.append(note)

    idle = [each for known in pool._pools if known.is_of(alias) for each in known._idle if each.connection]
    for connection in idle:
        watch(connection)
    connection_created.connect(watch)
    try:
        yield statements
    finally:
        connection_created.disconnect(watch)
        for connection in idle:
            connection.execute_wrappers.remove(note)


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


def race(program: str, *arguments: Sequence[str], environ: Mapping[str, str]) -> None:
    """Run a program of Python in several processes, each with its arguments, and wait for their ends.

    Each prints "ready" when it has begun, and goes on when all have.
    """
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    commands = [[sys.executable, "-c", program, *words] for words in arguments]
    with ExitStack() as stack:
        running = [stack.enter_context(subprocess.Popen(each, cwd=ROOT, env=environ, **pipes)) for each in commands]
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in running:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        ended = [(process.communicate(timeout=START_SECONDS)[1], process.returncode) for process in running]
        assert ended == [("", 0)] * len(running)
