"""`respsite manage forget`: erase what is kept of a project, or of what one API key asked for, and show it is gone."""

import os
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from asgiref.sync import async_to_sync
from django.core.management import CommandError, CommandParser
from django.db.models import Max, QuerySet

from engine.errors import reason_of
from responses_app.auth.keyring import MAX_AGE_SECONDS
from responses_app.management.database import DatabaseCommand, note
from responses_app.management.terminal import progress
from responses_app.protocol.api_keys import DEFAULT_PROJECT
from responses_app.resources.audit.fields import Action
from responses_app.resources.projects.callers import revoke_keys
from responses_app.resources.projects.model import ApiKey
from responses_app.stores.database.transfer.erasure import Subject, count, erase, lines
from responses_app.wiring.relay import Relay

ELSEWHERE = (
    "Backups of the database, and what clients were given sealed, are not reached: the former hold what was there when "
    "they were made, the latter opens as long as its REASONING_ENCRYPTION_KEYS are kept."
)

# After a key was revoked: until no worker opens for it, and what one has let in just before is accepted or refused.
OUT_SECONDS = MAX_AGE_SECONDS + 1.0


class Command(DatabaseCommand):
    """Exports first if that is wanted, then revokes, erases and counts what is left."""

    help = "Delete all data of a project, or the responses created with one API key, permanently."

    def add_arguments(self, parser: CommandParser) -> None:
        whose = parser.add_mutually_exclusive_group(required=True)
        whose.add_argument("--project", help="all data of this project, including its keys")
        whose.add_argument("--key", metavar="ID", help="the responses created with this key (see list_keys)")
        parser.add_argument("--export", type=Path, metavar="FILE", help="first export the data to FILE, as JSON Lines")
        parser.add_argument("--dry-run", action="store_true", help="show what would be deleted, and delete nothing")
        parser.add_argument("--yes", action="store_true", help="do not ask")

    def handle(self, *args: Any, **options: Any) -> None:
        subject = _subject(options)
        counts = count(subject)
        if not any(counts.values()) and subject.project != DEFAULT_PROJECT and not subject.key_id:
            raise CommandError(
                f"There is no project {subject.project[:64]}. `respsite manage list_keys` shows those that have keys."
            )
        self._tell("There are", counts)
        about = [(subject.key_id or subject.project, subject.project)]
        if options["export"]:
            note(Action.CONTENT_EXPORTED, about, **counts)
            self._export(subject, options["export"])
        if options["dry_run"]:
            return
        if not any(counts.values()):
            self.stdout.write("There is nothing to erase.")
            return
        if not options["yes"] and not self._is_sure(subject):
            raise CommandError("Nothing was erased.")
        note(Action.PROJECT_FORGOTTEN, about, **counts)
        keys = ApiKey.objects.filter(project_id=subject.project)
        keys = keys.filter(pk=subject.key_id) if subject.key_id else keys
        revoke_keys(keys.values_list("pk", flat=True))
        # What is accepted until then is erased with the rest: so nothing is left behind a count of 0.
        time.sleep(_seconds_until_out(keys))
        relay, gone = Relay(), 0
        with progress("responses erased", counts["responses"]) as tell:
            for ids in erase(subject):
                async_to_sync(relay.ask_to_forget)(ids)  # does nothing where there is no way to them
                gone += len(ids)
                tell(gone)
        left = count(subject)
        self._tell("Left are", left)
        if any(left.values()):
            raise CommandError("Something came in meanwhile: run this once more.")
        self.stdout.write(f"Erased. {ELSEWHERE}")

    def _export(self, subject: Subject, file: Path) -> None:
        try:
            # "x": a file that is there may be an export of before.
            with open(file, "x", encoding="utf-8", opener=_for_its_owner) as opened:
                written = 0
                with progress("lines exported", None) as tell:
                    for written, line in enumerate(lines(subject), 1):
                        opened.write(f"{line}\n")
                        tell(written)
        except FileExistsError:
            raise CommandError(f"{file} is there already: name another file.") from None
        except OSError as error:
            raise CommandError(f"{file} cannot be written ({reason_of(error)}). Nothing was erased.") from None
        self.stdout.write(f"Wrote {written:,} lines to {file}.")

    def _is_sure(self, subject: Subject) -> bool:
        if not sys.stdin.isatty():
            return False
        name = subject.key_id or subject.project
        return input(f"Type {name} to erase all of it for good: ").strip() == name

    def _tell(self, start: str, counted: Mapping[str, int]) -> None:
        self.stdout.write(f"{start} {', '.join(f'{number:,} {kind}' for kind, number in counted.items())}.")


def _seconds_until_out(keys: "QuerySet[ApiKey]") -> float:
    """Return how long it takes until nothing comes in any more by these keys, which are revoked."""
    last = keys.aggregate(last=Max("revoked_at"))["last"]
    if last is None:
        return 0.0
    passed = (datetime.now(UTC) - last).total_seconds()
    # Bounded on both sides, whatever a clock says of a key that was revoked on another machine.
    return min(OUT_SECONDS, max(0.0, OUT_SECONDS - passed))


def _for_its_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _subject(options: Mapping[str, Any]) -> Subject:
    if options["project"] is not None:
        return Subject(project=options["project"])
    key = ApiKey.objects.filter(pk=options["key"]).first()
    if key is None:
        raise CommandError(f"There is no key {options['key'][:80]}. `respsite manage list_keys` shows those there are.")
    return Subject(project=key.project_id, key_id=key.pk)
