"""What commands over the database share: one sentence where it cannot be used, and keys as operators name them."""

import getpass
from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.management import BaseCommand, CommandError
from django.db import DatabaseError, connections

from responses_app.models import AdminKey, ApiKey
from responses_app.protocol.api_keys import START, digest_of
from responses_app.stores.audit import Action, Actor, ActorKind, AuditEntry
from responses_app.stores.database.audit_chain import append
from responses_app.stores.database.causes import cause_of


class DatabaseCommand(BaseCommand):
    """A command that works on the database, and ends with one sentence where that does not work."""

    requires_system_checks = ()  # they are about serving

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run it."""
        try:
            return super().execute(*args, **options)
        except DatabaseError as error:
            raise SystemExit(f"respsite: {unusable(error)}") from None


def note(action: Action, subjects: Sequence[tuple[str, str]], **detail: object) -> None:
    """Record in the audit trail what a command does to these: an id and a project each. Raises `DatabaseError`."""
    actor = Actor(ActorKind.COMMAND, name=_user())
    append(
        connections["default"], [AuditEntry(actor, action, subject, project, detail) for subject, project in subjects]
    )


def check_can_be_spent(cents: object) -> None:
    """Raise `CommandError` for a limit of spending where nothing is known of costs."""
    if isinstance(cents, int) and not settings.RESPSITE.prices:
        raise CommandError("Nothing is known of costs, so spending cannot be limited. Set PRICES first.")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return ""


def unusable(error: Exception) -> str:
    """Say that the database cannot be used, and what to do."""
    reason = str(error).strip().partition("\n")[0]
    remedy = cause_of(error) or (
        "Check that it runs, what DATABASE_URL names, and that `respsite manage migrate` has been run."
    )
    return f"the database cannot be used ({reason}). {remedy}"


def key_named(text: str) -> ApiKey | AdminKey:
    """Return the key that is meant by its id, by itself, or by its beginning as shown. Raises `CommandError`."""
    rows = _keys(pk=text)
    if not rows and text.startswith(START):
        rows = _keys(digest=digest_of(text)) or _keys(prefix=text)
    if not rows:
        raise CommandError(f"There is no key {text[:12]}. `respsite manage list_keys` shows those there are.")
    if len(rows) > 1:
        raise CommandError(f"Several keys begin with {text}: take an id, as {rows[0].pk} or {rows[1].pk}.")
    return rows[0]


def _keys(**wanted: str) -> list[ApiKey | AdminKey]:
    """Return up to two keys like this of each kind."""
    return [*ApiKey.objects.filter(**wanted)[:2], *AdminKey.objects.filter(**wanted)[:2]]
