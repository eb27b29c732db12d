"""Reading the audit trail: `verify` finds what was changed in the table, `lines` writes it out.

Both read the rows in steps, each by a seek in the primary key, so that memory is bounded and writers go on.

An entry's hash covers the one before. So a row that was changed, put in or put elsewhere does not fit to what stands
around it, and one that was removed leaves a gap in the numbers. Whoever can write the table can also make a whole new
chain, or cut off the end: only a head that was kept elsewhere shows that.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from django.db import connections

from responses_app.models.audit import AuditRow
from responses_app.protocol.errors import JsonObject
from responses_app.stores.audit import MAX_PROBLEMS, NO_HASH, Head, Verdict, hash_of
from responses_app.stores.database.audit_chain import microseconds

AT_ONCE = 5_000  # rows in memory
_COLUMNS = tuple(field.column for field in AuditRow._meta.concrete_fields)
# Not by Django's fields: they would refuse to read what somebody has put into the table.
_ROWS = f"SELECT {', '.join(_COLUMNS)} FROM {AuditRow._meta.db_table} WHERE number > %s ORDER BY number LIMIT %s"


def verify(kept: Head | None = None, *, using: str = "default") -> Verdict:
    """Read the whole trail and say whether it is whole, up to the head that was `kept` elsewhere at least."""
    problems: list[str] = []
    entries, head, found = 0, Head(0, NO_HASH), None
    for row in _rows(using):
        number, at, *middle, digest = row
        if number != head.number + 1:
            problems.append(_missing(head.number + 1, number))
        elif digest != hash_of(head.hash, (number, _microseconds(at), *map(_hashable, middle))):
            problems.append(f"Entry {number} does not fit behind entry {head.number}: one of them is not as it was.")
        if len(problems) > MAX_PROBLEMS:
            break
        entries, head = entries + 1, Head(number, str(digest))
        if kept is not None and number == kept.number:
            found = head
    has_more = len(problems) > MAX_PROBLEMS
    if kept is not None and found != kept and not has_more and kept.number:
        problems.append(_other_head(kept, head, found))
    return Verdict(entries, head, problems[:MAX_PROBLEMS], has_more)


def _missing(first: int, number: int) -> str:
    last = number - 1
    missing = f"Entry {first} is" if first == last else f"Entries {first} to {last} are"
    return f"{missing} missing before entry {number}."


def _other_head(kept: Head, head: Head, found: Head | None) -> str:
    if found is None and head.number < kept.number:
        return f"The trail ends with entry {head.number}, but had {kept.number} entries: its end was cut off."
    if found is None:
        return f"Entry {kept.number} is missing, which is the head that was kept."
    return f"Entry {kept.number} has another hash than the head that was kept: the trail was written anew."


def lines(*, after: int = 0, using: str = "default") -> Iterator[str]:
    """Yield the entries behind number `after` as JSON, a line each."""
    for row in _rows(using, after):
        yield json.dumps(as_json(dict(zip(_COLUMNS, row, strict=True))), default=str)


def as_json(row: dict[str, Any]) -> JsonObject:
    """Return an entry as it is exported."""
    at = _microseconds(row["created_at"])
    return {
        "number": row["number"],
        "at": datetime.fromtimestamp(at / 1e6, UTC).isoformat() if isinstance(at, int) else at,
        "action": row["action"],
        "actor": {"kind": row["actor_kind"], "id": row["actor_id"], "name": row["actor_name"]},
        "address": row["address"],
        "project": row["project"],
        "subject": row["subject"],
        "detail": detail_of(row["detail"]),
        "hash": row["hash"],
    }


def detail_of(text: object) -> object:
    """Return what a row tells beside; as it stands where somebody has made no JSON of it."""
    try:
        return json.loads(str(text))
    except ValueError:
        return str(text)


def _rows(using: str, after: int = 0) -> Iterator[tuple[Any, ...]]:
    with connections[using].cursor() as cursor:
        while True:
            cursor.execute(_ROWS, [after, AT_ONCE])
            rows = cursor.fetchall()
            yield from rows
            if len(rows) < AT_ONCE:
                return
            after = rows[-1][0]


def _microseconds(at: object) -> object:
    """Return a time as it was hashed; SQLite has text."""
    if isinstance(at, str):
        try:
            at = datetime.fromisoformat(at).replace(tzinfo=UTC)
        except ValueError:
            return at
    return microseconds(at) if isinstance(at, datetime) else str(at)


def _hashable(value: object) -> object:
    return value if isinstance(value, str) else str(value)  # a column of SQLite takes anything
