"""The audit trail in the database: `record` and `record_view` on threads, `AuditTrail` on the loop.

They raise `AuditUnavailable` where nothing can be recorded, and who calls them then does not do what was to be
recorded. Commands call `chain.append`, whose `DatabaseError` they turn into a sentence themselves.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Any

from django.contrib.auth import get_user_model
from django.db import DatabaseError, connections

from responses_app.kit.clock import utc
from responses_app.kit.errors import StoreError
from responses_app.kit.table import Store, part_of, reads
from responses_app.protocol.api_keys import Caller
from responses_app.resources.audit.chain import append
from responses_app.resources.audit.fields import (
    Action,
    Actor,
    ActorKind,
    AuditEntry,
    AuditUnavailable,
    TrailPart,
    TrailQuery,
    as_json,
)
from responses_app.resources.audit.model import AuditRow
from responses_app.resources.projects.model import Project

logger = logging.getLogger("respsite.audit")

VIEW_SECONDS = 600.0  # for which a view of the same thing in the same session is the same view
MAX_VIEWS = 10_000  # that a process remembers; the oldest go


class RecentViews:
    """The views that were recorded lately, so that a live page that is polled is recorded once in a while."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._views: OrderedDict[tuple[str, str], float] = OrderedDict()  # by session and subject; the oldest first
        self._lock = Lock()  # views are recorded by many threads

    def has(self, session: str, subject: str) -> bool:
        """Whether this was recorded lately."""
        with self._lock:
            at = self._views.get((session, subject))
        return at is not None and self._now() - at < VIEW_SECONDS

    def add(self, session: str, subject: str) -> None:
        """Remember a view that was recorded."""
        with self._lock:
            self._views.pop((session, subject), None)
            self._views[session, subject] = self._now()
            while len(self._views) > MAX_VIEWS:
                self._views.popitem(last=False)


_TRAIL = "the trail"  # what is read by a key, among the subjects of views
_recent = RecentViews()  # of this process, by pages and by the API


def record(*entries: AuditEntry) -> None:
    """Add to the trail, in the transaction that is open, if one is. Raises `AuditUnavailable`."""
    try:
        head = append(connections["default"], entries)
    except DatabaseError as error:
        raise _unavailable(error) from error
    if any(entry.action == Action.SIGNED_IN for entry in entries):
        # A copy of the head outside of the database: with it `verify --head` finds that the end was cut off.
        logger.info("audit head %s", head)


def record_view(session: str, entry: AuditEntry) -> None:
    """Record that something is shown, once in a while for the same session and subject. Raises `AuditUnavailable`."""
    key = f"{entry.project} {entry.subject}"
    if not _recent.has(session, key):
        record(entry)
        _recent.add(session, key)


class AuditTrail(Store[None]):
    """The trail, as the API adds to it and reads it."""

    unlimited = None

    async def record(self, caller: Caller, address: str, action: Action, *, subject: str, **detail: object) -> None:
        """Record an action of a user of the admin. Raises `AuditUnavailable`."""

        def entry() -> AuditEntry:
            users = get_user_model()._default_manager.using(self._using).filter(pk=caller.user)
            name = users.values_list("username", flat=True).first() or ""
            return AuditEntry(
                Actor(ActorKind.USER, caller.user, name, address), action, subject, caller.project, detail
            )

        await self._append(entry)

    async def record_view(self, caller: Caller, address: str, *, subject: str, **detail: object) -> None:
        """Record that an answer shows content, once in a while. Raises `AuditUnavailable`."""
        key = f"{caller.project} {subject}"
        if not _recent.has(caller.session, key):
            await self.record(caller, address, Action.CONTENT_VIEWED, subject=subject, **detail)
            _recent.add(caller.session, key)

    async def record_read(self, actor: Actor) -> None:
        """Record that the trail is read with a key, once in a while. Raises `AuditUnavailable`."""
        if not _recent.has(actor.id, _TRAIL):
            await self._append(lambda: AuditEntry(actor, Action.AUDIT_EXPORTED))
            _recent.add(actor.id, _TRAIL)

    async def _append(self, entry: Callable[[], AuditEntry]) -> None:
        """Add the entry that `entry` makes on a thread."""
        try:
            await self._threads.run(lambda connection: append(connection, [entry()]))
        except StoreError as error:
            raise _unavailable(error) from error

    @reads
    def part(self, query: TrailQuery) -> TrailPart:
        """Return a part of the trail; the entries with the numbers `after` and `before` may be gone.

        Raises `StoreError`.
        """
        filters = {
            "action__in": query.actions,
            "actor_id__in": query.actors,
            "subject__in": query.subjects,
            "project__in": query.projects,
            "created_at__gte": None if query.since is None else utc(query.since),
            "created_at__lt": None if query.until is None else utc(query.until),
        }
        rows: Any = AuditRow.objects.using(self._using).filter(
            **{name: value for name, value in filters.items() if value is not None}
        )
        users = get_user_model()._default_manager.using(self._using)
        if query.emails is not None:
            ids = users.filter(email__in=query.emails).values_list("pk", flat=True)
            rows = rows.filter(actor_kind=ActorKind.USER, actor_id__in=[str(each) for each in ids])
        limit, after, before = query.limit, query.after, query.before
        page: list[Any] = part_of(rows.values(), descending=True, limit=limit + 1, after=after, before=before)
        has_more = len(page) > limit
        # Before an entry: those next to it, and not the newest of all.
        page = page[-limit:] if before is not None and after is None else page[:limit]
        by_user = {row["actor_id"] for row in page if row["actor_kind"] == ActorKind.USER}
        known = users.filter(pk__in=[each for each in by_user if each.isdecimal() and len(each) < 10])
        projects = Project.objects.using(self._using).filter(pk__in={row["project"] for row in page if row["project"]})
        return TrailPart(
            entries=[as_json(row) for row in page],
            emails={str(pk): email for pk, email in known.values_list("pk", "email") if email},
            names={each.pk: each.title or each.pk for each in projects},
            has_more=has_more,
        )


def _unavailable(error: Exception) -> AuditUnavailable:
    logger.error("the audit trail cannot be written: %s", error)
    return AuditUnavailable()
