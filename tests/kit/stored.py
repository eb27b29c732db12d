"""A look into a server's database, past the server, and a lock of it."""

import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg

from tests.kit.server import START_SECONDS, Server


def stored(server: Server, query: str) -> list[tuple[Any, ...]]:
    """Return the rows that a query finds."""
    url = server.environ.get("DATABASE_URL")
    if url:
        with psycopg.connect(url) as database:
            return database.execute(query.encode()).fetchall()
    with closing(sqlite3.connect(server.folder / "respsite.sqlite3")) as database:
        return database.execute(query).fetchall()


def stored_statuses(server: Server) -> dict[str, str]:
    """Return the states of all stored responses, by their ids."""
    return dict(stored(server, "SELECT id, status FROM responses_app_response"))  # type: ignore[arg-type]


def change(server: Server, statement: str) -> None:
    """Write into a server's database, past the server."""
    url = server.environ.get("DATABASE_URL")
    if url:
        with psycopg.connect(url) as database:
            database.execute(statement.encode())
        return
    with closing(sqlite3.connect(server.folder / "respsite.sqlite3", timeout=START_SECONDS)) as database, database:
        database.execute(statement)


def owner_of(server: Server, response_id: str) -> str:
    """Return the id of the worker that runs a response."""
    ((worker,),) = stored(server, f"SELECT worker FROM responses_app_response WHERE id = '{response_id}'")
    return str(worker)


def end_lease(server: Server, worker: str) -> None:
    """Let a worker that was killed have been silent for long: others take over at their next look."""
    change(server, f"UPDATE responses_app_worker SET seen_at = '2020-01-01 00:00:00' WHERE id = '{worker}'")


@contextmanager
def locked(server: Server) -> Iterator[None]:
    """Let nobody write to a server's database, which is SQLite's."""
    file = server.folder / "respsite.sqlite3"
    with closing(sqlite3.connect(file, isolation_level=None, timeout=START_SECONDS)) as database:
        database.execute("BEGIN IMMEDIATE")
        yield
        database.execute("ROLLBACK")


def stop_beside_its_writes(server: Server) -> None:
    """Stop a server (SIGSTOP) where it does not stand in a transaction.

    Of SQLite that would keep all others from writing, and so from taking over. PostgreSQL ends such a transaction.
    """
    assert server.process is not None
    if server.environ.get("DATABASE_URL"):
        os.killpg(server.process.pid, signal.SIGSTOP)
        return
    with locked(server):
        os.killpg(server.process.pid, signal.SIGSTOP)
