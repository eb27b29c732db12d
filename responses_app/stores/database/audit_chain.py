"""The chain of the audit trail: `append` adds entries to its end, one writer at a time.

The lock is held until the transaction ends, so what follows the last entry is decided by one transaction at a time, and
an entry is seen by others only when all before it are. Where `append` is called inside a transaction, it comes last
there: whoever waits for the lock then holds nothing that its holder may want.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from responses_app.kit.columns import ID_LENGTH, json_text
from responses_app.models.audit import MAX_NAME, AuditRow
from responses_app.stores.audit import NO_HASH, AuditEntry, Head, hash_of

AUDIT_LOCK = 0x61756474  # the space of the one lock of `append`
LOCK_WAIT = "10s"  # on PostgreSQL; SQLite waits for its file as long as DATABASES says
MAX_DETAIL = 4_000  # characters
AT_ONCE = 500  # rows of a statement


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
    actor = entry.actor
    row = AuditRow(
        number=before.number + 1,
        created_at=datetime.now(UTC),
        action=str(entry.action),
        actor_kind=str(actor.kind),
        actor_id=plain(actor.id, ID_LENGTH),
        actor_name=plain(actor.name, MAX_NAME),
        project=plain(entry.project, ID_LENGTH),
        subject=plain(entry.subject, MAX_NAME),
        address=plain(actor.address, ID_LENGTH),
        detail=detail,
    )
    row.hash = hash_of(before.hash, hashed(row))
    return row


def hashed(row: AuditRow) -> Sequence[object]:
    """Return the fields that the hash is of."""
    texts = (row.action, row.actor_kind, row.actor_id, row.actor_name, row.project, row.subject, row.address)
    return (row.number, microseconds(row.created_at), *texts, row.detail)


def microseconds(at: datetime) -> int:
    """Return a time as whole Unix microseconds, which every database keeps."""
    whole = at.replace(microsecond=0)
    return int(whole.timestamp()) * 1_000_000 + at.microsecond


def plain(text: str, most: int) -> str:
    """Return a text as every database takes it: NUL and lone surrogates become escapes, and it is cut."""
    kept = text[:most].encode("utf-8", "backslashreplace").decode()
    return kept.replace("\0", "\\x00")[:most]
