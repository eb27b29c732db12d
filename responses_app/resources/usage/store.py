"""Usage in the database: a row for each request, and later one for all those of a minute, an hour, a day.

What a request has used is kept once, however often that is repeated: its row stays for an hour before it is added up.
What a stored response has used is written in the transaction that keeps its end (`keeping`). Usage outlives responses
and keys; `forget` of a project erases it. A sum is made in the transaction that removes its parts, so nothing is
counted twice or lost where that breaks off.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from responses_app.kit.sql import Row, Writing, in_parts, is_alone, placeholders
from responses_app.kit.table import Store, reads, writes
from responses_app.protocol.api_keys import BY_SESSION
from responses_app.resources.usage.fields import (
    DAY,
    HOUR,
    HOURS_STAY,
    MINUTE,
    MINUTES_STAY,
    TOKENS,
    WHOSE,
    Group,
    UsageEntry,
    UsageQuery,
    UsageSum,
    UsedTokens,
)
from responses_app.resources.usage.keeping import COLUMNS, TABLE, keep_entries

FOLD_LOCK = 0x75736167  # the space of the one lock of `fold`
FOLDED_AT_ONCE = 2_000  # rows in one transaction
# What becomes what, once it is so many seconds old.
STAGES = ((0, MINUTE, HOUR), (MINUTE, HOUR, MINUTES_STAY), (HOUR, DAY, HOURS_STAY))

_COUNTED = ("requests", *(f"{name}_tokens" for name in TOKENS))
_SUMS = ", ".join(f"SUM({each}) AS {each}" for each in _COUNTED)
_ADD = Writing(
    f"INSERT INTO {TABLE} ({', '.join(COLUMNS)}) VALUES ({placeholders(COLUMNS)}) ON CONFLICT (id) DO UPDATE SET "
    + ", ".join(f"{each} = {TABLE}.{each} + excluded.{each}" for each in _COUNTED),
    COLUMNS,
)
_ANY_OLD = f"SELECT 1 FROM {TABLE} WHERE seconds = %s AND at < %s LIMIT 1"
_OLD = (
    f"SELECT id, at, {', '.join((*WHOSE, *_COUNTED))} FROM {TABLE} WHERE seconds = %s AND at < %s ORDER BY at LIMIT %s"
)

MANY_DAYS = 7 * DAY  # for which all of an index is read rather than the rows of a time
# SQLite sorts the rows of a sum, 1 s a million; in the order of the index `usage_days` there is nothing to sort. A plus
# keeps it from the index of times.
_BY_DAY = (
    f"SELECT project, model, at - at %% {DAY} AS at, {_SUMS} "
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


class UsageStore(Store[None]):
    """The usage of all projects. Every method raises `StoreError`."""

    unlimited = None

    @writes
    def keep(self, entries: Sequence[UsageEntry]) -> None:
        """Keep the usage of requests of projects that are there; an entry that is known already stays as it is."""
        with self._db.cursor() as cursor:
            keep_entries(cursor, entries)

    @reads
    def sums(self, query: UsageQuery) -> Sequence[UsageSum]:
        """Return the sums, by time and then by what they are grouped by; none for what was not used."""
        return sums(self._db, query)

    async def fold(self) -> bool:
        """Add up some of what is older, in UTC; return whether there may be more. One worker does so at a time."""
        now = int(self._now())
        more = False
        for seconds, width, age in STAGES:
            # Whole ones: a sum that is made is nearly always the last.
            more |= await self._fold(seconds, width, before=(now - age) // width * width)
        return more

    @reads
    def _fold(self, seconds: int, width: int, *, before: int) -> bool:
        """Add up rows of a stage that are older than a time; return whether there may be more of them."""
        with self._db.cursor() as cursor:
            cursor.execute(_ANY_OLD, [seconds, before])
            if cursor.fetchone() is None:  # mostly: nothing is locked
                return False
            with transaction.atomic(using=self._using):
                if not is_alone(cursor, FOLD_LOCK):
                    return False
                cursor.execute(_OLD, [seconds, before, FOLDED_AT_ONCE])
                rows = cursor.fetchall()
                totals: dict[tuple[Any, ...], Counter[str]] = {}
                for _, at, *columns in rows:
                    key = (at - at % width, *columns[: len(WHOSE)])
                    counted = dict(zip(_COUNTED, columns[len(WHOSE) :], strict=True))
                    totals.setdefault(key, Counter()).update(counted)
                _ADD.run(cursor, [_sum_row(width, *total) for total in totals.items()])
                for ids in in_parts([row[0] for row in rows]):
                    cursor.execute(f"DELETE FROM {TABLE} WHERE id IN ({placeholders(ids)})", ids)
        return len(rows) == FOLDED_AT_ONCE


def sums(connection: BaseDatabaseWrapper, query: UsageQuery) -> Sequence[UsageSum]:
    """Return the sums of a query, as `UsageStore.sums`."""
    parameters: list[object] = [query.start, query.end]
    of_days = connection.vendor == "sqlite" and _is_of_days(query)
    at = "+at" if of_days else "at"
    conditions = [f"{at} >= %s", f"{at} < %s"]
    for column, values in (
        ("project", query.projects),
        ("model", query.models),
        ("source", query.sources),
        ("key_id", query.keys),
        ("key_id", [f"{_SESSION}{user}" for user in query.users]),
    ):
        if values:
            conditions.append(f"{column} IN ({placeholders(values)})")
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
            f"SELECT {', '.join([bucket, *named, _SUMS])} FROM {source} {where} "
            f"GROUP BY {places} ORDER BY {places} LIMIT {int(query.limit)}",
            parameters,
        )
        return [_sum(query, row) for row in cursor.fetchall()]


def _is_of_days(query: UsageQuery) -> bool:
    """Whether a query is about many whole days, and about nothing but what `usage_days` has."""
    wide = query.end - query.start >= MANY_DAYS and (query.width or DAY) % DAY == 0
    return wide and set(query.groups) <= {"project", "model"} and not query.keys and not query.users


def _sum(query: UsageQuery, row: Sequence[Any]) -> UsageSum:
    start, *values = row
    whose = dict(zip(query.groups, values, strict=False))
    if "batch" in whose:
        whose["batch"] = bool(whose["batch"])
    # PostgreSQL's sums of large numbers are decimals.
    requests, *counts = map(int, values[len(query.groups) :])
    tokens = UsedTokens(**dict(zip(TOKENS, counts, strict=True)))
    return UsageSum(start=int(start) if query.width else query.start, requests=requests, tokens=tokens, **whose)


def _sum_row(width: int, key: tuple[Any, ...], counted: Mapping[str, int]) -> Row:
    at, *names = key
    # A NUL cannot stand in any of them: PostgreSQL refuses it.
    digest = blake2b("\0".join(map(str, names[:-1])).encode() + bytes([bool(names[-1])]), digest_size=16)
    own_id = f"sum-{width}-{at}-{digest.hexdigest()}"
    return {"id": own_id, "at": at, "seconds": width, **dict(zip(WHOSE, names, strict=True)), **counted}
