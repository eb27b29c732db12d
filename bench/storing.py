"""The rows about what it costs to store a response, on SQLite and PostgreSQL.

The yardstick is two bare commits of the same rows. They are read from the server's own database, and go under other ids
into a second one, which has the same tables, indexes and triggers and as many rows. One commit has the response as it
was accepted, the other its end and all that comes with that. There is no Django in it, and nobody waits for it. Of
PostgreSQL both figures are the client's CPU alone.
"""

import asyncio
import json
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from statistics import median
from typing import Any

import psycopg

from bench.client import WebSocket, create
from bench.report import Result, beside
from bench.servers import Bench, BenchServer
from tests.kit.server import Server

WRITERS = 50
RESPONSES = 10  # each of them, one after the other
ROUNDS = 5
KINDS = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
_RESPONSES = "responses_app_response"
# What comes with the end of a response, by the column that has its id. A trigger adds that its words are to be read.
_FURTHER = {
    "responses_app_chainpart": "id",
    "responses_app_sampleditem": "response_id",
    "responses_app_logpart": "response_id",
    "responses_app_usage": "id",
}
Row = Mapping[str, Any]
Statement = tuple[str, Row]  # with its values by column


class Database:
    """A server's database, spoken to by its driver."""

    def __init__(self, server: Server, kind: str) -> None:
        self._mark = "?" if kind == "sqlite" else "%s"
        if kind == "sqlite":
            self._connection: Any = sqlite3.connect(server.folder / "respsite.sqlite3", isolation_level=None)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=NORMAL")  # as our server has it
        else:
            self._connection = psycopg.connect(server.environ["DATABASE_URL"], autocommit=True)

    def close(self) -> None:
        """Let go of it."""
        self._connection.close()

    def rows(self, table: str, column: str, value: str) -> list[Row]:
        """Return the rows that have a value; without the numbers that the database gives them."""
        cursor = self._connection.execute(f"SELECT * FROM {table} WHERE {column} = {self._mark}", [value])
        names = [each[0] for each in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        return [{name: row[name] for name in row if name != "id" or isinstance(row[name], str)} for row in rows]

    def newest(self) -> str:
        """Return the id of the newest response."""
        newest = f"SELECT id FROM {_RESPONSES} ORDER BY created_at DESC, id DESC LIMIT 1"
        return str(self._connection.execute(newest).fetchone()[0])

    def insert(self, table: str, row: Row) -> Statement:
        marks = ", ".join([self._mark] * len(row))
        return f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", row

    def update(self, row: Row, changed: Row) -> Statement:
        """Return what changes a response's own row."""
        changes = ", ".join(f"{column} = {self._mark}" for column in changed)
        return f"UPDATE {_RESPONSES} SET {changes} WHERE id = {self._mark}", {**changed, "id": row["id"]}

    def commit(self, statements: Sequence[tuple[str, Sequence[Any]]]) -> None:
        """Execute statements in a transaction."""
        self._connection.execute("BEGIN")
        for sql, values in statements:
            self._connection.execute(sql, values)
        self._connection.execute("COMMIT")


class TwoCommits:
    """The yardstick: the rows of the newest response of `server`, put into `bare`."""

    def __init__(self, server: Database, bare: Database) -> None:
        self._bare = bare
        self._id = server.newest()
        self._made = 0
        (ended,) = server.rows(_RESPONSES, "id", self._id)
        body = {**json.loads(ended["body"]), "status": "in_progress", "output": [], "usage": None}
        running = {"status": "in_progress", "worker": "w" * 32, "body": json.dumps(body), "size": 0}
        running |= {"input_tokens": 0, "output_tokens": 0, "first_token_ms": None, "duration_ms": None}
        further = [(table, row) for table, key in _FURTHER.items() for row in server.rows(table, key, self._id)]
        assert {table for table, _ in further} == _FURTHER.keys()
        self._statements = [
            bare.insert(_RESPONSES, {**ended, **running}),
            bare.update(ended, {column: ended[column] for column in running}),
            *(bare.insert(*each) for each in further),
        ]

    def measure(self, times: int) -> float:
        """Return the CPU, in µs, of a response that is put in, and changed by a second commit when it ends."""
        took = 0.0
        for _ in range(times):
            self._made += 1
            accepted, *end = [(sql, [self._other(*each) for each in row.items()]) for sql, row in self._statements]
            began = time.process_time()
            self._bare.commit([accepted])
            self._bare.commit(end)
            took += time.process_time() - began
        return took / times * 1e6

    def _other(self, column: str, value: Any) -> Any:
        """Return a value as another response has it: its ids end in another number."""
        is_id = value == self._id or (column == "id" and isinstance(value, str))
        return f"{value[:-8]}{self._made:08x}" if is_id else value


def store(bench: Bench) -> Iterator[Result]:
    """What it costs to store short responses, fifty at a time."""
    for kind in KINDS:
        yield _stored(bench, kind)


def _stored(bench: Bench, kind: str) -> Result:
    with (
        bench.migrated_server(kind, name="store") as server,
        bench.migrated_server(kind, name="bare-store") as unused,
        closing(Database(server, kind)) as database,
        closing(Database(unused, kind)) as bare,
        server,
    ):
        costs, commits = asyncio.run(_costs(bench, server, database, bare))
    stored, unstored = costs[True], costs[False]
    return beside(
        f"CPU to store a response, {WRITERS} at once, {KINDS[kind]}",
        [kept - not_kept for kept, not_kept in zip(stored, unstored, strict=True)],
        yardstick="two bare commits of its rows",
        its=commits,
        unit="µs",
        target=2.0,
        details={"stored µs": median(stored), "not stored µs": median(unstored)},
    )


async def _costs(
    bench: Bench, server: BenchServer, database: Database, bare: Database
) -> tuple[dict[bool, list[float]], list[float]]:
    """Return µs of each round: of responses that are stored, and that are not, and of the yardstick."""
    sockets = [await WebSocket.connect(server.port) for _ in range(WRITERS)]
    costs: dict[bool, list[float]] = {True: [], False: []}
    commits: list[float] = []
    yardstick = None
    for number in bench.report.rounds(ROUNDS, warm_up=True):
        for stored, kept in costs.items():
            cpu = server.cpu_seconds()
            for socket in sockets:
                socket.send([create("short", store=stored)] * RESPONSES, responses=RESPONSES)
            await asyncio.gather(*(socket.done for socket in sockets))
            await asyncio.sleep(0.1)
            kept += [(server.cpu_seconds() - cpu) / (WRITERS * RESPONSES) * 1e6] if number else []
        yardstick = yardstick or TwoCommits(database, bare)
        took = yardstick.measure(WRITERS * RESPONSES)
        commits += [took] if number else []
    for socket in sockets:
        socket.close()
    return costs, commits
