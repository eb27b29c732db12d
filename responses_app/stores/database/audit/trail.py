"""What callers use to record in the audit trail: `record` and `record_view` on threads, `DatabaseAudit` on the loop.

They raise `AuditUnavailable` where nothing can be recorded, and who calls them then does not do what was to be
recorded. Commands call `append`, whose `DatabaseError` they turn into a sentence themselves.
"""

import logging
from collections.abc import Sequence

from django.contrib.auth import get_user_model
from django.db import DatabaseError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from responses_app.kit.errors import StoreError
from responses_app.kit.table import Store
from responses_app.protocol.api_keys import Caller
from responses_app.stores.audit import (
    Action,
    Actor,
    ActorKind,
    AuditEntry,
    AuditUnavailable,
    RecentViews,
    TrailPart,
    TrailQuery,
)
from responses_app.stores.database.audit.parts import part_of
from responses_app.stores.database.audit_chain import append

logger = logging.getLogger("respsite.audit")

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
    key = _key(entry)
    if not _recent.has(session, key):
        record(entry)
        _recent.add(session, key)


class DatabaseAudit(Store[None]):
    """Records what users of the admin do over the API; `timeout` bounds, in seconds, whatever waits."""

    unlimited = None

    async def record_view(self, caller: Caller, address: str, *, subject: str, **detail: object) -> None:
        """Record that an answer shows content, once in a while. Raises `AuditUnavailable`."""
        key = f"{caller.project} {subject}"
        if not _recent.has(caller.session, key):
            await self.record(caller, address, Action.CONTENT_VIEWED, subject=subject, **detail)
            _recent.add(caller.session, key)

    async def record_read(self, actor: Actor) -> None:
        """Record that the trail is read with a key, once in a while. Raises `AuditUnavailable`."""
        if not _recent.has(actor.id, _TRAIL):
            entry = AuditEntry(actor, Action.AUDIT_EXPORTED)
            try:
                await self._threads.run(lambda connection: append(connection, [entry]))
            except StoreError as error:
                raise _unavailable(error) from error
            _recent.add(actor.id, _TRAIL)

    async def part(self, query: TrailQuery) -> TrailPart:
        """Return a part of the trail; None where `after` or `before` is not the number of an entry. Raises
        `StoreError`.
        """
        return await self._threads.run(lambda connection: part_of(connection.alias, query))

    async def record(self, caller: Caller, address: str, action: Action, *, subject: str, **detail: object) -> None:
        """Record what a user of the admin asks for. Raises `AuditUnavailable`."""

        def write(connection: BaseDatabaseWrapper) -> None:
            users = get_user_model()._default_manager.using(connection.alias).filter(pk=caller.user)
            name = next(iter(users.values_list("username", flat=True)), "")
            actor = Actor(ActorKind.USER, caller.user, name, address)
            append(connection, [AuditEntry(actor, action, subject, caller.project, detail)])

        try:
            await self._threads.run(write)
        except StoreError as error:
            raise _unavailable(error) from error


def _key(entry: AuditEntry) -> str:
    return f"{entry.project} {entry.subject}"


def _unavailable(error: Exception) -> AuditUnavailable:
    logger.error("the audit trail cannot be written: %s", error)
    return AuditUnavailable()


def entries_for(actor: Actor, action: Action, subjects: Sequence[tuple[str, str]]) -> list[AuditEntry]:
    """Return an entry for each of these things: its id, and its project."""
    return [AuditEntry(actor, action, subject, project) for subject, project in subjects]
