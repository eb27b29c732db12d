"""Operations that change a table of any size in an instant."""

from typing import Any

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor


class AddColumn(migrations.AddField):
    """Add a column that has a `db_default`, by `ALTER TABLE … ADD COLUMN` on SQLite too.

    There Django copies the whole table for a column that may not be null, since SQLite cannot drop a default later. One
    that stays, as a `db_default` does, need not be dropped. No row is written, here as on PostgreSQL: rows of before
    have the default because they lack the column.
    """

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: Any, to_state: Any
    ) -> None:
        """Add it."""
        if schema_editor.connection.vendor != "sqlite" or not self.field.has_db_default():
            super().database_forwards(app_label, schema_editor, from_state, to_state)
            return
        apps: Apps = to_state.apps
        model = apps.get_model(app_label, self.model_name)
        if self.allow_migrate_model(schema_editor.connection.alias, model):
            # Past SQLite's own schema editor, whose `add_field` is the one that copies.
            BaseDatabaseSchemaEditor.add_field(schema_editor, model, model._meta.get_field(self.name))
