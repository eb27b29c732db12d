"""`migrate`, which one process does at a time: the pods of a deployment start together on an empty database.

The others wait, and find it done. The lock is PostgreSQL's, held by a transaction of a connection of its own, so it
ends with the process that holds it, and works through a pooler. A SQLite file is for one server.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.commands import migrate
from django.db import OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

LOCK = 7_378_697_629  # any number that nobody else locks in this database
LOOK_SECONDS = 0.5  # between two tries: who waits in PostgreSQL would hold up CREATE INDEX CONCURRENTLY
# Limits that a database or a role may have: they would end the transaction that only holds the lock.
_UNLIMITED = """
SELECT set_config(name, '0', true) FROM pg_settings
WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout', 'statement_timeout')
"""


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
        connections[alias].ensure_connection()  # where the role may have a single one, it is for the migration
        connection = connections.create_connection(alias)
        try:
            self._lock(connection)
            yield
        finally:
            connection.close()

    def _lock(self, connection: BaseDatabaseWrapper) -> None:
        try:
            connection.set_autocommit(False)
        except OperationalError as error:
            self.stderr.write(f"Migrating without a lock, which takes a second connection: {error}")
            return
        with connection.cursor() as cursor:
            cursor.execute(_UNLIMITED)
            waits = False
            while True:
                cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [LOCK])
                if cursor.fetchone()[0]:
                    return
                if not waits:
                    self.stderr.write("Another process migrates this database. Waiting until it has.")
                waits = True
                time.sleep(LOOK_SECONDS)
