"""Idempotency keys in the database, which all workers share, and the answers that are kept for them.

Who claims a key is decided by its row: whoever inserts it first, or changes it while he has it locked.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Count, QuerySet, Sum
from django.db.models.functions import Length

from responses_app.kit.kept import removes
from responses_app.kit.table import Store
from responses_app.models import Worker
from responses_app.models.idempotency import AnswerPart, IdempotencyKey
from responses_app.stores.idempotency import (
    AnswerHead,
    IdempotencyRecord,
    IdempotencySettings,
    KeyClaim,
    KeyState,
)

AT_ONCE = 200  # keys that one transaction of a purge removes
PARTS_AT_ONCE = 8  # that one look reads

_RUNNING = KeyState.RUNNING.value


class DatabaseIdempotencyStore(Store[IdempotencySettings]):
    """Keeps keys of projects in a database until their time is over; the arguments are `Store`'s.

    Every method raises `StoreError`.
    """

    unlimited = IdempotencySettings()

    async def claim(self, claim: KeyClaim, *, dead_before: float, held: Collection[str]) -> IdempotencyRecord:
        """Claim a key that is new, free, or that a dead worker holds for a stored response; return it as it is then.

        It was claimed if its `token` is that of `claim`. A free key takes the claim's fingerprint; one that is not free
        and has another fingerprint stays as it is. A key that was claimed before keeps its `object_id`, unless it was
        free with another request. A dead worker's key without an `object_id` becomes `CUT`: nobody knows how far its
        request came. A worker is dead that was not seen since `dead_before`; a claim of this very worker is one of a
        dead one unless `held` has its token.
        """
        at = datetime.fromtimestamp(self._now(), UTC)
        since = self._since(claim.project)
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

        def write(connection: BaseDatabaseWrapper) -> IdempotencyRecord:
            rows = IdempotencyKey.objects.using(connection.alias)
            with transaction.atomic(using=connection.alias):
                row = None
                while row is None:  # its row may be let go between the two statements
                    rows.bulk_create([new], ignore_conflicts=True)
                    row = rows.select_for_update().filter(pk=claim.id).first()
                if row.token == claim.token:
                    return _record(row, is_orphan=False)
                if row.expires_at <= at or row.created_at.timestamp() <= since:
                    remove_keys(connection, [claim.id])
                    new.save(using=connection.alias, force_insert=True)
                    return _record(new, is_orphan=False)
                is_own = row.worker == claim.worker
                orphan = row.token not in held if is_own else _is_orphan(connection, row, dead_before)
                if row.state == KeyState.FREE:
                    if row.fingerprint != claim.fingerprint:
                        row.fingerprint, row.object_id = claim.fingerprint, claim.object_id
                elif not (row.state == _RUNNING and orphan and row.fingerprint == claim.fingerprint):
                    return _record(row, is_orphan=orphan and row.state == _RUNNING)
                elif not row.object_id:  # nobody knows how far the dead one came
                    _settle(row, connection, KeyState.CUT)
                    return _record(row, is_orphan=False)
                # What was kept of an answer is of the claim before.
                AnswerPart.objects.using(connection.alias).filter(key=claim.id).delete()
                row.state, row.token, row.worker, row.epoch = _RUNNING, claim.token, claim.worker, row.epoch + 1
                row.head, row.size = None, 0
                row.save(using=connection.alias)
            return _record(row, is_orphan=False)

        return await self._threads.run(write)

    async def look(self, key_id: str, *, dead_before: float) -> IdempotencyRecord | None:
        """Return a key, None where nobody has it."""
        at = self._time()

        def read(connection: BaseDatabaseWrapper) -> IdempotencyRecord | None:
            row = IdempotencyKey.objects.using(connection.alias).filter(pk=key_id, expires_at__gt=at).first()
            if row is None or row.created_at.timestamp() <= self._since(row.project):
                return None
            return _record(row, is_orphan=row.state == _RUNNING and _is_orphan(connection, row, dead_before))

        return await self._threads.run(read)

    async def keep(
        self, key_id: str, token: str, *, head: AnswerHead, parts: Mapping[int, str], state: KeyState
    ) -> bool:
        """Keep parts of an answer, by their positions, and what has become of it; return whether the claim holds.

        Where it does not, or something else has become of it meanwhile, nothing is kept. To keep the same again changes
        nothing.
        """
        written = {"status": head.status, "headers": dict(head.headers), "streams": head.streams}

        def write(connection: BaseDatabaseWrapper) -> bool:
            with transaction.atomic(using=connection.alias):
                row = _held(connection, key_id, token).first()
                # What was settled stays so: a write of before, which took its time, may come behind it.
                if row is None or row.state not in (_RUNNING, state.value):
                    return False
                rows = AnswerPart.objects.using(connection.alias)
                # Those of an attempt whose answer got lost are there already, and are replaced.
                rows.filter(key=key_id, position__in=list(parts)).delete()
                rows.bulk_create(
                    [AnswerPart(key_id=key_id, position=position, data=data) for position, data in parts.items()]
                )
                size = rows.filter(key=key_id).aggregate(size=Sum(Length("data")))["size"]
                row.head, row.state, row.size = written, state.value, size or 0
                row.save(using=connection.alias, update_fields=["head", "state", "size"])
            return True

        return await self._threads.run(write)

    async def settle(self, key_id: str, token: str, state: KeyState) -> None:
        """Note what has become of a key, if the claim holds, and drop the parts of an answer that is not whole."""
        await self._change(key_id, token, lambda row, connection: _settle(row, connection, state))

    async def rename(self, key_id: str, token: str, object_id: str) -> None:
        """Note that the request of a key makes another response than it was to make, if the claim holds."""

        def rename(row: IdempotencyKey, connection: BaseDatabaseWrapper) -> None:
            row.object_id = object_id
            row.save(using=connection.alias, update_fields=["object_id"])

        await self._change(key_id, token, rename)

    async def forget(self, key_id: str, token: str) -> None:
        """Let go of a key whose request has changed nothing, if the claim holds."""
        await self._change(key_id, token, lambda row, connection: remove_keys(connection, [row.pk]))

    async def _change(
        self, key_id: str, token: str, change: Callable[[IdempotencyKey, BaseDatabaseWrapper], None]
    ) -> None:
        def write(connection: BaseDatabaseWrapper) -> None:
            with transaction.atomic(using=connection.alias):
                row = _held(connection, key_id, token).first()
                if row is not None:
                    change(row, connection)

        await self._threads.run(write)

    async def parts(self, key_id: str, start: int) -> Sequence[str]:
        """Return the parts of an answer from a position on, a bounded number of them."""

        def read(connection: BaseDatabaseWrapper) -> Sequence[str]:
            rows = AnswerPart.objects.using(connection.alias).filter(key=key_id, position__gte=start)
            return list(rows.order_by("position").values_list("data", flat=True)[:PARTS_AT_ONCE])

        return await self._threads.run(read)

    async def usage(self, project: str) -> tuple[int, int]:
        """Return how many keys of a project hold, and how many bytes their answers have."""
        at = self._time()

        def read(connection: BaseDatabaseWrapper) -> tuple[int, int]:
            rows = IdempotencyKey.objects.using(connection.alias).filter(project=project, expires_at__gt=at)
            counted = rows.aggregate(keys=Count("pk"), bytes=Sum("size"))
            return counted["keys"], counted["bytes"] or 0

        return await self._threads.run(read)

    async def purge(self) -> int:
        """Remove keys whose time is over, with their answers; return how many. All of them, in bounded steps."""
        removed = 0
        while step := await self._threads.run(lambda connection: _purge(connection, self._time())):
            removed += step
        return removed

    def _time(self) -> datetime:
        return datetime.fromtimestamp(self._now(), UTC)


@removes(IdempotencyKey, at_once=50)
def _remove_locked(rows: "QuerySet[IdempotencyKey]", ids: Sequence[str]) -> None:
    with transaction.atomic(using=rows.db):
        # A request may have claimed the key anew since: then these rows are its no more.
        locked = list(rows.select_for_update().order_by("pk").values_list("pk", flat=True))
        remove_keys(connections[rows.db], locked)


def _purge(connection: BaseDatabaseWrapper, at: datetime) -> int:
    rows = IdempotencyKey.objects.using(connection.alias).filter(expires_at__lte=at)
    with transaction.atomic(using=connection.alias):
        gone = list(rows.order_by("expires_at").values_list("pk", flat=True)[:AT_ONCE])
        # Looked at again with the row locked: a request may have claimed the key anew since.
        gone = list(rows.select_for_update().filter(pk__in=gone).order_by("pk").values_list("pk", flat=True))
        remove_keys(connection, gone)
    return len(gone)


def remove_keys(connection: BaseDatabaseWrapper, key_ids: Sequence[str]) -> None:
    """Remove keys with their answers, within a transaction."""
    AnswerPart.objects.using(connection.alias).filter(key__in=key_ids).delete()
    IdempotencyKey.objects.using(connection.alias).filter(pk__in=key_ids).delete()


def _settle(row: IdempotencyKey, connection: BaseDatabaseWrapper, state: KeyState) -> None:
    """Note what has become of a key that is locked; an answer that is not whole is dropped."""
    AnswerPart.objects.using(connection.alias).filter(key=row.pk).delete()
    row.state, row.worker, row.size, row.head = state.value, "", 0, None
    row.save(using=connection.alias)


def _held(connection: BaseDatabaseWrapper, key_id: str, token: str) -> "QuerySet[IdempotencyKey]":
    return IdempotencyKey.objects.using(connection.alias).select_for_update().filter(pk=key_id, token=token)


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
