"""The index of what was asked and answered: it is read from responses that have ended, and searched by the admin.

`read_some` is the duty of a worker. Each call takes the responses that a trigger has noted in `WordsToRead`, the newest
first, reads their texts and keeps their words; it is one transaction, and says whether there is more. What was stored
before there was an index is one row of that table, whose `below` goes down with each step: so a worker that stops, or
dies, leaves nothing out and nothing to be done again. One worker at a time does it on PostgreSQL.

A response that is deleted while it is read is locked or gone when its words would be written, and they are not.

`find` takes the newest that have all the phrases. It is bounded by time: what many responses have is found quickly, and
what few have, too; but the newest of those that have several frequent words may be far apart.
"""

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import blake2b
from threading import Event, Thread
from typing import Any

from django.db import OperationalError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper
from django.db.models import TextField
from django.db.models.functions import Cast

from engine import orjson
from responses_app.kit.sql import for_update, is_alone, placeholders
from responses_app.kit.table import Store
from responses_app.kit.threads import any_of, in_one_line
from responses_app.models import Response
from responses_app.models.words import FIRST_WORDS, ResponseWords, WordsToRead
from responses_app.protocol.items.words import Phrase, storable, words_of, words_said
from responses_app.protocol.requests import resources
from responses_app.stores.database.response_sql import RESPONSES, RUNNING

logger = logging.getLogger("respsite.stores")

AT_ONCE = 20  # responses in one transaction: bounds how long others wait for a SQLite file
MOST_BYTES = 4 << 20  # of texts that one step reads
MOST_READ = 16 << 20  # bytes of a response that is read; a larger one is found by its id alone
LOCK = 0x776F7264  # the space of the one lock of `read_some`

WORDS = ResponseWords._meta.db_table
NOTED = WordsToRead._meta.db_table
SAID = "responses_app_saidwords"  # of FTS5
MAX_NUMBER = (1 << 63) - 1
AGAIN_SECONDS = 0.05  # between two attempts to interrupt SQLite

# What is new goes before what is old.
_ANY_NOTED = any_of(NOTED)
_NOTED = f"SELECT id, below FROM {NOTED} ORDER BY below, id DESC LIMIT %s"
_OLDER = f"SELECT id FROM {RESPONSES} WHERE id < %s ORDER BY id DESC LIMIT %s"
_SIZES = f"SELECT id, size FROM {RESPONSES} WHERE id IN ({{ids}}) AND status NOT IN {RUNNING}"
_THERE = f"SELECT id FROM {RESPONSES} WHERE id IN ({{ids}}) ORDER BY id {{lock}}"
_KNOWN = f"SELECT response_id, number FROM {WORDS} WHERE response_id IN ({{ids}})"
_NOTE = f"INSERT INTO {NOTED} (id, below) VALUES (%s, '') ON CONFLICT DO NOTHING"
_KEEP = {
    "sqlite": f"INSERT OR IGNORE INTO {WORDS} (number, response_id, project, first_words) VALUES (%s, %s, %s, %s)",
    "postgresql": f"INSERT INTO {WORDS} (number, response_id, project, first_words, words) "
    "VALUES (%s, %s, %s, %s, to_tsvector('simple', %s)) ON CONFLICT DO NOTHING",
}
_FOUND = {
    # CROSS: FTS5 goes first, and from the newest down.
    "sqlite": f"SELECT kept.response_id FROM {SAID} CROSS JOIN {WORDS} AS kept ON kept.number = {SAID}.rowid "
    f"WHERE {SAID} MATCH %s AND {SAID}.rowid >= %s AND {SAID}.rowid < %s {{further}} "
    f"ORDER BY {SAID}.rowid DESC LIMIT %s",
    "postgresql": f"SELECT response_id FROM {WORDS} AS kept WHERE words @@ to_tsquery('simple', %s) "
    "AND number >= %s AND number < %s {further} ORDER BY number DESC LIMIT %s",
}


class DatabaseWords(Store[None]):
    """Keeps the index up to date; the arguments are `Store`'s."""

    unlimited = None

    async def read_some(self) -> bool:
        """Read some responses; return whether there may be more."""
        return bool(await self._polls.poll(_ANY_NOTED)) and await self._threads.run(read_some)


@dataclass(frozen=True, slots=True)
class _Step:
    """What one call reads: responses that have ended, or are gone."""

    ids: Sequence[str]
    unread: Collection[str] = ()  # those of them that are too large
    older: str = ""  # the row of all older ones, where these are of them; its id


@dataclass(frozen=True, slots=True)
class _ReadWords:
    """What was read of a response."""

    response_id: str
    number: int
    project: str
    first_words: str
    words: str  # with spaces between


def read_some(connection: BaseDatabaseWrapper) -> bool:
    """Read some of the responses that are noted, and keep their words; return whether there may be more of them."""
    with connection.cursor() as cursor:
        cursor.execute(_NOTED, [1])
        if cursor.fetchone() is None:  # mostly: nothing is locked
            return False
        if connection.vendor != "postgresql":
            # Whoever writes keeps all others from it: texts are read before.
            step = _next(cursor)
            read = _read(connection, step)
            with transaction.atomic(using=connection.alias):
                _keep(cursor, step, read)
            return True
        with transaction.atomic(using=connection.alias):
            if not is_alone(cursor, LOCK):
                return False
            step = _next(cursor)
            _keep(cursor, step, _read(connection, step))
    return True


def _next(cursor: CursorWrapper) -> _Step:
    """Return the newest that are noted; where none is, the newest of the older ones."""
    cursor.execute(_NOTED, [AT_ONCE])
    rows = cursor.fetchall()
    ids = [response_id for response_id, below in rows if not below]
    older = ""
    if not ids and rows:
        older, below = rows[0]
        cursor.execute(_OLDER, [below, AT_ONCE])
        ids = [row[0] for row in cursor.fetchall()]
    sizes: dict[str, int] = {}
    if ids:
        cursor.execute(_SIZES.format(ids=placeholders(ids)), ids)
        sizes = dict(cursor.fetchall())
    taken: list[str] = []
    total = 0
    for each in ids:
        size = sizes.get(each, 0) if sizes.get(each, 0) <= MOST_READ else 0
        if total and total + size > MOST_BYTES:
            break
        total += size
        taken.append(each)
    return _Step(taken, {each for each in taken if sizes.get(each, 0) > MOST_READ}, older)


def _read(connection: BaseDatabaseWrapper, step: _Step) -> list[_ReadWords]:
    """Read what has ended of it; a response that runs is noted when it ends."""
    ended = Response.objects.using(connection.alias).exclude(status__in=resources.RUNNING)
    bare = ended.filter(pk__in=step.unread).values_list("pk", "project", "created_at")
    read = [_read_words(response_id, project, at, "[]", "{}") for response_id, project, at in bare]
    texts = ended.filter(pk__in=[each for each in step.ids if each not in step.unread])
    columns = ("pk", "project", "created_at", Cast("input_items", TextField()), Cast("body", TextField()))
    return read + [_read_words(*row) for row in texts.values_list(*columns)]


def _read_words(response_id: str, project: str, at: datetime, asked: str, body: str) -> _ReadWords:
    try:
        items, output = orjson.loads_kept(asked), orjson.loads_kept(body).get("output")
        items, output = (each if isinstance(each, list) else [] for each in (items, output))
    except (ValueError, AttributeError, RecursionError) as problem:
        logger.error("response %s cannot be read, and is found by its id alone: %s", response_id, in_one_line(problem))
        items, output = [], []
    digest = int.from_bytes(blake2b(response_id.encode(), digest_size=4).digest()) >> 1
    first = storable(words_of(items, FIRST_WORDS - 1))
    return _ReadWords(response_id, _number(at) + digest, project, first, words_said(items, output))


def _number(at: datetime) -> int:
    return int(at.timestamp()) << 31


def _keep(cursor: CursorWrapper, step: _Step, read: Sequence[_ReadWords]) -> None:
    """Keep what was read of those that are still there, and that it was; in a transaction."""
    ids = [each.response_id for each in read]
    there: set[str] = set()
    if ids:
        lock = for_update(cursor.db, "FOR KEY SHARE SKIP LOCKED")
        cursor.execute(_THERE.format(ids=placeholders(ids), lock=lock), ids)
        there = {row[0] for row in cursor.fetchall()}
        known = _known(cursor, ids)
        _insert(cursor, [each for each in read if each.response_id in there and each.response_id not in known])
    # One that somebody has locked, to delete it most likely, is looked at again.
    left = [each for each in ids if each not in there] if cursor.db.vendor == "postgresql" else []
    if not step.older:
        done = [each for each in step.ids if each not in left]
        if done:
            cursor.execute(f"DELETE FROM {NOTED} WHERE id IN ({placeholders(done)})", done)
    elif step.ids:
        cursor.executemany(_NOTE, [(each,) for each in left])
        cursor.execute(f"UPDATE {NOTED} SET below = %s WHERE id = %s", [step.ids[-1], step.older])
    else:
        cursor.execute(f"DELETE FROM {NOTED} WHERE id = %s", [step.older])


def _insert(cursor: CursorWrapper, new: Sequence[_ReadWords]) -> None:
    missing = new
    while missing:
        rows = [(each.number, each.response_id, each.project, each.first_words, each.words) for each in missing]
        if cursor.db.vendor != "postgresql":
            rows = [row[:4] for row in rows]  # type: ignore[misc]
        cursor.executemany(_KEEP[cursor.db.vendor], rows)
        kept = _known(cursor, [each.response_id for each in new])
        # Two responses of one second may have the same number: the later one takes the next.
        missing = [replace(each, number=each.number + 1) for each in missing if each.response_id not in kept]
    if cursor.db.vendor != "postgresql" and new:
        entries = [(kept[each.response_id], each.words) for each in new]
        cursor.executemany(f"INSERT INTO {SAID} (rowid, words) VALUES (%s, %s)", entries)


def _known(cursor: CursorWrapper, ids: Sequence[str]) -> Mapping[str, int]:
    cursor.execute(_KNOWN.format(ids=placeholders(ids)), ids)
    return dict(cursor.fetchall())


class SearchTooSlow(Exception):
    """The time of a search was up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WordsQuery:
    """A search; the newest responses that have all the phrases are found."""

    phrases: Sequence[Phrase]  # at least one
    project: str = ""  # "" for all
    since: datetime | None = None
    until: datetime | None = None  # exclusive
    limit: int
    seconds: float  # it may take


def find(connection: BaseDatabaseWrapper, query: WordsQuery) -> list[str]:
    """Return the ids of the newest responses that are found. Raises `SearchTooSlow`."""
    further, parameters = ("AND kept.project = %s", [query.project]) if query.project else ("", [])
    since = _number(query.since) if query.since else 0
    until = _number(query.until) if query.until else MAX_NUMBER
    # What stands in quotes is nothing but letters and digits.
    if connection.vendor == "postgresql":
        words = [(" <-> ".join(f"'{word}'" for word in each.words), each.is_open) for each in query.phrases]
        asked = " & ".join(f"({phrase}{':*' if is_open else ''})" for phrase, is_open in words)
    else:
        asked = " AND ".join(f'"{" ".join(each.words)}"{" *" if each.is_open else ""}' for each in query.phrases)
    sql = _FOUND[connection.vendor].format(further=further)
    with _bounded(connection, query.seconds), connection.cursor() as cursor:
        cursor.execute(sql, [asked, since, until, *parameters, query.limit])
        return [row[0] for row in cursor.fetchall()]


def is_behind(connection: BaseDatabaseWrapper) -> bool:
    """Whether some of what was stored before there was an index is still to be read."""
    return WordsToRead.objects.using(connection.alias).exclude(below="").exists()


@contextmanager
def _bounded(connection: BaseDatabaseWrapper, seconds: float) -> Iterator[None]:
    """Bound what is asked in here. Raises `SearchTooSlow`."""
    began = time.monotonic()
    try:
        if connection.vendor == "postgresql":
            with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
                cursor.execute("SELECT current_setting('statement_timeout')")
                before = cursor.fetchone()[0]
                cursor.execute(
                    "SELECT set_config('statement_timeout', %s, true)", [f"{max(1, round(seconds * 1000))}ms"]
                )
                yield
                cursor.execute("SELECT set_config('statement_timeout', %s, true)", [before])
            return
        connection.ensure_connection()
        with _interrupted(connection.connection, seconds):
            yield
    except OperationalError as error:
        if time.monotonic() - began < seconds:
            raise
        raise SearchTooSlow from error


@contextmanager
def _interrupted(driver: Any, seconds: float) -> Iterator[None]:
    """Interrupt what SQLite does in here once the time is up: FTS5 heeds that where it reads the next page."""
    done = Event()

    def interrupt() -> None:
        left = seconds
        while not done.wait(left):
            driver.interrupt()
            left = AGAIN_SECONDS

    thread = Thread(target=interrupt, name="search-time", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
