"""`DatabaseSetups`: named setups of the playground in Django's database."""

from collections.abc import Sequence
from datetime import UTC, datetime

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import IntegerField, Sum
from django.db.models.functions import Length

from responses_app.kit.sql import one_at_a_time
from responses_app.kit.table import Store, can_be_known
from responses_app.models import json_text
from responses_app.models.chats import NamedSetup
from responses_app.stores.setups import MAX_SETUPS, MAX_TOGETHER, SetupRecord, TooManySetups

CREATION_LOCK = 0x73657475  # the space of the locks of projects


class DatabaseSetups(Store[None]):
    """Keeps setups in the database `using`; `timeout` bounds, in seconds, whatever waits for it.

    Every method raises `StoreError`; one object serves one worker process.
    """

    unlimited = None

    async def listed(self, project: str) -> Sequence[SetupRecord]:
        """Return all setups, by their names."""

        def read(connection: BaseDatabaseWrapper) -> Sequence[SetupRecord]:
            mine = self._mine(project, dated="updated_at")
            rows = NamedSetup.objects.using(connection.alias).filter(**mine)[:MAX_SETUPS]
            # Sorted here: databases order texts in different ways.
            return sorted((_record(row) for row in rows), key=lambda each: each.name)

        return await self._threads.run(read)

    async def put(self, project: str, record: SetupRecord) -> SetupRecord:
        """Keep a setup, or replace the one of its name, which keeps its id and `created_at`; return what is kept.

        Raises `TooManySetups`.
        """
        at = datetime.fromtimestamp(record.updated_at, UTC)

        def write(connection: BaseDatabaseWrapper) -> SetupRecord:
            rows = NamedSetup.objects.using(connection.alias).filter(project=project)
            with transaction.atomic(using=connection.alias):
                one_at_a_time(connection, CREATION_LOCK, project)
                others = rows.exclude(name=record.name).aggregate(
                    size=Sum(Length("setup", output_field=IntegerField()))
                )
                if (others["size"] or 0) + len(json_text(record.setup)) > MAX_TOGETHER:
                    raise TooManySetups(f"the setups of {project} are too large together")
                row = rows.filter(name=record.name).first()
                if row is None:
                    if rows.count() >= MAX_SETUPS:
                        raise TooManySetups(f"{project} has {MAX_SETUPS} setups already")
                    row = NamedSetup(id=record.id, project=project, name=record.name, created_at=at)
                row.setup, row.updated_at = record.setup, at
                row.save(using=connection.alias)
            return _record(row)

        return await self._threads.run(write)

    async def delete(self, project: str, setup_id: str) -> bool:
        """Forget a setup; return whether there was one."""

        def write(connection: BaseDatabaseWrapper) -> bool:
            rows = NamedSetup.objects.using(connection.alias).filter(
                pk=setup_id, **self._mine(project, dated="updated_at")
            )
            return bool(rows.delete()[0])

        return can_be_known(setup_id) and await self._threads.run(write)


def _record(row: NamedSetup) -> SetupRecord:
    return SetupRecord(
        id=row.pk,
        name=row.name,
        setup=row.setup,
        created_at=int(row.created_at.timestamp()),
        updated_at=int(row.updated_at.timestamp()),
    )
