"""A look into a server's database, past the server."""

import sqlite3
from contextlib import closing
from typing import Any

import psycopg

from tests.kit.server import Server


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
