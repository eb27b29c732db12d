"""`respsite manage set_limits`: how much a key, a project with all its keys, or all projects together may ask for."""

from argparse import ArgumentTypeError
from collections.abc import Collection
from typing import Any

from django.core.management import CommandError, CommandParser
from django.db import transaction

from responses_app.management.database import (
    DatabaseCommand,
    check_can_be_spent,
    key_named,
    limit_number,
    note,
    project_named,
)
from responses_app.protocol.rate_limits import LIMITS
from responses_app.resources.audit.fields import Action
from responses_app.resources.projects.fields import ORGANIZATION
from responses_app.resources.projects.model import ApiKey, Organization, Project

_NONE = "none"
SPENDING = "monthly_spend_cents"  # the limit that needs prices


class Command(DatabaseCommand):
    """Changes those limits that are given; `none` ends one. Then it prints all there are."""

    help = "Change the rate limits of a key or a project, within 2 s. Without a limit, print them."

    def add_arguments(self, parser: CommandParser) -> None:
        whose = parser.add_mutually_exclusive_group(required=True)
        whose.add_argument("--project", metavar="NAME", help="project: its keys share the limits")
        whose.add_argument(
            "--key", metavar="KEY", help="id of a key, its beginning as list_keys shows it, or the key itself"
        )
        whose.add_argument(
            "--organization",
            action="store_true",
            help="all projects together, whose spending alone can be limited: that holds within 15 s",
        )
        for limit in LIMITS:
            flag = f"--{limit.replace('_', '-')}"
            parser.add_argument(
                flag, type=number_or_none, metavar="N", help=f"limit of {limit.replace('_', ' ')}, or none for no limit"
            )

    def handle(self, *args: Any, **options: Any) -> None:
        changes = {limit: options[limit] for limit in LIMITS if options[limit] is not None}
        check_can_be_spent(options[SPENDING])
        row = _row(options, changes)
        for limit, value in changes.items():
            setattr(row, limit, None if value == _NONE else value)
        if changes:
            project = row.project_id if isinstance(row, ApiKey) else row.pk if isinstance(row, Project) else ""
            with transaction.atomic():
                row.save(update_fields=None if isinstance(row, Organization) else list(changes))
                note(Action.LIMITS_CHANGED, [(row.pk, project)], **{name: getattr(row, name) for name in changes})
        for limit in LIMITS:
            if isinstance(row, Organization) and limit != SPENDING:
                continue
            value = getattr(row, limit)
            self.stdout.write(f"{limit.replace('_', ' ')}: {'no limit' if value is None else value}")


def _row(options: dict[str, Any], changes: Collection[str]) -> Project | ApiKey | Organization:
    if options["project"]:
        return project_named(options["project"])
    if options["key"]:
        return key_named(options["key"])
    others = [f"--{name.replace('_', '-')}" for name in changes if name != SPENDING]
    if others:
        raise CommandError(f"All projects together have no {', '.join(others)}: give it with --project or --key.")
    return Organization.objects.filter(pk=ORGANIZATION).first() or Organization(pk=ORGANIZATION)


def number_or_none(text: str) -> int | str:
    """Read a limit, or `none`. Raises `ArgumentTypeError`."""
    if text == _NONE:
        return text
    try:
        return limit_number(text)
    except ArgumentTypeError as wanted:
        raise ArgumentTypeError(f"{wanted}, or {_NONE}") from None
