"""`respsite manage purge_responses`: remove stored responses that are past their time or beyond the limits.

Files whose time is over go, too: each says when that is.
"""

from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from asgiref.sync import async_to_sync
from django.conf import settings
from django.core.management import CommandParser
from django.db import connections

from responses_app.kit.retention import Retentions
from responses_app.management.database import DatabaseCommand, note
from responses_app.management.terminal import progress
from responses_app.resources.audit.fields import Action
from responses_app.resources.files.keeping import files_to_purge, remove_files
from responses_app.resources.projects.model import Project
from responses_app.stores.base import Purged, RetentionSettings
from responses_app.stores.database.responses.removal import MAX_PLANNED, MAX_RESPONSES, purge
from responses_app.stores.database.responses.rows import database_time
from responses_app.wiring.relay import Relay

_LIMITS = [each.name for each in fields(RetentionSettings) if each.name.startswith("responses_store_")]
MAX_COUNTED = 1_000_000  # responses a dry run looks at


class Command(DatabaseCommand):
    """Removes in small steps; a server may run beside it."""

    help = "Delete stored responses that are over RESPONSES_STORE_TTL, RESPONSES_STORE_MAX_ENTRIES or _BYTES."

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._retentions = Retentions()  # of projects that have their own

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="show what would be deleted, and delete nothing")
        for flag, variable, parse in (
            ("--ttl", "RESPONSES_STORE_TTL", _at_least_0(float)),
            ("--max-entries", "RESPONSES_STORE_MAX_ENTRIES", _at_least_0(int)),
            ("--max-bytes", "RESPONSES_STORE_MAX_BYTES", _at_least_0(int)),
        ):
            parser.add_argument(flag, type=parse, metavar="N", help=f"instead of {variable}; 0 = no limit")

    def handle(self, *args: Any, **options: Any) -> None:
        """Remove until there is no more to do, or look only."""
        kept = _kept(options)
        if not options["dry_run"]:
            note(Action.CONTENT_PURGED, [("", "")], **{name: getattr(kept, name) for name in _LIMITS})
        self._purge_files(dry_run=options["dry_run"])
        own = Project.objects.exclude(retention_hours=None)
        self._retentions.learn(dict(own.values_list("name", "retention_hours")))
        if kept.keeps_all and not self._retentions.bounded:
            self.stdout.write(
                "Nothing limits what is stored: set RESPONSES_STORE_TTL, RESPONSES_STORE_MAX_ENTRIES or "
                "RESPONSES_STORE_MAX_BYTES, or give --ttl, --max-entries or --max-bytes."
            )
        if options["dry_run"]:
            purged = purge("default", kept, dry_run=True, max_responses=MAX_COUNTED, retentions=self._retentions)
            self.stdout.write(f"Would remove {'at least ' if purged.more else ''}{_told(purged)}.")
        else:
            self._remove(kept)

    def _purge_files(self, *, dry_run: bool) -> None:
        connection = connections["default"]
        with connection.cursor() as cursor:
            now = database_time(cursor)
        number = 0
        # A dry run removes nothing, and so would find the same ones for ever: it looks once.
        with progress("files removed", None) as tell:
            while some := files_to_purge(connection, now):
                number += len(some)
                if dry_run:
                    break
                remove_files("default", some)
                tell(number)
        if number:
            self.stdout.write(f"{'Would remove' if dry_run else 'Removed'} {number:,} files whose time is over.")

    def _remove(self, kept: RetentionSettings) -> None:
        before = Purged()
        with progress("responses removed", None) as tell:
            while True:
                step = purge(
                    "default",
                    kept,
                    max_responses=MAX_PLANNED,
                    retentions=self._retentions,
                    report=lambda sum, before=before: tell((before + sum).responses),
                )
                for start in range(0, len(step.ids), MAX_RESPONSES):
                    # Workers know at once, where there is a way to them; else the database tells them when it is asked.
                    relay = Relay()
                    if relay.reaches_others:
                        async_to_sync(relay.ask_to_forget)(step.ids[start : start + MAX_RESPONSES])
                # Without the ids, of which there may be millions.
                before += replace(step, ids=())
                # The second: what is left cannot be removed now, as another process holds it.
                if not step.more or not step.responses:
                    break
        self.stdout.write(f"Removed {_told(before)} and {before.parts:,} parts of chains.")


def _kept(options: dict[str, Any]) -> RetentionSettings:
    own = settings.RESPSITE
    flags = {name: options[name.removeprefix("responses_store_")] for name in _LIMITS}
    limits = {name: getattr(own, name) if flags[name] is None else flags[name] for name in _LIMITS}
    return RetentionSettings(**limits, background_unstored_minutes=own.background_unstored_minutes)


def _at_least_0(kind: Callable[[str], float]) -> Callable[[str], float]:
    def parse(value: str) -> float:
        try:
            number = kind(value)
        except ValueError:
            number = -1
        if not 0 <= number < 10**18:
            raise ArgumentTypeError(f"{value!r} is not valid: it takes a number of at least 0.")
        return number

    return parse


def _told(purged: Purged) -> str:
    return f"{purged.responses:,} responses ({purged.bytes / 2**20:,.1f} MiB)"
