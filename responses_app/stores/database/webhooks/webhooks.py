"""`DatabaseWebhooks`: webhook endpoints and their deliveries in Django's database, SQLite or PostgreSQL.

Every step may be executed twice, where a connection broke in between: a claim is then this worker's already, and what
was settled stays settled.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Exists, F, Min, OuterRef, Q, QuerySet, Value
from django.db.models.functions import Least

from responses_app.kit.polling import Question
from responses_app.kit.sql import one_at_a_time
from responses_app.kit.table import Store, can_be_known, part_of
from responses_app.models.webhooks import (
    DELIVERED,
    PARKED,
    WAITING,
    WebhookDelivery,
    WebhookEndpoint,
    WebhookEvent,
)
from responses_app.stores.database.webhooks.outbox import dispatch
from responses_app.stores.webhooks import (
    Attempt,
    BaseWebhooks,
    Claimed,
    DueMessage,
    EndpointChanges,
    EndpointRecord,
    EndpointsFull,
    NewSecret,
    WebhookSettings,
)

Result = TypeVar("Result")

CREATION_LOCK = 0x77656265  # the space of the locks of projects
PARKED_SECONDS = 30 * 86_400.0  # that a parked delivery is kept
_WAITING = f"SELECT 1 FROM {WebhookDelivery._meta.db_table} WHERE status = '{WAITING}'"
_ANY = Question("'', 1", f"WHERE EXISTS (SELECT 1 FROM {WebhookEvent._meta.db_table}) OR EXISTS ({_WAITING})")
DUE_AT_ONCE = 100  # messages that are looked at together, for what is to be sent
PURGED_AT_ONCE = 1_000  # rows in one transaction
MAX_PROBLEM = 500  # characters that are kept of why an attempt failed


class DatabaseWebhooks(Store[WebhookSettings], BaseWebhooks):
    """Keeps them in the database `using`; `timeout` bounds, in seconds, whatever waits for it. `now` is Unix time."""

    unlimited = WebhookSettings()

    async def create(self, record: EndpointRecord) -> None:
        def act(connection: BaseDatabaseWrapper) -> None:
            endpoints = self._endpoints(record.project)
            if endpoints.filter(pk=record.id).exists():
                return  # an earlier attempt was committed after all
            one_at_a_time(connection, CREATION_LOCK, record.project)
            if endpoints.count() >= self._settings.webhook_endpoints_max:
                raise EndpointsFull(self._settings.webhook_endpoints_max)
            endpoints.create(
                id=record.id,
                project=record.project,
                name=record.name,
                url=record.url,
                event_types=list(record.event_types),
                created_at=_time(record.created_at),
                updated_at=_time(record.updated_at),
                enabled=record.status == "enabled",
                secret=record.secret,
                secret_hint=record.secret_hint,
            )

        await self._write(act)

    async def get(self, project: str, endpoint_id: str) -> EndpointRecord | None:
        def act(_: BaseDatabaseWrapper) -> EndpointRecord | None:
            row = self._endpoints(project).filter(pk=endpoint_id).first()
            return None if row is None else self._record(row)

        return await self._threads.run(act) if can_be_known(endpoint_id) else None

    async def listed(
        self, project: str, *, after: str | None, descending: bool, limit: int
    ) -> Sequence[EndpointRecord]:
        def act(_: BaseDatabaseWrapper) -> Sequence[EndpointRecord]:
            rows = part_of(self._endpoints(project), after=after, descending=descending, limit=limit)
            return [self._record(row) for row in rows]

        return await self._threads.run(act)

    async def update(self, project: str, endpoint_id: str, changes: EndpointChanges) -> EndpointRecord | None:
        def change(row: WebhookEndpoint) -> bool:
            before = (row.name, row.url, row.event_types, row.enabled)
            row.name, row.url = changes.name or row.name, changes.url or row.url
            if changes.event_types is not None:
                row.event_types = list(changes.event_types)
            if changes.status is not None:
                row.enabled = changes.status == "enabled"
            if row.url != before[1] or (row.enabled and not before[3]):
                row.paused_until, row.failures = None, 0  # what failed there says nothing of it now
            return before != (row.name, row.url, row.event_types, row.enabled)

        return await self._change(project, endpoint_id, change)

    async def rotate(self, project: str, endpoint_id: str, secret: NewSecret) -> EndpointRecord | None:
        def change(row: WebhookEndpoint) -> bool:
            if row.secret == secret.sealed:
                return False  # an earlier attempt was committed after all
            row.old_secret, row.old_secret_until = "", None
            if secret.keep_old_seconds:
                row.old_secret, row.old_secret_until = row.secret, self._at(secret.keep_old_seconds)
            row.secret, row.secret_hint = secret.sealed, secret.hint
            return True

        return await self._change(project, endpoint_id, change)

    async def delete(self, project: str, endpoint_id: str) -> bool:
        def act(_: BaseDatabaseWrapper) -> bool:
            rows = self._endpoints(project).filter(pk=endpoint_id)
            found = rows.select_for_update().first()
            if found is not None:
                WebhookDelivery.objects.using(self._using).filter(endpoint_id=found.pk).delete()
                rows.delete()
            return found is not None

        return can_be_known(endpoint_id) and await self._write(act)

    async def has_work(self) -> bool:
        return bool(await self._polls.poll(_ANY))

    async def dispatch(self) -> bool:
        return await self._threads.run(lambda db: dispatch(db, self._settings, now=self._at()))

    async def claim(self, worker: str, *, lease_seconds: float, most: int, without: Collection[str]) -> Claimed | None:
        def free() -> "QuerySet[WebhookEndpoint]":
            now = self._at()
            rows = WebhookEndpoint.objects.using(self._using).filter(enabled=True).exclude(project__in=list(without))
            rows = rows.filter(Q(leased_until=None) | Q(leased_until__lte=now))
            rows = rows.filter(Q(paused_until=None) | Q(paused_until__lte=now))
            due = WebhookDelivery.objects.using(self._using).filter(
                endpoint=OuterRef("pk"), status=WAITING, due_at__lte=now
            )
            return rows.filter(Exists(due)).order_by(F("served_at").asc(nulls_first=True), "pk")

        def act(_: BaseDatabaseWrapper) -> Claimed | None:
            while (row := free().select_for_update(skip_locked=True, of=("self",)).first()) is not None:
                due = [_message(each) for each in self._due(row.pk, most)]
                if due:
                    row.worker, row.served_at = worker, self._at()
                    row.leased_until = self._at(lease_seconds)
                    row.save(using=self._using, update_fields=["worker", "served_at", "leased_until"])
                    return Claimed(endpoint=self._record(row), due=due, failures=row.failures)
                # Each of its messages waited behind one that is due later, and is due later now, too.
            return None

        if not await self._threads.run(lambda _: free().exists()):  # nothing is locked
            return None
        return await self._write(act)

    async def settle(self, claimed: Claimed, attempts: Sequence[Attempt], *, worker: str, pause: float) -> None:
        def act(_: BaseDatabaseWrapper) -> None:
            now, endpoint_id = self._at(), claimed.endpoint.id
            own = WebhookEndpoint.objects.using(self._using).filter(pk=endpoint_id, worker=worker)
            # Locked first, in the order in which `claim` and `delete` lock.
            is_own = own.select_for_update().first() is not None
            waiting = WebhookDelivery.objects.using(self._using).filter(endpoint_id=endpoint_id, status=WAITING)
            arrived = [each for each in attempts if not each.problem]
            for code in {each.status_code for each in arrived}:
                keys = [each.key for each in arrived if each.status_code == code]
                waiting.filter(pk__in=keys).update(
                    status=DELIVERED, changed_at=now, attempts=F("attempts") + 1, status_code=code, problem=""
                )
            if not is_own:
                return
            for each in attempts:
                if each.problem:
                    _note_failure(waiting.filter(pk=each.key), each, now)
            failed = bool(attempts) and not arrived
            own.update(
                worker="",
                leased_until=None,
                paused_until=now + timedelta(seconds=pause) if pause else None,
                failures=F("failures") + 1 if failed else 0,
            )

        await self._write(act)

    async def purge(self) -> int:
        def act(_: BaseDatabaseWrapper) -> int:
            rows = WebhookDelivery.objects.using(self._using)
            old = Q(status=DELIVERED, changed_at__lt=self._at(-self._settings.webhook_kept_seconds))
            old |= Q(status=PARKED, changed_at__lt=self._at(-PARKED_SECONDS))
            keys = list(rows.filter(old).values_list("pk", flat=True)[:PURGED_AT_ONCE])
            return int(rows.filter(pk__in=keys).delete()[0])

        return await self._write(act)

    # What follows runs on a thread.

    def _at(self, seconds: float = 0.0) -> datetime:
        """Return the time so many seconds from now."""
        return _time(self._now() + seconds)

    def _endpoints(self, project: str) -> "QuerySet[WebhookEndpoint]":
        return WebhookEndpoint.objects.using(self._using).filter(project=project)

    def _due(self, endpoint_id: str, most: int) -> Sequence[WebhookDelivery]:
        """Return up to `most` messages that are due: of each object the oldest, since they arrive in order.

        What waits behind one that is due later becomes due with that, so it is not looked at again before. The rows are
        read a few at a time by the index of what is due: the database may know nothing yet of thousands that have just
        come, and might compare all of them with each other.
        """
        waiting = WebhookDelivery.objects.using(self._using).filter(endpoint_id=endpoint_id, status=WAITING)
        now, found, looked_at = self._at(), list[WebhookDelivery](), set[str]()
        while len(found) < most:
            rows = waiting.filter(due_at__lte=now).exclude(object_id__in=looked_at).order_by("due_at", "pk")
            if not (some := list(rows[:DUE_AT_ONCE])):
                break
            objects = {row.object_id for row in some}
            oldest = waiting.filter(object_id__in=objects).order_by("object_id").values("object_id")
            keys = [each["key"] for each in oldest.annotate(key=Min("pk"))]
            heads = {row.object_id: row for row in waiting.filter(pk__in=keys)}
            behind = [row for row in some if heads[row.object_id].due_at > now]
            for row in behind:
                row.due_at = heads[row.object_id].due_at
            if behind:
                WebhookDelivery.objects.using(self._using).bulk_update(behind, ["due_at"])
            found += sorted((row for row in heads.values() if row.due_at <= now), key=lambda row: (row.due_at, row.pk))
            looked_at |= objects
        return found[:most]

    def _record(self, row: WebhookEndpoint) -> EndpointRecord:
        old_is_good = row.old_secret_until is not None and row.old_secret_until > self._at()
        return EndpointRecord(
            id=row.pk,
            project=row.project,
            name=row.name,
            url=row.url,
            event_types=row.event_types,
            created_at=int(row.created_at.timestamp()),
            updated_at=int(row.updated_at.timestamp()),
            secret=row.secret,
            secret_hint=row.secret_hint,
            old_secret=row.old_secret if old_is_good else "",
            status="enabled" if row.enabled else "disabled",
        )

    async def _change(
        self, project: str, endpoint_id: str, change: Callable[[WebhookEndpoint], bool]
    ) -> EndpointRecord | None:
        def act(_: BaseDatabaseWrapper) -> EndpointRecord | None:
            row = self._endpoints(project).select_for_update().filter(pk=endpoint_id).first()
            if row is None:
                return None
            if change(row):
                row.updated_at = self._at()
                row.save(
                    using=self._using,
                    update_fields=[
                        *("name", "url", "event_types", "enabled", "paused_until", "failures", "updated_at"),
                        *("secret", "secret_hint", "old_secret", "old_secret_until"),
                    ],
                )
            return self._record(row)

        return await self._write(act) if can_be_known(endpoint_id) else None

    async def _write(self, act: Callable[[BaseDatabaseWrapper], Result]) -> Result:
        def within_transaction(connection: BaseDatabaseWrapper) -> Result:
            with transaction.atomic(using=connection.alias):
                return act(connection)

        return await self._threads.run(within_transaction)


def send_again(rows: "QuerySet[WebhookDelivery]", *, retry_seconds: float) -> int:
    """Have deliveries that are parked or delivered sent once more, as if they were new; return how many."""
    now = datetime.now(UTC)
    ended = rows.exclude(status=WAITING)
    return ended.update(
        status=WAITING, attempts=0, changed_at=now, due_at=now, give_up_at=now + timedelta(seconds=retry_seconds)
    )


def _note_failure(row: "QuerySet[WebhookDelivery]", attempt: Attempt, now: datetime) -> None:
    noted = {
        "attempts": F("attempts") + 1,
        "status_code": attempt.status_code,
        "problem": attempt.problem[:MAX_PROBLEM],
    }
    if not row.filter(give_up_at__lte=now).update(status=PARKED, changed_at=now, **noted):
        # The last attempt is made when the time is over.
        row.update(due_at=Least(F("give_up_at"), Value(now + timedelta(seconds=attempt.pause))), **noted)


def _message(row: WebhookDelivery) -> DueMessage:
    return DueMessage(key=row.pk, event_id=row.event_id, body=row.body, attempts=row.attempts)


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
