"""The base of commands over the database: one sentence where it cannot be used; keys, projects, limits of operators."""

import getpass
from argparse import ArgumentTypeError
from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.management import BaseCommand, CommandError
from django.db import DatabaseError, connections

from responses_app.kit.errors import cause_of
from responses_app.protocol.api_keys import START, digest_of
from responses_app.protocol.rate_limits import MOST
from responses_app.resources.audit.chain import append
from responses_app.resources.audit.fields import Action, Actor, ActorKind, AuditEntry
from responses_app.resources.projects.model import AdminKey, ApiKey, Project


class DatabaseCommand(BaseCommand):
    """A command that works on the database, and ends with one sentence where that does not work."""

    requires_system_checks = ()  # they are about serving

    def execute(self, *args: Any, **options: Any) -> str | None:
        try:
            return super().execute(*args, **options)
        except DatabaseError as error:
            raise SystemExit(f"respsite: {unusable(error)}") from None


def note(action: Action, subjects: Sequence[tuple[str, str]], **detail: object) -> None:
    """Record in the audit trail what a command does to these: an id and a project each. Raises `DatabaseError`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = ""
    actor = Actor(ActorKind.COMMAND, name=user)
    append(
        connections["default"], [AuditEntry(actor, action, subject, project, detail) for subject, project in subjects]
    )


def check_can_be_spent(cents: object) -> None:
    """Raise `CommandError` for a limit of spending where nothing is known of costs."""
    if isinstance(cents, int) and not settings.RESPSITE.prices:
        raise CommandError("Nothing is known of costs, so spending cannot be limited. Set PRICES first.")


def unusable(error: Exception) -> str:
    """Say that the database cannot be used, and what to do."""
    reason = str(error).strip().partition("\n")[0]
    remedy = cause_of(error) or (
        "Check that it runs, what DATABASE_URL names, and that `respsite manage migrate` has been run."
    )
    return f"the database cannot be used ({reason}). {remedy}"


def limit_number(text: str) -> int:
    """Read a limit of a command line. Raises `ArgumentTypeError`."""
    if not text.isdecimal() or not 0 < int(text) <= MOST:
        raise ArgumentTypeError("a whole number of at least 1")
    return int(text)


def project_named(name: str) -> Project:
    """Return a project. Raises `CommandError`."""
    row = Project.objects.filter(pk=name).first()
    if row is None:
        raise CommandError(f"There is no project {name[:64]}. `respsite manage list_keys` shows those that have keys.")
    return row


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
