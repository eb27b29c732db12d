"""`respsite manage revoke_key`: a key opens no more."""

from typing import Any

from django.core.management import BaseCommand, CommandParser
from django.db import DatabaseError

from responses_app.management.database import database_failed, key_named
from responses_app.stores.database.callers import revoke_keys


class Command(BaseCommand):
    """Takes a key's id, the key itself, or the beginning of it that the admin shows."""

    help = "Revoke API keys: within 2 s they open no more, also what is open with them."
    requires_system_checks = ()  # they are about serving

    def add_arguments(self, parser: CommandParser) -> None:
        """Take which keys."""
        parser.add_argument("keys", nargs="+", metavar="KEY", help="its id, its beginning as shown, or the key itself")

    def handle(self, *args: Any, **options: Any) -> None:
        """Revoke them all, or none where one is not known."""
        try:
            found = [key_named(key) for key in options["keys"]]
            revoked = revoke_keys({row.pk for row in found})
        except DatabaseError as error:
            raise database_failed(error) from None
        self.stdout.write(f"Revoked {revoked}; {len(found) - revoked} were revoked before.")
