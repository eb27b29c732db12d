"""Usage in the database: a row for each request, and later one for all those of a minute, an hour, a day.

A sum is made in the transaction that removes its parts, so nothing is counted twice or lost where that breaks off. What
is told again, since an answer got lost, finds its row, which stays for an hour before it is added up.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

from responses_app.kit.columns import json_text
from responses_app.kit.kept import writes_lines
from responses_app.kit.sql import Row, Writing, in_parts, placeholders
from responses_app.kit.table import Store
from responses_app.models import Project
from responses_app.models.usage import Usage
from responses_app.protocol.api_keys import BY_SESSION, DEFAULT_PROJECT
from responses_app.stores.base import StoredResponse
from responses_app.stores.usage import (
    BATCH,
    DAY,
    HOUR,
    HOURS_STAY,
    MINUTE,
    MINUTES_STAY,
    BaseUsageStore,
    Group,
    UsageEntry,
    UsageQuery,
    UsageSum,
    UsedTokens,
)

FOLD_LOCK = 0x75736167  # the space of the one lock of `fold`
FOLDED_AT_ONCE = 2_000  # rows in one transaction
# What becomes what, once it is so many seconds old.
STAGES = ((0, MINUTE, HOUR), (MINUTE, HOUR, MINUTES_STAY), (HOUR, DAY, HOURS_STAY))

TABLE = Usage._meta.db_table
_COLUMNS = [field.column for field in Usage._meta.concrete_fields]
_WHOSE = ("project", "key_id", "model", "source", "batch")
_COUNTED = ("requests", "input_tokens", "cached_tokens", "output_tokens")
_INSERT = (
    f"INSERT INTO {TABLE} ({', '.join(_COLUMNS)}) VALUES ({', '.join(['%s'] * len(_COLUMNS))}) ON CONFLICT (id) DO "
)
# Only of projects that are there: what ends behind `respsite manage forget` leaves nothing. The default one needs no
# row.
KEEP_ENTRY = Writing(
    f"INSERT INTO {TABLE} ({', '.join(_COLUMNS)}) SELECT {', '.join(['%s'] * len(_COLUMNS))} "
    f"WHERE %s = '{DEFAULT_PROJECT}' OR EXISTS (SELECT 1 FROM {Project._meta.db_table} WHERE name = %s) "
    "ON CONFLICT (id) DO NOTHING",
    [*_COLUMNS, "project", "project"],
)
_ADDED = ", ".join(f"{each} = {TABLE}.{each} + excluded.{each}" for each in _COUNTED)
_ADD = Writing(f"{_INSERT}UPDATE SET {_ADDED}", _COLUMNS)
_ANY_OLD = f"SELECT 1 FROM {TABLE} WHERE seconds = %s AND at < %s LIMIT 1"
_OLD = (
    f"SELECT id, at, {', '.join((*_WHOSE, *_COUNTED))} FROM {TABLE} WHERE seconds = %s AND at < %s ORDER BY at LIMIT %s"
)

MANY_DAYS = 7 * DAY  # for which all of an index is read rather than the rows of a time
# SQLite sorts the rows of a sum, 1 s a million; in the order of the index `usage_days` there is nothing to sort. A plus
# keeps it from the index of times.
_BY_DAY = (
    f"SELECT project, model, at - at %% {DAY} AS at, {', '.join(f'SUM({each}) AS {each}' for each in _COUNTED)} "
    f"FROM {TABLE} {{where}} GROUP BY project, model, at - at %% {DAY}"
)

_SESSION = f"{BY_SESSION}:"
_IS_USER = f"key_id LIKE '{BY_SESSION}%%'"
_GROUPED: Mapping[Group, str] = {
    "project": "project",
    "key": f"CASE WHEN {_IS_USER} THEN '' ELSE key_id END",
    "user": f"CASE WHEN {_IS_USER} THEN SUBSTR(key_id, {len(_SESSION) + 1}) ELSE '' END",
    "model": "model",
    "source": "source",
    "batch": "batch",
}


def entry_row(entry: UsageEntry) -> Row:
    """Return the row of what one request has used."""
    return {
        "id": entry.id,
        "at": entry.at,
        "seconds": 0,
        "project": entry.project,
        "key_id": entry.key_id,
        "model": entry.model,
        "source": entry.source,
        "batch": entry.batch,
        "requests": 1,
        "input_tokens": entry.tokens.input,
        "cached_tokens": entry.tokens.cached,
        "output_tokens": entry.tokens.output,
    }


def entry_of(stored: StoredResponse, at: int) -> UsageEntry:
    """Return what a response that is stored has used, as it says itself."""
    response = stored.response
    usage: Mapping[str, Any] = response.get("usage") or {}
    details = usage.get("input_tokens_details") or {}
    return UsageEntry(
        id=response["id"],
        at=at,
        project=stored.project,
        key_id=stored.key_id,
        model=response["model"],
        source="responses",
        batch=stored.transport == BATCH,
        tokens=UsedTokens(
            input=usage.get("input_tokens", 0),
            cached=details.get("cached_tokens", 0),
            output=usage.get("output_tokens", 0),
        ),
    )


class DatabaseUsage(Store[None], BaseUsageStore):
    """Keeps usage in a database; the arguments are `Store`'s."""

    unlimited = None

    async def keep(self, entries: Sequence[UsageEntry]) -> None:
        rows = [entry_row(entry) for entry in entries]

        def write(connection: BaseDatabaseWrapper) -> None:
            with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
                KEEP_ENTRY.run(cursor, rows)

        await self._threads.run(write)

    async def sums(self, query: UsageQuery) -> Sequence[UsageSum]:
        return await self._threads.run(lambda connection: sums(connection, query))

    async def fold(self) -> bool:
        now = int(self._now())
        more = False
        for seconds, width, age in STAGES:
            before = (now - age) // width * width  # whole ones: a sum that is made is nearly always the last
            more |= await self._threads.run(lambda db, stage=(seconds, width, before): _fold(db, *stage))
        return more


def sums(connection: BaseDatabaseWrapper, query: UsageQuery) -> Sequence[UsageSum]:
    """Return the sums that are wanted."""
    parameters: list[object] = [query.start, query.end]
    of_days = connection.vendor == "sqlite" and _is_of_days(query)
    at = "+at" if of_days else "at"
    conditions = [f"{at} >= %s", f"{at} < %s"]
    users = [f"{_SESSION}{user}" for user in query.users]
    wanted = {"project": query.projects, "model": query.models, "source": query.sources}
    for column, values in wanted.items():
        if values:
            conditions.append(f"{column} IN ({placeholders(values)})")
            parameters += values
    for values in (query.keys, users):
        if values:
            conditions.append(f"key_id IN ({placeholders(values)})")
            parameters += values
    if query.batch is not None:
        conditions.append("batch" if query.batch else "NOT batch")
    # Both databases divide whole numbers as whole numbers.
    bucket = f"at - at %% {int(query.width)}" if query.width else "0"
    source, where = TABLE, f"WHERE {' AND '.join(conditions)}"
    if of_days:
        source, where = f"({_BY_DAY.format(where=where)})", ""
    named = [f"{_GROUPED[group]} AS by_{group}" for group in query.groups]
    places = ", ".join(str(1 + place) for place in range(1 + len(named)))
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {', '.join([bucket, *named, *(f'SUM({each})' for each in _COUNTED)])} FROM {source} {where} "
            f"GROUP BY {places} ORDER BY {places} LIMIT {int(query.limit)}",
            parameters,
        )
        return [_sum(query, row) for row in cursor.fetchall()]


def _is_of_days(query: UsageQuery) -> bool:
    """Whether a question is about many whole days, and about nothing but what `usage_days` has."""
    wide = query.end - query.start >= MANY_DAYS and (query.width or DAY) % DAY == 0
    return wide and set(query.groups) <= {"project", "model"} and not query.keys and not query.users


def _sum(query: UsageQuery, row: Sequence[Any]) -> UsageSum:
    start, *values = row
    whose = dict(zip(query.groups, values, strict=False))
    if "batch" in whose:
        whose["batch"] = bool(whose["batch"])
    # PostgreSQL's sums of large numbers are decimals.
    requests, given, cached, output = map(int, values[len(query.groups) :])
    tokens = UsedTokens(input=given, cached=cached, output=output)
    return UsageSum(start=int(start) if query.width else query.start, requests=requests, tokens=tokens, **whose)


def _fold(connection: BaseDatabaseWrapper, seconds: int, width: int, before: int) -> bool:
    """Add up rows of a stage that are older than a time; return whether there may be more of them."""
    with connection.cursor() as cursor:
        cursor.execute(_ANY_OLD, [seconds, before])
        if cursor.fetchone() is None:  # mostly: nothing is locked
            return False
        with transaction.atomic(using=connection.alias):
            if not _is_alone(cursor):
                return False
            cursor.execute(_OLD, [seconds, before, FOLDED_AT_ONCE])
            rows = cursor.fetchall()
            totals: dict[tuple[Any, ...], Counter[str]] = {}
            for _, at, *columns in rows:
                whose = (at - at % width, *columns[: len(_WHOSE)])
                counted = dict(zip(_COUNTED, columns[len(_WHOSE) :], strict=True))
                totals.setdefault(whose, Counter()).update(counted)
            _ADD.run(cursor, [_sum_row(width, *total) for total in totals.items()])
            for ids in in_parts([row[0] for row in rows]):
                cursor.execute(f"DELETE FROM {TABLE} WHERE id IN ({placeholders(ids)})", ids)
    return len(rows) == FOLDED_AT_ONCE


def _sum_row(width: int, whose: tuple[Any, ...], counted: Mapping[str, int]) -> Row:
    at, *names = whose
    # A NUL cannot stand in any of them: PostgreSQL refuses it.
    digest = blake2b("\0".join(map(str, names[:-1])).encode() + bytes([bool(names[-1])]), digest_size=16)
    own_id = f"sum-{width}-{at}-{digest.hexdigest()}"
    return {"id": own_id, "at": at, "seconds": width, **dict(zip(_WHOSE, names, strict=True)), **counted}


def _is_alone(cursor: CursorWrapper) -> bool:
    if cursor.db.vendor != "postgresql":  # elsewhere there is one writer at a time anyway
        return True
    cursor.execute("SELECT pg_try_advisory_xact_lock(%s, 0)", [FOLD_LOCK])
    return bool(cursor.fetchone()[0])


@writes_lines(Usage)
def _lines(row: Usage, head: Mapping[str, Any], using: str) -> Iterator[str]:
    whose = {"at": row.at, "seconds": row.seconds, "key_id": row.key_id, "model": row.model, "source": row.source}
    tokens = {"input": row.input_tokens, "cached": row.cached_tokens, "output": row.output_tokens}
    yield json_text({"usage": {**whose, "batch": row.batch, "requests": row.requests, "tokens": tokens}})
