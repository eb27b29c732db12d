"""The store that survives: Django's database, SQLite or PostgreSQL.

Writes go through one coalescing thread, reads through a few threads of their own; every connection stays open. Nothing
here runs on the event loop, or on asgiref's one thread for everything, which a slow query would block.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain as concatenated

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.executor import MigrationExecutor
from django.db.models import Model

from responses_app.models import ID_LENGTH, ChainPart, Response
from responses_app.models import SampledItem as SampledItemRow
from responses_app.protocol.chain import ChainLink
from responses_app.protocol.items import SampledItem
from responses_app.stores.base import BaseResponseStore, StoredResponse, StoreError
from responses_app.stores.chain_sql import chain_rows
from responses_app.stores.readers import DatabaseReaders
from responses_app.stores.rows import chain_of, part_row, response_row, sampled_item, sampled_rows
from responses_app.stores.writer import CoalescingWriter

logger = logging.getLogger("respsite.stores")

IDS_A_QUERY = 500  # SQLite may be built for 999 parameters at most


class DatabaseResponseStore(BaseResponseStore):
    """Keeps responses in the database `using`, an alias of Django's DATABASES.

    Saving a response again replaces it. A part whose ancestors were never stored (a connection may continue what it
    alone remembers) is stored with them, else it could not be continued; they cannot be retrieved or continued
    themselves.
    """

    def __init__(self, *, using: str = "default", max_pending: int = 10_000) -> None:
        self._using = using
        self._writer = CoalescingWriter(self._commit, using=using, max_pending=max_pending)
        self._readers = DatabaseReaders(using)
        self._usable = False

    async def start(self) -> None:
        self._writer.start()

    async def aclose(self) -> None:
        await self._writer.aclose()
        await self._readers.aclose()

    async def save(self, stored: StoredResponse) -> None:
        await self._writer.write(stored)

    async def chain(self, project: str, response_id: str) -> ChainLink | None:
        if not _can_be_known(response_id):
            return None

        def read(connection: BaseDatabaseWrapper) -> ChainLink | None:
            rows = chain_rows(connection, project, response_id)
            if rows and rows[0][1] is not None:
                logger.error("response %s cannot be continued: part %s of its chain is lost", response_id, rows[0][1])
                return None
            return chain_of(rows)

        return await self._readers.run(read)

    async def sampled_items(self, project: str, item_ids: Collection[str]) -> Mapping[str, SampledItem]:
        wanted = [item_id for item_id in item_ids if _can_be_known(item_id)]
        if not wanted:
            return {}

        def read(connection: BaseDatabaseWrapper) -> Mapping[str, SampledItem]:
            kept = SampledItemRow.objects.using(connection.alias).filter(project=project)
            columns = kept.values_list("id", "fingerprint", "kind", "tokens")
            rows = (columns.filter(id__in=ids) for ids in _parts(wanted))
            return {row[0]: sampled_item(*row) for row in concatenated.from_iterable(rows)}

        return await self._readers.run(read)

    async def check(self) -> str | None:
        if self._usable:
            return None
        try:
            unapplied = await self._readers.run(_unapplied_migrations)
        except StoreError as error:
            logger.warning("the database cannot be reached: %s", error)
            return "The database cannot be reached: check that it runs and that DATABASE_URL names it."
        if unapplied:
            return f"The database lacks {len(unapplied)} migrations: run `python manage.py migrate`."
        self._usable = True
        return None

    # What follows runs on the writer's thread, in a transaction.

    def _commit(self, batch: Sequence[StoredResponse]) -> None:
        """Write a batch, one statement a table (SQLite: as many as its limit of parameters asks for)."""
        links = {stored.link.response_id: (stored.project, stored.link) for stored in batch if stored.link}
        links |= self._unstored_ancestors(links)
        self._upsert(Response, {stored.response["id"]: response_row(stored) for stored in batch})
        self._upsert(ChainPart, {part_id: part_row(*owned) for part_id, owned in links.items()})
        self._upsert(SampledItemRow, {row.pk: row for stored in batch for row in sampled_rows(stored)})

    def _unstored_ancestors(self, links: "Mapping[str, _OwnedLink]") -> "dict[str, _OwnedLink]":
        """Return what these links continue and what is not stored yet, with its project, by id."""
        parents = {
            link.parent.response_id: (project, link.parent)
            for project, link in links.values()
            if link.parent and link.parent.response_id not in links
        }
        stored = self._stored_parts(parents)
        lineages = {
            ancestor.response_id: (project, ancestor)
            for parent_id, (project, parent) in parents.items()
            if parent_id not in stored
            for ancestor in parent.lineage()
            if ancestor.response_id not in links
        }
        stored |= self._stored_parts(lineages.keys() - parents.keys())
        return {part_id: owned for part_id, owned in lineages.items() if part_id not in stored}

    def _stored_parts(self, part_ids: Iterable[str]) -> set[str]:
        kept = ChainPart.objects.using(self._using).values_list("id", flat=True)
        return {part_id for ids in _parts(list(part_ids)) for part_id in kept.filter(id__in=ids)}

    def _upsert(self, model: type[Model], rows: Mapping[object, Model]) -> None:
        """Insert or replace rows; by id, since PostgreSQL refuses a statement that meets one row twice."""
        model._default_manager.using(self._using).bulk_create(
            rows.values(),
            update_conflicts=True,
            unique_fields=["id"],
            update_fields=[field.name for field in model._meta.concrete_fields if not field.primary_key],
        )


_OwnedLink = tuple[str, ChainLink]  # a project and its link


def _can_be_known(identifier: str) -> bool:
    """Whether an id that a client sent can be one of ours; no database takes every string (NUL, surrogates)."""
    return len(identifier) <= ID_LENGTH and identifier.isascii() and identifier.isprintable()


def _parts(ids: Sequence[str]) -> Iterable[Sequence[str]]:
    return (ids[start : start + IDS_A_QUERY] for start in range(0, len(ids), IDS_A_QUERY))


def _unapplied_migrations(connection: BaseDatabaseWrapper) -> Sequence[object]:
    executor = MigrationExecutor(connection)
    return executor.migration_plan(executor.loader.graph.leaf_nodes())
