"""Databases as older versions of the server left them: `old_version.json`, which had its second migration, and
`version_0012.json`, which had its twelfth and says how it was made.
"""

import base64
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import httpx
from django.core.management import call_command
from django.db import connections, transaction

from tests.kit.clients import Frame
from tests.kit.databases import postgres
from tests.kit.server import Server
from tests.kit.waiting import eventually

NEWEST_MIGRATION = ("responses_app", "0002")  # of the old version
_TIMES = set("created_at started_at seen_at expires_at revoked_at last_used_at last_active_at leased_until".split())
WORDS = "responses_app_chunkwords"  # of chunks of files: a table on SQLite, a column on PostgreSQL
WORDS_ON_POSTGRES = "UPDATE responses_app_vectorstorechunk SET words = to_tsvector('english', %s) WHERE id = %s"
_HELLO = "<|channel|>final<|message|>Hello there, friend.<|return|>"

END_OF_SYSTEM = 200007  # `<|end|>`: a new chain's system message has the date before it

Row = dict[str, Any]
MakeDatabase = Callable[[Path], str]  # in a folder; gives its URL


class Kept(Protocol):
    """What is in either file."""

    @property
    def rows(self) -> Mapping[str, list[Row]]:
        """The rows of each table."""
        ...


@dataclass(frozen=True)
class OldVersion:
    """What the old version left, and what it made of it itself; see `about` in the file."""

    secret_key: str
    rows: Mapping[str, list[Row]]
    reads: Mapping[str, str]
    continued: list[Frame]
    unfinished: Mapping[str, Frame]

    @property
    def finished(self) -> list[Row]:
        """The rows of responses that had ended."""
        return [row for row in self.rows["responses_app_response"] if not row["worker"]]


@dataclass(frozen=True)
class Version0012:
    """What the version with twelve migrations left, and what it made of it itself; see `about` in the file."""

    secret_key: str
    key: str
    limited: str
    limits: str
    reads: list[Frame]
    unfinished: Mapping[str, Frame]
    continued: list[Frame]
    rows: Mapping[str, list[Row]]


@cache
def old_version() -> OldVersion:
    """Read the file of the second migration."""
    return OldVersion(**_read("old_version.json"))


@cache
def version_0012() -> Version0012:
    """Read the file of the twelfth."""
    return Version0012(**_read("version_0012.json"))


def _read(name: str) -> dict[str, Any]:
    read = json.loads((Path(__file__).parent / name).read_text())
    del read["about"]
    return dict(read)


def load(alias: str, kept: Kept | None = None, migration: tuple[str, str] = NEWEST_MIGRATION) -> None:
    """Make a database's tables as an old version had them, and its rows; not on an event loop."""
    migrate(alias, *migration)
    with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
        for table, rows in (kept or old_version()).rows.items():
            columns = list(rows[0])
            values = [[_value(alias, name, row[name]) for name in columns] for row in rows]
            if table == WORDS and connections[alias].vendor == "postgresql":
                cursor.executemany(WORDS_ON_POSTGRES, [(words, number) for number, _, words in values])
                continue
            names = ["rowid" if table == WORDS and name == "id" else name for name in columns]
            places = ", ".join(["%s"] * len(names))
            cursor.executemany(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({places})", values)
            if isinstance(rows[0].get("id"), int) and connections[alias].vendor == "postgresql":
                cursor.execute("SELECT setval(pg_get_serial_sequence(%s, 'id'), %s)", [table, rows[-1]["id"]])
    connections[alias].close()


def empty_database(kind: str, folder: Path) -> str:
    """Return the URL of an empty database of a kind of `DATABASES`; SQLite's file is made in the folder when used."""
    return f"sqlite:///{folder}/old.sqlite3" if kind == "sqlite" else postgres().url_of(postgres().create_database())


def copy_database(url: str, folder: Path) -> str:
    """Copy a database, to which nobody may be connected, SQLite's into a folder; return the URL of the copy."""
    if not url.startswith("sqlite:///"):
        return postgres().url_of(postgres().create_database(template=url.rpartition("/")[2]))
    file = Path(url.removeprefix("sqlite:///"))
    assert not file.with_name(f"{file.name}-wal").exists(), "somebody is connected"
    return f"sqlite:///{shutil.copy(file, folder)}"


def migrate(alias: str, *target: str) -> None:
    """Apply migrations up to a target, or back to it, or all; not on an event loop."""
    call_command("migrate", *target, database=alias, verbosity=0)
    connections[alias].close()


def kept_rows(alias: str) -> dict[str, list[Row]]:
    """Return what is in the columns that the old version had, by table."""
    found = {}
    with connections[alias].cursor() as cursor:
        for table, rows in old_version().rows.items():
            columns = list(rows[0])
            cursor.execute(f"SELECT {', '.join(columns)} FROM {table} ORDER BY 1, 2, 3")
            found[table] = [dict(zip(columns, map(_plain, row), strict=True)) for row in cursor.fetchall()]
    connections[alias].close()
    return found


def _value(alias: str, name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return base64.b64decode(value["base64"])
    if name in _TIMES and value is not None:
        at = datetime.fromisoformat(value).replace(tzinfo=UTC)
        if name == "seen_at":  # the worker is dead, also where the clock is behind that of the file
            at = min(at, datetime.now(UTC) - timedelta(hours=1))
        return connections[alias].ops.adapt_datetimefield_value(at)
    return value


def _plain(value: object) -> object:
    return bytes(value) if isinstance(value, memoryview) else value


def new_server(folder: Path, url: str) -> Server:
    """Return a server of today's version for such a database, not started; its engine answers everything."""
    return Server(
        folder,
        script=[{"say": _HELLO}],
        database_url=url,
        secret_key=old_version().secret_key,
        model_name="test-model",
        journal=True,
        responses_usage_per_turn="on",  # as the old version had it
        worker_lease_seconds=1,
    )


async def ended(http: httpx.AsyncClient, response_id: str) -> Frame:
    """Wait for a response's end, and return it."""
    found: list[Frame] = []

    async def is_there() -> bool:
        found[:] = [(await http.get(f"/responses/{response_id}")).json()]
        return found[0]["status"] not in ("queued", "in_progress")

    await eventually(is_there)
    return found[0]


def behind_system(tokens: list[int]) -> list[int]:
    """Return a prompt without its system message, which tells the date."""
    return tokens[tokens.index(END_OF_SYSTEM) :]
