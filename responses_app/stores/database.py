"""The store that survives: Django's database, SQLite or PostgreSQL.

Writes go through one coalescing thread, reads through a few threads of their own; every connection stays open. Nothing
here runs on the event loop, or on asgiref's one thread for everything, which a slow query would block.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.executor import MigrationExecutor

from responses_app.protocol.chain import ChainLink
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items import SampledItem
from responses_app.stores import lookups
from responses_app.stores.base import (
    AcceptedResponse,
    BaseResponseStore,
    Estate,
    ParentGone,
    Purged,
    StoredResponse,
    StoreError,
    StoreLimits,
    WorkerState,
)
from responses_app.stores.chain_sql import load_chain
from responses_app.stores.conversation_rows import can_be_known
from responses_app.stores.estate import beat, inherit
from responses_app.stores.readers import DatabaseReaders
from responses_app.stores.removal import remove_ended, remove_one
from responses_app.stores.retention import added, plan_purge
from responses_app.stores.writer import CoalescingWriter
from responses_app.stores.writes import Acceptance, Begun, Job, Write, commit

logger = logging.getLogger("respsite.stores")

Result = TypeVar("Result")


class DatabaseResponseStore(BaseResponseStore):
    """Keeps responses in the database `using`, an alias of Django's DATABASES.

    Saving a response again replaces it. A part whose ancestors were never stored (a connection may continue what it
    alone remembers) is stored with them, else it could not be continued; they cannot be retrieved or continued
    themselves. `now` is the clock, in Unix seconds; `max_pending` bounds the writes that wait.
    """

    def __init__(
        self,
        *,
        using: str = "default",
        limits: StoreLimits = StoreLimits(),  # noqa: B008 - it is frozen
        now: Callable[[], float] = time.time,
        max_pending: int = 10_000,
    ) -> None:
        self._using = using
        self._limits = limits
        self._now = now
        self._writer: CoalescingWriter[Write] = CoalescingWriter(self._commit, using=using, max_pending=max_pending)
        self._readers = DatabaseReaders(using)
        self._usable = False

    async def start(self) -> None:
        self._writer.start()

    async def aclose(self) -> None:
        await self._writer.aclose()
        await self._readers.aclose()

    async def accept(self, accepted: AcceptedResponse) -> None:
        acceptance = Acceptance(accepted, self._known_since())
        await self._writer.write(acceptance)
        if acceptance.refused:
            raise ParentGone(accepted.parent)

    async def begin(self, project: str, response_id: str) -> None:
        await self._writer.write(Begun(project, response_id))

    async def save(self, stored: StoredResponse) -> None:
        await self._writer.write(stored)

    async def response(self, project: str, response_id: str) -> JsonObject | None:
        if not can_be_known(response_id):
            return None
        since = self._known_since()
        return await self._readers.run(lambda db: lookups.response(db, project, response_id, since=since))

    async def knows(self, project: str, response_id: str) -> bool:
        if not can_be_known(response_id):
            return False
        since = self._known_since()
        return await self._readers.run(lambda db: lookups.exists(db, project, response_id, since=since))

    async def input_items(self, project: str, response_id: str) -> Sequence[JsonObject] | None:
        if not can_be_known(response_id):
            return None
        since = self._known_since()
        return await self._readers.run(lambda db: lookups.input_items(db, project, response_id, since=since))

    async def delete(self, project: str, response_id: str) -> bool:
        if not can_be_known(response_id):
            return False
        since = self._known_since()
        return await self._do(lambda db, before: remove_one(db, project, response_id, since=since) or bool(before))

    async def chain(self, project: str, response_id: str) -> ChainLink | None:
        if not can_be_known(response_id):
            return None
        since = self._known_since()
        return await self._readers.run(lambda db: load_chain(db, project, response_id, since=since))

    async def sampled_items(self, project: str, item_ids: Collection[str]) -> Mapping[str, SampledItem]:
        wanted = [item_id for item_id in item_ids if can_be_known(item_id)]
        if not wanted:
            return {}
        since = self._known_since()
        return await self._readers.run(lambda db: lookups.sampled_items(db, project, wanted, since=since))

    async def items(self, project: str, item_ids: Collection[str]) -> Mapping[str, JsonObject]:
        wanted = [item_id for item_id in item_ids if can_be_known(item_id)]
        if not wanted:
            return {}
        since = self._known_since()
        return await self._readers.run(lambda db: lookups.items(db, project, wanted, since=since))

    async def beat(self, worker: WorkerState) -> None:
        await self._do(lambda db, _: beat(db, worker, now=self._now()))

    async def inherit(self, worker_id: str, *, lease_seconds: float) -> Estate:
        return await self._do(
            lambda db, before: inherit(db, worker_id, before, now=self._now(), lease_seconds=lease_seconds)
        )

    async def purge(self) -> Purged:
        plan = await self._readers.run(lambda db: plan_purge(db, self._limits, now=self._now()))
        purged = Purged(more=plan.more)
        for batch in plan.batches():
            purged = added(purged, await self._do(lambda db, _, batch=batch: remove_ended(db, batch)))
        return purged

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

    def _known_since(self) -> float:
        """Return the time, in Unix seconds, from which on responses are known."""
        return self._now() - self._limits.ttl if self._limits.ttl else -1.0

    async def _do(self, act: Callable[[BaseDatabaseWrapper, Result | None], Result]) -> Result:
        """Return what `act` returns, which runs on the writer's thread."""
        job = Job(act)
        await self._writer.write(job)
        return job.result  # type: ignore[return-value]

    def _commit(self, batch: Sequence[Write]) -> None:
        commit(connections[self._using], batch, now=self._now())


def _unapplied_migrations(connection: BaseDatabaseWrapper) -> Sequence[object]:
    executor = MigrationExecutor(connection)
    return executor.migration_plan(executor.loader.graph.leaf_nodes())
