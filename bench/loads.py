"""The row about loading a long conversation from the database: in this process, no server."""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from bench.report import Result, beside
from bench.servers import Bench
from engine.formats.harmony.prompt import render_assistant, render_text
from responses_app.stores.base import StoredResponse
from tests.kit.postgres_server import PostgresServer

PARTS = 1000
ROUNDS = 25
_TEXT = "Tell me more about it, and how the weather on the river changes what the fox does. " * 6
TARGETS = {"SQLite": 1.5, "PostgreSQL": 1.5}
_numbers = count(1)


def load(bench: Bench) -> Iterator[Result]:
    """Load a chain of 1,000 responses, each with its reasoning; on both databases."""
    for name, target in TARGETS.items():
        bench.report.step(name)
        with database_of(bench, name) as alias:
            stored = asyncio.run(_save(alias))
            _analyze(alias)
            milliseconds, selected, tokens = asyncio.run(_load(alias, stored))
        yield beside(
            f"chain of {PARTS:,} stored responses loaded, {name}",
            milliseconds,
            yardstick="a SELECT of its rows",
            its=selected,
            unit="ms",
            target=target,
            details={"best ms": min(milliseconds), "tokens": tokens},
        )


@contextmanager
def database_of(bench: Bench, name: str) -> Iterator[str]:
    """Make a migrated database; give the alias under which Django knows it.

    Each has an alias of its own: Django keeps connections by alias and thread, with the address they were made with.
    """
    os.environ.update(DATA_DIR=str(bench.folder / "data"), DJANGO_SETTINGS_MODULE="respsite.settings")
    import django
    from django.core.management import call_command
    from django.db import connections

    from respsite.settings import database

    django.setup()
    server = PostgresServer() if name == "PostgreSQL" else None
    if server:
        server.start()
    alias = f"{name}-{next(_numbers)}"
    try:
        config = database(server.url if server else f"sqlite:///{bench.folder}/{alias}.sqlite3")
        connections.databases[alias] = connections.configure_settings({"default": {}, alias: config})[alias]
        call_command("migrate", database=alias, verbosity=0)
        connections[alias].close()
        yield alias
    finally:
        if server:
            server.close()


async def _save(alias: str) -> StoredResponse:
    """Save the chain; return its end."""
    from responses_app.stores.database.responses.store import DatabaseResponseStore
    from tests.contracts.store import Turn

    store = DatabaseResponseStore(using=alias)
    await store.start()
    turn = Turn()
    for number in range(PARTS):
        question, answer = (f"{kind} {number}. {_TEXT}" for kind in ("Question", "Answer"))
        stored = turn.saying(
            render_text("user", question), render_assistant("analysis", answer), render_assistant("final", answer)
        )
        await store.save(stored)
        turn = turn.after(stored)
    await store.aclose()
    return stored


def _analyze(alias: str) -> None:
    """Tell the database what it holds, as PostgreSQL does by itself after a while; not in these few seconds."""
    from django.db import connections

    with connections[alias].cursor() as cursor:
        cursor.execute("ANALYZE")
    connections[alias].close()


async def _load(alias: str, stored: StoredResponse) -> tuple[list[float], list[float], int]:
    """Return milliseconds of each round, and of a SELECT of the same rows, and how many tokens the chain has."""
    from responses_app.stores.database.responses.store import DatabaseResponseStore

    store = DatabaseResponseStore(using=alias)
    milliseconds, selected = [], []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        link = await store.chain(stored.project, str(stored.response["id"]))
        milliseconds.append((time.perf_counter() - began) * 1e3)
        assert link is not None
        selected.append(await asyncio.to_thread(_select, alias))
    await store.aclose()
    return milliseconds, selected, len(link.prompt_tokens())


def _select(alias: str) -> float:
    """Return the milliseconds of a SELECT of all parts; there are none but those of the chain."""
    from django.db import connections

    with connections[alias].cursor() as cursor:
        began = time.perf_counter()
        cursor.execute("SELECT * FROM responses_app_chainpart")
        assert len(cursor.fetchall()) == PARTS
        took = time.perf_counter() - began
    connections[alias].close()
    return took * 1e3
