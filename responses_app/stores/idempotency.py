"""Idempotency keys in the database, which all workers share, and the answers that are kept for them.

Who claims a key is decided by its row: whoever inserts it first, or changes it while he has it locked.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Count, QuerySet, Sum
from django.db.models.functions import Length

from responses_app.kit.kept import removes
from responses_app.kit.table import Store, reads, writes
from responses_app.models import Worker
from responses_app.models.idempotency import AnswerPart, IdempotencyKey
from responses_app.protocol.idempotency import AnswerHead, IdempotencyRecord, IdempotencySettings, KeyClaim, KeyState

AT_ONCE = 200  # keys that one transaction of a purge removes
PARTS_AT_ONCE = 8  # that one look reads

_RUNNING = KeyState.RUNNING.value


class IdempotencyStore(Store[IdempotencySettings]):
    """Keeps keys of projects until their time is over. Every method raises `StoreError`."""

    unlimited = IdempotencySettings()

    @writes
    def claim(self, claim: KeyClaim, *, dead_before: float, held: Collection[str]) -> IdempotencyRecord:
        """Claim a key that is new, free, or that a dead worker holds for a stored response; return it as it is then.

        It was claimed if its `token` is that of `claim`. A free key takes the claim's fingerprint; one that is not free
        and has another fingerprint stays as it is. A key that was claimed before keeps its `object_id`, unless it was
        free with another request. A dead worker's key without an `object_id` becomes `CUT`: nobody knows how far its
        request came. A worker is dead that was not seen since `dead_before`; a claim of this very worker is one of a
        dead one unless `held` has its token.
        """
        at = self._at()
        new = IdempotencyKey(
            id=claim.id,
            project=claim.project,
            fingerprint=claim.fingerprint,
            state=_RUNNING,
            object_id=claim.object_id,
            token=claim.token,
            worker=claim.worker,
            created_at=at,
            expires_at=at + timedelta(seconds=self._settings.idempotency_key_ttl),
        )
        rows, row = IdempotencyKey.objects.using(self._using), None
        while row is None:  # its row may be let go between the two statements
            rows.bulk_create([new], ignore_conflicts=True)
            row = rows.select_for_update().filter(pk=claim.id).first()
        if row.token == claim.token:
            return _record(row, is_orphan=False)
        if row.expires_at <= at or row.created_at.timestamp() <= self._since(claim.project):
            remove_keys(self._db, [claim.id])
            new.save(using=self._using, force_insert=True)
            return _record(new, is_orphan=False)
        is_own = row.worker == claim.worker
        orphan = row.token not in held if is_own else _is_orphan(self._db, row, dead_before)
        if row.state == KeyState.FREE:
            if row.fingerprint != claim.fingerprint:
                row.fingerprint, row.object_id = claim.fingerprint, claim.object_id
        elif not (row.state == _RUNNING and orphan and row.fingerprint == claim.fingerprint):
            return _record(row, is_orphan=orphan and row.state == _RUNNING)
        elif not row.object_id:  # nobody knows how far the dead one came
            _settle(row, KeyState.CUT)
            return _record(row, is_orphan=False)
        # What was kept of an answer is of the claim before.
        AnswerPart.objects.using(self._using).filter(key=claim.id).delete()
        row.state, row.token, row.worker, row.epoch = _RUNNING, claim.token, claim.worker, row.epoch + 1
        row.head, row.size = None, 0
        row.save(using=self._using)
        return _record(row, is_orphan=False)

    @reads
    def look(self, key_id: str, *, dead_before: float) -> IdempotencyRecord | None:
        """Return a key, None where nobody has it."""
        row = IdempotencyKey.objects.using(self._using).filter(pk=key_id, expires_at__gt=self._at()).first()
        if row is None or row.created_at.timestamp() <= self._since(row.project):
            return None
        return _record(row, is_orphan=row.state == _RUNNING and _is_orphan(self._db, row, dead_before))

    @writes
    def keep(self, key_id: str, token: str, *, head: AnswerHead, parts: Mapping[int, str], state: KeyState) -> bool:
        """Keep parts of an answer, by their positions, and what has become of it; return whether the claim holds.

        Where it does not, or something else has become of it meanwhile, nothing is kept. To keep the same again changes
        nothing.
        """
        row = self._held(key_id, token)
        # What was settled stays so: a write of before, which took its time, may come behind it.
        if row is None or row.state not in (_RUNNING, state.value):
            return False
        rows = AnswerPart.objects.using(self._using)
        # Those of an attempt whose answer got lost are there already, and are replaced.
        rows.filter(key=key_id, position__in=list(parts)).delete()
        rows.bulk_create([AnswerPart(key_id=key_id, position=position, data=data) for position, data in parts.items()])
        row.head = {"status": head.status, "headers": dict(head.headers), "streams": head.streams}
        row.state, row.size = state.value, rows.filter(key=key_id).aggregate(size=Sum(Length("data")))["size"] or 0
        row.save(using=self._using, update_fields=["head", "state", "size"])
        return True

    @writes
    def settle(self, key_id: str, token: str, state: KeyState) -> None:
        """Note what has become of a key, if the claim holds, and drop the parts of an answer that is not whole."""
        if (row := self._held(key_id, token)) is not None:
            _settle(row, state)

    @writes
    def rename(self, key_id: str, token: str, object_id: str) -> None:
        """Note that the request of a key makes another response than it was to make, if the claim holds."""
        if (row := self._held(key_id, token)) is not None:
            row.object_id = object_id
            row.save(using=self._using, update_fields=["object_id"])

    @writes
    def forget(self, key_id: str, token: str) -> None:
        """Let go of a key whose request has changed nothing, if the claim holds."""
        if self._held(key_id, token) is not None:
            remove_keys(self._db, [key_id])

    @reads
    def parts(self, key_id: str, start: int) -> Sequence[str]:
        """Return the parts of an answer from a position on, a bounded number of them."""
        rows = AnswerPart.objects.using(self._using).filter(key=key_id, position__gte=start)
        return list(rows.order_by("position").values_list("data", flat=True)[:PARTS_AT_ONCE])

    @reads
    def usage(self, project: str) -> tuple[int, int]:
        """Return how many keys of a project hold, and how many bytes their answers have."""
        rows = IdempotencyKey.objects.using(self._using).filter(project=project, expires_at__gt=self._at())
        counted = rows.aggregate(keys=Count("pk"), bytes=Sum("size"))
        return counted["keys"], counted["bytes"] or 0

    async def purge(self) -> int:
        """Remove keys whose time is over, with their answers; return how many. All of them, in bounded steps."""
        removed = 0
        while step := await self._purge():
            removed += step
        return removed

    @writes
    def _purge(self) -> int:
        rows = IdempotencyKey.objects.using(self._using).filter(expires_at__lte=self._at())
        gone = list(rows.order_by("expires_at").values_list("pk", flat=True)[:AT_ONCE])
        # Looked at again with the row locked: a request may have claimed the key anew since.
        gone = list(rows.select_for_update().filter(pk__in=gone).order_by("pk").values_list("pk", flat=True))
        remove_keys(self._db, gone)
        return len(gone)

    def _held(self, key_id: str, token: str) -> IdempotencyKey | None:
        """Return a key with its row locked, None where the claim does not hold."""
        return IdempotencyKey.objects.using(self._using).select_for_update().filter(pk=key_id, token=token).first()


@removes(IdempotencyKey, at_once=50)
def _remove_locked(rows: "QuerySet[IdempotencyKey]", ids: Sequence[str]) -> None:
    with transaction.atomic(using=rows.db):
        # A request may have claimed the key anew since: then these rows are its no more.
        locked = list(rows.select_for_update().order_by("pk").values_list("pk", flat=True))
        remove_keys(connections[rows.db], locked)


def remove_keys(connection: BaseDatabaseWrapper, key_ids: Sequence[str]) -> None:
    """Remove keys with their answers, within a transaction."""
    AnswerPart.objects.using(connection.alias).filter(key__in=key_ids).delete()
    IdempotencyKey.objects.using(connection.alias).filter(pk__in=key_ids).delete()


def _settle(row: IdempotencyKey, state: KeyState) -> None:
    """Note what has become of a key that is locked; an answer that is not whole is dropped."""
    AnswerPart.objects.using(row._state.db).filter(key=row.pk).delete()
    row.state, row.worker, row.size, row.head = state.value, "", 0, None
    row.save(using=row._state.db)


def _is_orphan(connection: BaseDatabaseWrapper, row: IdempotencyKey, dead_before: float) -> bool:
    # Before the first beats `dead_before` is minus infinity, which is not a time that a database takes.
    since = datetime.fromtimestamp(max(0.0, dead_before), UTC)
    return not Worker.objects.using(connection.alias).filter(pk=row.worker, seen_at__gt=since).exists()


def _record(row: IdempotencyKey, *, is_orphan: bool) -> IdempotencyRecord:
    return IdempotencyRecord(
        fingerprint=row.fingerprint,
        object_id=row.object_id,
        state=KeyState(row.state),
        epoch=row.epoch,
        token=row.token,
        is_orphan=is_orphan,
        head=None if row.head is None else AnswerHead(**row.head),
    )
