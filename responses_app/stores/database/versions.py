"""Whether a newer version has migrated the database: it may have what this one does not know."""

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.loader import MigrationLoader

APP = "responses_app"
REMEDY = "Install the newer version again, or restore the backup from before the upgrade."


def newer_migration(connection: BaseDatabaseWrapper) -> str | None:
    """Return the last of our migrations that the database has had and this version lacks; None where it lacks none."""
    loader = MigrationLoader(connection)
    unknown = loader.applied_migrations.keys() - loader.disk_migrations.keys()
    return max((name for app, name in unknown if app == APP), default=None)
