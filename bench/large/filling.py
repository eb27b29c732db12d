"""Fills a PostgreSQL database with copies of responses that a real server has stored, by COPY.

What a table holds of a response is read as COPY writes it, and cut where ids, times and the like stand. A copy is those
pieces with others between them: 10 µs a row, where Django would take 500.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import psycopg

TURNS = 8  # of most conversations
LONG_CHAIN = 1000
BATCH = 20_000  # responses between two lines of progress
DAYS = 60  # over which they were made
STATUSES = ("completed",) * 97 + ("failed", "incomplete", "cancelled")
_ID = re.compile(rb"[a-z]+_[0-9a-f]{32}")

RESPONSES, LOGS = "responses_app_response", "responses_app_logpart"
# The tables, and how the column is called that has the response's id.
TABLES: Mapping[str, str] = {
    RESPONSES: "id",
    "responses_app_chainpart": "id",
    "responses_app_sampleditem": "response_id",
    LOGS: "response_id",
}
Connection = psycopg.Connection[Any]


def columns_of(connection: Connection, table: str) -> list[str]:
    """Return a table's columns, but those that the database numbers itself."""
    described = connection.execute(f"SELECT * FROM {table} LIMIT 0".encode()).description or []
    return [column.name for column in described if (table, column.name) != (LOGS, "id")]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a copy stands: its number, its id, that of what it continues, and its time in Unix seconds."""

    number: int
    id: bytes
    parent: bytes
    at: float


@dataclass(slots=True)
class Template:
    """A stored response, from which others are made. `lines` are what tables have of it."""

    id: bytes
    parent: bytes
    lines: Mapping[str, Sequence[bytes]]
    columns: Mapping[str, Sequence[str]]
    _cut: Mapping[str, Sequence[tuple[Sequence[bytes], Sequence[bytes]]]] = field(init=False)

    def __post_init__(self) -> None:
        self._cut = {
            table: [(_ID.split(line), _ID.findall(line)) for line in lines] for table, lines in self.lines.items()
        }

    @classmethod
    def read(cls, connection: Connection, response_id: str, parent: str = "") -> "Template":
        lines: dict[str, list[bytes]] = {}
        columns = {table: columns_of(connection, table) for table in TABLES}
        for table, key in TABLES.items():
            query = f"SELECT {', '.join(columns[table])} FROM {table} WHERE {key} = '{response_id}'"
            with connection.cursor() as cursor, cursor.copy(f"COPY ({query}) TO STDOUT".encode()) as copy:
                lines[table] = b"".join(bytes(part) for part in copy).splitlines(keepends=True)
            assert lines[table], f"{response_id} has no rows in {table}"
        return cls(response_id.encode(), parent.encode(), lines, columns)

    def rows(self, table: str, place: Place) -> Iterator[bytes]:
        """Yield what a table has of a copy."""
        known = {self.id: place.id, self.parent: place.parent}
        for pieces, ids in self._cut[table]:
            for each in ids:
                if each not in known:
                    prefix = each[: each.index(b"_") + 1]
                    known[each] = b"%b%024x%08x" % (prefix, place.number, len(known))
            between = [known[each] for each in ids]
            line = b"".join([part for pair in zip(pieces, [*between, b""], strict=True) for part in pair])
            yield self._changed(line, place) if table == RESPONSES else line

    def _changed(self, line: bytes, place: Place) -> bytes:
        """Give a response's row a time and a status of its own."""
        values, columns = line.split(b"\t"), self.columns[RESPONSES]
        values[columns.index("created_at")] = datetime.fromtimestamp(place.at, UTC).isoformat().encode()
        values[columns.index("status")] = STATUSES[place.number // TURNS % len(STATUSES)].encode()
        return b"\t".join(values)


@dataclass(frozen=True, slots=True)
class Filled:
    """What is there afterwards: the first and the last number of a copy, and the end of a chain of `LONG_CHAIN`."""

    responses: int
    long_chain: str


def response_id(number: int, at: float) -> bytes:
    """Return the id of a copy: a UUID v7 of its time, so that ids are as ordered as those of a server."""
    return b"resp_%012x7%03x8%015x" % (int(at * 1000), number & 0xFFF, number)


def place_of(number: int, responses: int, now: float) -> Place:
    """Return where a copy stands among all of them."""

    def at(each: int) -> float:
        return now - DAYS * 86_400 * (1 - each / responses) - 60

    is_first = (number % TURNS == 0 and number >= LONG_CHAIN) or number == 0
    parent = b"" if is_first else response_id(number - 1, at(number - 1))
    return Place(number, response_id(number, at(number)), parent, at(number))


def fill(
    url: str, first: Template, following: Template, responses: int, *, now: float, report: Callable[[int], None]
) -> Filled:
    """Write so many responses: a chain of `LONG_CHAIN`, and conversations of `TURNS`; tell `report` how far it is."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        for start in range(0, responses, BATCH):
            rows: dict[str, list[bytes]] = defaultdict(list)
            for number in range(start, min(start + BATCH, responses)):
                place = place_of(number, responses, now)
                template = following if place.parent else first
                for table in TABLES:
                    rows[table] += template.rows(table, place)
            for table, lines in rows.items():
                copy_in(connection, table, first.columns[table], lines)
            report(min(start + BATCH, responses))
    last = place_of(LONG_CHAIN - 1, responses, now)
    return Filled(responses, last.id.decode())


def copy_in(connection: Connection, table: str, columns: Sequence[str], lines: Sequence[bytes]) -> None:
    """Write rows of a table."""
    sql = f"COPY {table} ({', '.join(columns)}) FROM STDIN"
    with connection.cursor() as cursor, cursor.copy(sql.encode()) as copy:
        for start in range(0, len(lines), 500):
            copy.write(b"".join(lines[start : start + 500]))
