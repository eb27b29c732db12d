"""`Webhooks`: endpoints of projects and their deliveries, in Django's database; SQLite or PostgreSQL.

Events come in with the transactions of what they tell, which are other stores' (`outbox`). `dispatch` makes of each
event a delivery for every endpoint that wants it. An endpoint is served by one worker at a time: `claim` gives it for a
while with messages that are due, of each object the oldest alone, and `settle` takes what came of them. So the messages
of an object arrive in order, and a worker that dies is replaced when its time is over.

Every step may be executed twice, where a connection broke in between: a claim is then this worker's already, and what
was settled stays settled.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db.models import Exists, F, Min, OuterRef, Q, QuerySet, Value
from django.db.models.functions import Least

from responses_app.kit.errors import StoreError
from responses_app.kit.sql import one_at_a_time
from responses_app.kit.table import Table, assign, reads, writes
from responses_app.kit.threads import Question
from responses_app.resources.webhooks.fields import WebhookEndpointChanges
from responses_app.resources.webhooks.model import (
    DELIVERED,
    PARKED,
    WAITING,
    WebhookDelivery,
    WebhookEndpoint,
    WebhookEvent,
)
from responses_app.resources.webhooks.outbox import dispatch
from responses_app.resources.webhooks.settings import WebhookSettings

CREATION_LOCK = 0x77656265  # the space of the locks of projects
PARKED_SECONDS = 30 * 86_400.0  # that a parked delivery is kept
_WAITING = f"SELECT 1 FROM {WebhookDelivery._meta.db_table} WHERE status = '{WAITING}'"
_ANY = Question("'', 1", f"WHERE EXISTS (SELECT 1 FROM {WebhookEvent._meta.db_table}) OR EXISTS ({_WAITING})")
DUE_AT_ONCE = 100  # messages that are looked at together, for what is to be sent
PURGED_AT_ONCE = 1_000  # rows in one transaction
MAX_PROBLEM = 500  # characters that are kept of why an attempt failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """An endpoint that this worker serves, and what is due there."""

    endpoint: WebhookEndpoint
    due: Sequence[WebhookDelivery]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What came of sending a message."""

    key: int  # of its row
    status_code: int | None  # of the answer; None for none
    problem: str = ""  # why it counts as failed; "" for a message that arrived
    pause: float = 0.0  # seconds until the next attempt of one that failed


class EndpointsFull(StoreError):
    """A project has as many endpoints as it may have."""

    def __init__(self, most: int) -> None:
        super().__init__(f"the project has {most} webhook endpoints already")
        self.most = most


class Webhooks(Table[WebhookEndpoint, WebhookSettings]):
    """The endpoints of projects, and what is sent to them. Every method raises `StoreError`."""

    model = WebhookEndpoint
    unlimited = WebhookSettings()

    @writes
    def create(self, row: WebhookEndpoint) -> None:
        """Keep a new endpoint. Raises `EndpointsFull`."""
        endpoints = self.rows(row.project)
        if endpoints.filter(pk=row.pk).exists():
            return  # an earlier attempt was committed after all
        one_at_a_time(self._db, CREATION_LOCK, row.project)
        if endpoints.count() >= self._settings.webhook_endpoints_max:
            raise EndpointsFull(self._settings.webhook_endpoints_max)
        row.save(using=self._using, force_insert=True)

    @writes
    def update(self, project: str, endpoint_id: str, changes: WebhookEndpointChanges) -> WebhookEndpoint | None:
        """Change an endpoint; its `updated_at` only where something is another then. None for no such endpoint."""
        row = self.locked(project, endpoint_id)
        if row is None:
            return None
        changed = assign(row, changes.columns())
        if "url" in changed or ("enabled" in changed and row.enabled):
            changed += assign(row, {"paused_until": None, "failures": 0})  # what failed there says nothing of it now
        if changed:
            changed += assign(row, {"updated_at": self._at()})
            row.save(using=self._using, update_fields=changed)
        return row

    @writes
    def rotate(
        self, project: str, endpoint_id: str, *, sealed: str, hint: str, keep_old_seconds: float = 0.0
    ) -> WebhookEndpoint | None:
        """Give an endpoint another secret; the old one stays good for `keep_old_seconds`. None for no such endpoint."""
        row = self.locked(project, endpoint_id)
        if row is None or row.secret == sealed:  # an earlier attempt was committed after all
            return row
        row.old_secret, row.old_secret_until = "", None
        if keep_old_seconds:
            row.old_secret, row.old_secret_until = row.secret, self._at(keep_old_seconds)
        row.secret, row.secret_hint, row.updated_at = sealed, hint, self._at()
        row.save(
            using=self._using,
            update_fields=["secret", "secret_hint", "old_secret", "old_secret_until", "updated_at"],
        )
        return row

    def remove(self, row: WebhookEndpoint) -> None:
        """Remove an endpoint, and all that waits for it."""
        WebhookDelivery.objects.using(self._using).filter(endpoint_id=row.pk).delete()
        super().remove(row)

    async def has_work(self) -> bool:
        """Return whether there may be anything for `dispatch` or `claim`."""
        return bool(await self._polls.poll(_ANY))

    @reads
    def dispatch(self) -> bool:
        """Make deliveries of events; return whether there may be more. One worker does so at a time."""
        settings = self._settings
        return dispatch(
            self._db,
            max_waiting=settings.webhook_max_waiting,
            retry_seconds=settings.webhook_retry_seconds,
            now=self._at(),
        )

    async def claim(self, worker: str, *, lease_seconds: float, most: int, without: Collection[str]) -> Claimed | None:
        """Return an endpoint that nobody serves, with up to `most` messages that are due; it is this worker's now.

        The endpoint that waits longest is next. `without` are projects of which this worker serves as many as it may.
        """
        if not await self._is_any_free(without):  # nothing is locked
            return None
        return await self._claim(worker, lease_seconds, most, without)

    @reads
    def _is_any_free(self, without: Collection[str]) -> bool:
        return self._free(without).exists()

    @writes
    def _claim(self, worker: str, lease_seconds: float, most: int, without: Collection[str]) -> Claimed | None:
        while row := self._free(without).select_for_update(skip_locked=True, of=("self",)).first():
            due = self._due(row.pk, most)
            if due:
                row.worker, row.served_at, row.leased_until = worker, self._at(), self._at(lease_seconds)
                row.save(using=self._using, update_fields=["worker", "served_at", "leased_until"])
                return Claimed(endpoint=row, due=due)
            # Each of its messages waited behind one that is due later, and is due later now, too.
        return None

    @writes
    def settle(self, claimed: Claimed, attempts: Sequence[Attempt], *, worker: str, pause: float) -> None:
        """Keep what came of messages, and let go of their endpoint; nothing is sent there for `pause` seconds.

        What arrived has arrived, whoever serves the endpoint by now. What failed counts only for who serves it.
        """
        now, endpoint_id = self._at(), claimed.endpoint.pk
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

    @writes
    def purge(self) -> int:
        """Forget what was delivered or parked long ago; return how many there were of it in this step."""
        rows = WebhookDelivery.objects.using(self._using)
        old = Q(status=DELIVERED, changed_at__lt=self._at(-self._settings.webhook_kept_seconds))
        old |= Q(status=PARKED, changed_at__lt=self._at(-PARKED_SECONDS))
        keys = list(rows.filter(old).values_list("pk", flat=True)[:PURGED_AT_ONCE])
        return int(rows.filter(pk__in=keys).delete()[0])

    # What follows runs on a thread.

    def _free(self, without: Collection[str]) -> "QuerySet[WebhookEndpoint]":
        """Return the endpoints that nobody serves and where something is due, the one that waits longest first."""
        now = self._at()
        rows = WebhookEndpoint.objects.using(self._using).filter(enabled=True).exclude(project__in=list(without))
        rows = rows.filter(Q(leased_until=None) | Q(leased_until__lte=now))
        rows = rows.filter(Q(paused_until=None) | Q(paused_until__lte=now))
        due = WebhookDelivery.objects.using(self._using).filter(
            endpoint=OuterRef("pk"), status=WAITING, due_at__lte=now
        )
        return rows.filter(Exists(due)).order_by(F("served_at").asc(nulls_first=True), "pk")

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
