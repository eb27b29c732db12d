"""Parts of the audit trail, filtered, the newest first, with the names of whose entries they are."""

from datetime import datetime

from django.contrib.auth import get_user_model

from responses_app.kit.clock import utc
from responses_app.models import Project
from responses_app.models.audit import AuditRow
from responses_app.stores.audit import ActorKind, TrailPart, TrailQuery
from responses_app.stores.database.audit.verifying import as_json


def part_of(using: str, query: TrailQuery) -> TrailPart:
    """Return the part that is asked for. The entries with the numbers `after` and `before` may be gone."""
    rows = AuditRow.objects.using(using).all()
    wanted = {
        "action__in": query.actions,
        "actor_id__in": query.actors,
        "subject__in": query.subjects,
        "project__in": query.projects,
        "created_at__gte": _time(query.since),
        "created_at__lt": _time(query.until),
        "number__lt": query.after,
        "number__gt": query.before,
    }
    rows = rows.filter(**{name: value for name, value in wanted.items() if value is not None})
    users = get_user_model()._default_manager.using(using)
    if query.emails is not None:
        ids = users.filter(email__in=query.emails).values_list("pk", flat=True)
        rows = rows.filter(actor_kind=ActorKind.USER, actor_id__in=[str(each) for each in ids])
    # Before an entry: those next to it, and not the newest of all.
    backwards = query.before is not None and query.after is None
    found = list(rows.order_by("number" if backwards else "-number").values()[: query.limit + 1])
    has_more, found = len(found) > query.limit, found[: query.limit]
    if backwards:
        found.reverse()
    by_user = {row["actor_id"] for row in found if row["actor_kind"] == ActorKind.USER}
    known = users.filter(pk__in=[each for each in by_user if each.isdecimal() and len(each) < 10])
    projects = Project.objects.using(using).filter(pk__in={row["project"] for row in found if row["project"]})
    return TrailPart(
        entries=[as_json(row) for row in found],
        emails={str(pk): email for pk, email in known.values_list("pk", "email") if email},
        names={each.pk: each.title or each.pk for each in projects},
        has_more=has_more,
    )


def _time(seconds: int | None) -> datetime | None:
    return None if seconds is None else utc(seconds)
