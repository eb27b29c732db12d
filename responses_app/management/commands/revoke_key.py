"""`respsite manage revoke_key`: a key opens no more."""

from typing import Any

from django.core.management import CommandParser
from django.db import transaction

from responses_app.management.database import DatabaseCommand, key_named, note
from responses_app.resources.audit.fields import Action
from responses_app.resources.projects.callers import revoke_keys


class Command(DatabaseCommand):
    """Takes a key's id, the key itself, or the beginning of it that the admin shows."""

    help = "Revoke API keys. Within 2 s they stop working, and WebSockets that use them are closed."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "keys", nargs="+", metavar="KEY", help="id of a key, its beginning as list_keys shows it, or the key itself"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Revoke them all, or none where one is not known."""
        rows = [key_named(key) for key in options["keys"]]
        with transaction.atomic():
            revoked = revoke_keys({row.pk for row in rows})
            note(Action.KEY_REVOKED, sorted({(row.pk, row.project_id) for row in rows}))
        self.stdout.write(f"Revoked {revoked}; {len(rows) - revoked} were revoked before.")
