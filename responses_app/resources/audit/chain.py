"""The chain of the audit trail: `append` adds entries to its end, `verify` finds changes in it.

Each entry has the hash of itself and of the entry before, and nothing of this server changes or removes one. So a row
that was changed, put in or put elsewhere does not fit to what stands around it, and one that was removed leaves a gap
in the numbers. Whoever can write the table can also make a whole new chain, or cut off the end: only a head that was
kept elsewhere shows that.

One writer at a time holds the lock of `append` until the transaction ends, so what follows the last entry is decided by
one transaction at a time, and an entry is seen by others only when all before it are. Where `append` is called inside a
transaction, it comes last there: whoever waits for the lock then holds nothing that its holder may want. `verify` and
`lines` read the rows in steps, each by a seek in the primary key, so that memory is bounded and writers go on.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from engine import orjson
from responses_app.kit.columns import json_text
from responses_app.kit.sql import columns
from responses_app.resources.audit.fields import NO_HASH, AuditEntry, Head, as_json, hashed_time, microseconds
from responses_app.resources.audit.model import AuditRow

AUDIT_LOCK = 0x61756474  # the space of the one lock of `append`
LOCK_WAIT = "10s"  # on PostgreSQL; SQLite waits for its file as long as DATABASES says
MAX_DETAIL = 4_000  # characters
AT_ONCE = 500  # rows of a statement
READ_AT_ONCE = 5_000  # rows in memory
MAX_PROBLEMS = 20
_COLUMNS = columns(AuditRow)  # all but the last, the hash, are hashed in this order
# Not by Django's fields: they would refuse to read what somebody has put into the table.
_ROWS = f"SELECT {', '.join(_COLUMNS)} FROM {AuditRow._meta.db_table} WHERE number > %s ORDER BY number LIMIT %s"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a verification."""

    entries: int  # that were read
    head: Head  # the last of them
    problems: Sequence[str] = ()  # the first `MAX_PROBLEMS`, in their order
    has_more: bool = False  # problems


def hash_of(before: str, fields: Sequence[object]) -> str:
    """Return the hash of an entry with these fields, behind one with the hash `before`."""
    return hashlib.sha256(orjson.dumps([before, *fields])).hexdigest()


def append(connection: BaseDatabaseWrapper, entries: Sequence[AuditEntry]) -> Head:
    """Add entries and return the trail's head. Raises Django's `DatabaseError`, and then nothing was added."""
    using = connection.alias
    with transaction.atomic(using=using):
        _lock(connection)
        before = last(using)
        rows = []
        for entry in entries:
            row = _row(entry, before)
            rows.append(row)
            before = Head(row.number, row.hash)
        AuditRow.objects.using(using).bulk_create(rows, batch_size=AT_ONCE)
    return before


def last(using: str) -> Head:
    """Return the trail's head."""
    found = AuditRow.objects.using(using).order_by("-number").values_list("number", "hash").first()
    return Head(*found) if found else Head(0, NO_HASH)


def _lock(connection: BaseDatabaseWrapper) -> None:
    if connection.vendor != "postgresql":  # transactions of SQLite are IMMEDIATE: there is one writer at a time anyway
        return
    with connection.cursor() as cursor:
        # `true`: until the transaction ends.
        cursor.execute("SELECT set_config('lock_timeout', %s, true)", [LOCK_WAIT])
        cursor.execute("SELECT pg_advisory_xact_lock(%s, 0)", [AUDIT_LOCK])


def _row(entry: AuditEntry, before: Head) -> AuditRow:
    detail = json_text(entry.detail)
    if len(detail) > MAX_DETAIL:
        detail = json_text({"left_out": "it is too long"})
    lengths = {column.name: column.max_length for column in AuditRow._meta.concrete_fields}
    texts = {name: plain(text, lengths[name]) for name, text in entry.columns().items()}
    row = AuditRow(number=before.number + 1, created_at=datetime.now(UTC), detail=detail, **texts)
    row.hash = hash_of(before.hash, hashed(row))
    return row


def hashed(row: AuditRow) -> Sequence[object]:
    """Return the fields that the hash is of."""
    return (row.number, microseconds(row.created_at), *(getattr(row, name) for name in _COLUMNS[2:-1]))


def plain(text: str, most: int) -> str:
    """Return a text as every database takes it: NUL and lone surrogates become escapes, and it is cut."""
    kept = text[:most].encode("utf-8", "backslashreplace").decode()
    return kept.replace("\0", "\\x00")[:most]


def verify(kept: Head | None = None, *, using: str = "default") -> Verdict:
    """Read the whole trail and return whether it is whole, up to the head that was `kept` elsewhere at least."""
    problems: list[str] = []
    entries, head, same = 0, Head(0, NO_HASH), None
    for row in _rows(using):
        number, at, *middle, digest = row
        if number != head.number + 1:
            first, last_one = head.number + 1, number - 1
            missing = f"Entry {first} is" if first == last_one else f"Entries {first} to {last_one} are"
            problems.append(f"{missing} missing before entry {number}.")
        elif digest != hash_of(head.hash, (number, hashed_time(at), *map(str, middle))):
            problems.append(f"Entry {number} does not fit behind entry {head.number}: one of them is not as it was.")
        if len(problems) > MAX_PROBLEMS:
            break
        entries, head = entries + 1, Head(number, str(digest))
        if kept is not None and number == kept.number:
            same = head
    has_more = len(problems) > MAX_PROBLEMS
    if kept is not None and same != kept and not has_more and kept.number:
        problems.append(_other_head(kept, head, same))
    return Verdict(entries, head, problems[:MAX_PROBLEMS], has_more)


def _other_head(kept: Head, head: Head, same: Head | None) -> str:
    if same is None and head.number < kept.number:
        return f"The trail ends with entry {head.number}, but had {kept.number} entries: its end was cut off."
    if same is None:
        return f"Entry {kept.number} is missing, which is the head that was kept."
    return f"Entry {kept.number} has another hash than the head that was kept: the trail was written anew."


def lines(*, after: int = 0, using: str = "default") -> Iterator[str]:
    """Yield the entries behind number `after` as JSON, a line each."""
    for row in _rows(using, after):
        yield json.dumps(as_json(dict(zip(_COLUMNS, row, strict=True))), default=str)


def _rows(using: str, after: int = 0) -> Iterator[tuple[Any, ...]]:
    with connections[using].cursor() as cursor:
        while True:
            cursor.execute(_ROWS, [after, READ_AT_ONCE])
            rows = cursor.fetchall()
            yield from rows
            if len(rows) < READ_AT_ONCE:
                return
            after = rows[-1][0]
