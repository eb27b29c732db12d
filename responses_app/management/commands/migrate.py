"""`migrate`, which one process does at a time: the pods of a deployment start together on an empty database.

The others wait, and find it done. The lock is PostgreSQL's, held by a transaction of a connection of its own, so it
ends with the process that holds it, and works through a pooler. A SQLite file is for one server.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.commands import migrate
from django.db import connections

LOCK = 7_378_697_629  # any number that nobody else locks in this database


class Command(migrate.Command):
    """Django's, one at a time."""

    help = "Bring the tables of the database to this version. One process does so at a time; others wait."

    def handle(self, *args: Any, **options: Any) -> None:
        """Migrate once nobody else does."""
        with self._alone(options["database"]):
            super().handle(*args, **options)

    @contextmanager
    def _alone(self, alias: str) -> Iterator[None]:
        if connections[alias].vendor != "postgresql":
            yield
            return
        connection = connections.create_connection(alias)
        try:
            connection.set_autocommit(False)
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [LOCK])
                if not cursor.fetchone()[0]:
                    self.stderr.write("Another process migrates this database. Waiting until it has.")
                    cursor.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
            yield
        finally:
            connection.close()
