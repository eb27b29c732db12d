"""The outbox of webhooks: events go in with the transaction of what they tell, and come out as deliveries.

    tell(cursor, [Told(project, messages)])      inside the transaction that changes the object

That is one statement for all that a transaction tells, and one row for each object, whatever its project's endpoints
are. The row is written only where an endpoint wants it, which the statement itself looks up: by an index that has a few
rows a project, and correct at any time, since nothing is cached. So an event is kept if and only if what it tells is
kept; where the transaction is tried again, it tells the same event.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper
from django.db.models import Count, F

from responses_app.kit.clock import unix, utc
from responses_app.kit.columns import json_text
from responses_app.kit.sql import Writing, is_alone
from responses_app.resources.webhooks.messages import WebhookMessage
from responses_app.resources.webhooks.model import DELIVERED, WebhookDelivery, WebhookEndpoint, WebhookEvent

DISPATCH_LOCK = 0x77656268  # the space of the one lock of `dispatch`
EVENTS_AT_ONCE = 500  # in one transaction
MAX_TYPES = 2  # messages that one event may have; the statement has so many conditions

_ENDPOINTS, _EVENTS = WebhookEndpoint._meta.db_table, WebhookEvent._meta.db_table
_TELL = Writing(
    f"INSERT INTO {_EVENTS} (event_id, project, object_id, messages, created_at) SELECT %s, %s, %s, %s, %s "
    f"WHERE EXISTS (SELECT 1 FROM {_ENDPOINTS} WHERE project = %s AND enabled "
    f"AND ({' OR '.join(['event_types LIKE %s'] * MAX_TYPES)})) ON CONFLICT (event_id) DO NOTHING",
    ["event_id", "project", "object_id", "messages", "created_at", "project", *map(str, range(MAX_TYPES))],
)


@dataclass(frozen=True, slots=True)
class Told:
    """What is told of one object: at most `MAX_TYPES` messages, in their order."""

    project: str
    messages: Sequence[WebhookMessage]


def tell(cursor: CursorWrapper, told: Sequence[Told], *, now: float) -> None:
    """Write events, within the transaction of what they tell, where an endpoint of the project wants them.

    `now` is the store's Unix time.
    """
    at = cursor.db.ops.adapt_datetimefield_value(utc(now))
    rows = []
    for each in told:
        if each.messages:
            first = each.messages[0]
            # A name as it stands in JSON; of one message the conditions are the same.
            wanted = [f'%"{each.messages[min(place, len(each.messages) - 1)].type}"%' for place in range(MAX_TYPES)]
            rows.append(
                {
                    "event_id": first.id,
                    "project": each.project,
                    "object_id": str(first.data["id"]),
                    "messages": json_text([astuple(message) for message in each.messages]),
                    "created_at": at,
                    **{str(place): condition for place, condition in enumerate(wanted)},
                }
            )
    _TELL.run(cursor, rows)


def dispatch(connection: BaseDatabaseWrapper, *, max_waiting: int, retry_seconds: float, now: datetime) -> bool:
    """Make deliveries of events; see `Webhooks.dispatch`. At most `max_waiting` may wait for an endpoint.

    One transaction at a time does so: of two, the one that has a later event of an object might be the first to commit.
    """
    using = connection.alias
    events = WebhookEvent.objects.using(using).order_by("pk")
    if not events.exists():  # nearly always: nothing is locked
        return False
    with transaction.atomic(using=using):
        with connection.cursor() as cursor:
            if not is_alone(cursor, DISPATCH_LOCK):
                return False
        some = list(events[:EVENTS_AT_ONCE])
        wanting = WebhookEndpoint.objects.using(using).filter(
            project__in={event.project for event in some}, enabled=True
        )
        endpoints: dict[str, list[WebhookEndpoint]] = defaultdict(list)
        for endpoint in wanting.order_by("pk"):
            endpoints[endpoint.project].append(endpoint)
        room = _room(using, endpoints, max_waiting)
        left_out: dict[str, int] = defaultdict(int)
        rows = []
        for event in some:
            for message in (WebhookMessage(*fields) for fields in event.messages):
                for endpoint in endpoints.get(event.project, ()):
                    if message.type not in endpoint.event_types:
                        continue
                    if not room[endpoint.pk]:
                        left_out[endpoint.pk] += 1
                        continue
                    room[endpoint.pk] -= 1
                    give_up_at = event.created_at + timedelta(seconds=retry_seconds)
                    rows.append(_delivery(event, message, endpoint.pk, now=now, give_up_at=give_up_at))
        # An event may have been told twice, by a transaction whose answer got lost.
        WebhookDelivery.objects.using(using).bulk_create(rows, batch_size=EVENTS_AT_ONCE, ignore_conflicts=True)
        for endpoint_id, number in left_out.items():
            WebhookEndpoint.objects.using(using).filter(pk=endpoint_id).update(dropped=F("dropped") + number)
        events.filter(pk__in=[event.pk for event in some]).delete()
    return len(some) == EVENTS_AT_ONCE


def _room(using: str, endpoints: Mapping[str, Sequence[WebhookEndpoint]], most: int) -> dict[str, int]:
    """Return how many deliveries more each endpoint may have."""
    ids = [endpoint.pk for some in endpoints.values() for endpoint in some]
    open_ones = WebhookDelivery.objects.using(using).filter(endpoint_id__in=ids).exclude(status=DELIVERED)
    counted = dict(open_ones.values_list("endpoint_id").annotate(number=Count("pk")))
    return {endpoint_id: max(0, most - counted.get(endpoint_id, 0)) for endpoint_id in ids}


def _delivery(
    event: WebhookEvent, message: WebhookMessage, endpoint_id: str, *, now: datetime, give_up_at: datetime
) -> WebhookDelivery:
    return WebhookDelivery(
        endpoint_id=endpoint_id,
        project=event.project,
        event_id=message.id,
        type=message.type,
        object_id=event.object_id,
        body=message.body(unix(event.created_at)),
        created_at=event.created_at,
        changed_at=now,
        due_at=now,
        give_up_at=give_up_at,
    )
