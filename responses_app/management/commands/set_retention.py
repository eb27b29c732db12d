"""`respsite manage set_retention`: how long a project keeps what it stores."""

import sys
import time
from argparse import ArgumentTypeError
from datetime import UTC, datetime
from typing import Any

from asgiref.sync import async_to_sync
from django.core.management import CommandError, CommandParser
from django.db import connections, transaction

from responses_app.kit.retention import NEVER, oldest, parse_retention, written
from responses_app.management.database import DatabaseCommand, note, project_named
from responses_app.protocol.api_keys import DEFAULT_PROJECT
from responses_app.resources.audit.fields import Action
from responses_app.resources.projects.model import Project
from responses_app.runs.retention import AGAIN_SECONDS
from responses_app.stores.database.responses.rows import database_time
from responses_app.stores.database.transfer.erasure import Subject, count, erase_past
from responses_app.wiring.relay import Relay

KEPT_ELSEWHERE = "Backups, and what the database's files still hold of removed rows, are not reached."


class Command(DatabaseCommand):
    """Sets it, and erases what is past it. Without a value, prints what there is."""

    help = "Set how long a project keeps what it stores: never, a number of hours, forever, or as the server is set."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--project", metavar="NAME", required=True)
        parser.add_argument(
            "retention",
            nargs="?",
            type=_retention,
            metavar="N",
            help="a number of hours, or never, forever, or server: as the server's settings say",
        )
        parser.add_argument("--yes", action="store_true", help="do not ask before anything is erased")

    def handle(self, *args: Any, **options: Any) -> None:
        row = _row(options["project"])
        if options["retention"] is None:
            self.stdout.write(f"{row.pk}: {written(row.retention_hours)}")
            return
        [hours] = options["retention"]
        if hours is not None and hours >= NEVER and not (options["yes"] or self._is_sure(row, hours)):
            raise CommandError("Nothing was changed. Type the project's name when asked, or give --yes.")
        row.retention_hours = hours
        with transaction.atomic():
            row.save()
            note(Action.RETENTION_CHANGED, [(row.pk, row.pk)], retention=written(hours))
        self.stdout.write(f"{row.pk}: {written(hours)}")
        if hours is not None and hours >= NEVER:
            # What workers accept that have not heard of it yet is there by then.
            time.sleep(AGAIN_SECONDS)
            with connections["default"].cursor() as cursor:
                now = database_time(cursor)
            relay = Relay()
            for ids in erase_past("default", row.pk, oldest(hours, now), running=hours == NEVER):
                async_to_sync(relay.ask_to_forget)(ids)  # does nothing where there is no way to them
            self.stdout.write(f"What was past it is erased. {KEPT_ELSEWHERE}")

    def _is_sure(self, row: Project, hours: int) -> bool:
        counted = count(Subject(project=row.pk), stays=False)
        kinds = ", ".join(f"{number:,} {kind}" for kind, number in counted.items() if number)
        age = "Everything" if hours == NEVER else f"Everything older than {hours:,} hours"
        self.stdout.write(f"{age} that {row.pk} has stored will be erased. It has {kinds or 'nothing'} now.")
        if not sys.stdin.isatty():
            return False
        return input(f"Type {row.pk} to go on: ").strip() == row.pk


def _row(name: str) -> Project:
    # The default project needs no key, and so may have no row yet.
    if name == DEFAULT_PROJECT and not Project.objects.filter(pk=name).exists():
        return Project(name=name, created_at=datetime.now(UTC))
    return project_named(name)


def _retention(text: str) -> tuple[int | None]:
    """Read it; in a tuple, as None means something else. Raises `ArgumentTypeError`."""
    try:
        return (parse_retention(text),)
    except ValueError as problem:
        raise ArgumentTypeError(str(problem)) from None
