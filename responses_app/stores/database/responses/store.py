"""The store in a database: Django's database, SQLite or PostgreSQL.

Writes go through one coalescing thread, reads through a few threads of their own; every connection stays open. Nothing
here runs on the event loop, or on asgiref's one thread for everything, which a slow query would block.
"""

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TypeVar

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.executor import MigrationExecutor

from responses_app.kit.clock import StoreClock, own_clock
from responses_app.kit.errors import ONLY_READS, NotMigrated, StoreError
from responses_app.kit.retention import Retentions
from responses_app.kit.table import can_be_known
from responses_app.kit.threads import DatabaseReaders
from responses_app.kit.writer import CoalescingWriter
from responses_app.limits.suspects import Stage
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.ids import Leg, TurnLeg
from responses_app.protocol.items.items import SampledMessage
from responses_app.protocol.prompt.chain import ChainLink
from responses_app.protocol.requests.resources import ResponseObject
from responses_app.resources.rollouts.keeping import GenerationKeeper
from responses_app.stores.base import (
    AcceptedResponse,
    Appended,
    BaseResponseStore,
    Claim,
    ClaimLost,
    LogAppend,
    LogNews,
    NameTaken,
    Orphans,
    ParentGone,
    Purged,
    RetentionSettings,
    StoredLog,
    StoredResponse,
    WorkerState,
)
from responses_app.stores.database.responses import lookups
from responses_app.stores.database.responses.lookups import load_chain
from responses_app.stores.database.responses.orphans import any_orphans, beat, lost, reclaim
from responses_app.stores.database.responses.removal import (
    MAX_PLANNED,
    PurgePlans,
    plan_purge,
    remove_ended,
    remove_legs,
    remove_one,
)
from responses_app.stores.database.responses.writes import (
    Acceptance,
    Act,
    Begun,
    GivenBack,
    LogAppends,
    OtherWrite,
    ResponseStep,
    Suspected,
    Write,
    commit,
)

logger = logging.getLogger("respsite.stores")

Result = TypeVar("Result")


class DatabaseResponseStore(BaseResponseStore):
    """Keeps responses in the database `using`, an alias of Django's DATABASES.

    A part whose ancestors were never stored (a connection may continue what it alone remembers) is stored with them,
    else it could not be continued; they cannot be retrieved or continued themselves.
    `now` stands for all clocks, in Unix seconds; without it workers go by the database's own, and so does `clock`,
    which tells how old a response is, from the first beat on. `timeout` bounds, in seconds, whatever waits for the
    database; `max_pending` the writes that wait. `keeper` keeps what responses add to their roll-outs,
    and `retentions` tell which projects have a time of their own. `polls` is what `Store` says.
    """

    def __init__(  # noqa: PLR0913 - all that it is made of
        self,
        *,
        using: str = "default",
        settings: RetentionSettings = RetentionSettings(),  # noqa: B008 - it is frozen
        now: Callable[[], float] | None = None,
        clock: StoreClock | None = None,
        timeout: float = math.inf,
        max_pending: int = 10_000,
        keeper: GenerationKeeper | None = None,
        retentions: Retentions | None = None,
        polls: DatabaseReaders | None = None,
    ) -> None:
        self._using = using
        self._retentions = retentions or Retentions()
        self._keeper = keeper or GenerationKeeper()
        self._settings = settings
        self._given_clock = now
        self._clock = clock or StoreClock()
        self._now = now or self._clock
        self._writer: CoalescingWriter[Write] = CoalescingWriter(
            lambda batch: commit(connections[using], batch, now=self._now(), keeper=self._keeper),
            using=using,
            max_pending=max_pending,
            timeout=timeout,
        )
        self._readers = DatabaseReaders(using, timeout=timeout).held()
        self._polls = (polls or self._readers).held()
        self._plans = PurgePlans()
        self._closed = False
        self._usable = False  # once True, `check` looks for migrations no more

    async def start(self) -> None:
        self._writer.start()

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            await self._writer.aclose()
            await self._polls.aclose()
            await self._readers.aclose()

    async def accept(self, accepted: AcceptedResponse) -> None:
        step = await self._step(Acceptance(accepted, self._known_since(accepted.project)))
        if step.refused:
            raise ParentGone(accepted.parent)
        if step.taken:
            raise NameTaken(f"{accepted.public} is another response's")

    async def begin(self, project: str, response_id: str, claim: Claim) -> None:
        await self._step(Begun(project, response_id, claim))

    async def append(self, appends: Collection[LogAppend]) -> Appended:
        write = LogAppends(tuple(appends))
        await self._writer.write(write)
        return Appended(lost=write.lost, gone=write.gone)

    async def give_back(self, accepted: AcceptedResponse) -> None:
        await self._step(GivenBack(accepted))

    async def save(self, stored: StoredResponse) -> None:
        await self._step(stored)

    async def response(self, project: str, response_id: str) -> ResponseObject | None:
        return await self._look(lookups.response, project, response_id, unknown=None)

    async def knows(self, project: str, response_id: str) -> bool:
        return await self._look(lookups.exists, project, response_id, unknown=False)

    async def newest_leg(self, project: str, name: str) -> Leg | None:
        return await self._look(lookups.newest_leg, project, name, unknown=None)

    async def legs(self, project: str, name: str) -> Sequence[TurnLeg]:
        return await self._look(lookups.legs, project, name, unknown=())

    async def input_items(self, project: str, response_id: str) -> Sequence[JsonObject] | None:
        return await self._look(lookups.input_items, project, response_id, unknown=None)

    async def log(self, project: str, response_id: str) -> StoredLog | None:
        return await self._look(lookups.log, project, response_id, unknown=None)

    async def log_since(self, project: str, response_id: str, position: int) -> LogNews | None:
        return await self._look(lookups.log_since, project, response_id, position, unknown=None)

    async def delete(self, project: str, response_id: str) -> bool:
        if not can_be_known(response_id):
            return False
        # Taken before the write waits for its turn: what a client may still see is decided when it asks.
        since = self._known_since(project)
        # `before`: an earlier attempt was committed, its answer lost, and so it is gone by now.
        return await self._do(lambda db, before: remove_one(db, project, response_id, since=since) or bool(before))

    async def delete_legs(self, project: str, name: str) -> Sequence[str]:
        if not can_be_known(name):
            return ()
        since = self._known_since(project)
        return await self._do(lambda db, before: remove_legs(db, project, name, since=since) or before or ())

    async def chain(self, project: str, response_id: str) -> ChainLink | None:
        return await self._look(load_chain, project, response_id, unknown=None)

    async def sampled_items(self, project: str, item_ids: Collection[str]) -> Mapping[str, SampledMessage]:
        ids = [item_id for item_id in item_ids if can_be_known(item_id)]
        if not ids:
            return {}
        since = self._known_since(project)
        return await self._readers.run(lambda db: lookups.sampled_items(db, project, ids, since=since))

    async def items(
        self, project: str, item_ids: Collection[str], *, conversations: bool = True
    ) -> Mapping[str, JsonObject]:
        ids = [item_id for item_id in item_ids if can_be_known(item_id)]
        if not ids:
            return {}
        since = self._known_since(project)
        return await self._readers.run(
            lambda db: lookups.items(db, project, ids, since=since, conversations=conversations)
        )

    async def beat(self, worker: WorkerState) -> float:
        # Asked before the write, answered behind it: between the two the database has read its clock.
        clock, asked_at = self._given_clock, own_clock()
        heard = await self._do(lambda db, _: beat(db, worker, now=clock() if clock else None))
        self._clock.heard(heard, asked=asked_at, answered=own_clock())
        return heard

    async def reclaim(self, worker_id: str, *, dead_before: float, known: Collection[str] = ()) -> Orphans:
        return await self._do(lambda db, before: reclaim(db, worker_id, before, dead_before=dead_before, known=known))

    async def suspect(self, project: str, response_id: str, claim: Claim, stage: Stage) -> None:
        await self._step(Suspected(project, response_id, claim, stage))

    async def has_orphans(self, worker_id: str, *, dead_before: float) -> bool:
        return bool(await self._polls.poll(any_orphans(worker_id, dead_before=dead_before)))

    async def lost(self, claims: Mapping[str, Claim]) -> Collection[str]:
        return await self._readers.run(lambda db: lost(db, claims))

    async def purge(self) -> Purged:
        if self._plans.wants_look:
            # A reader looks, and the writer removes: a long look holds up no response.
            with self._plans.looking() as note_plan:
                look = partial(
                    plan_purge, settings=self._settings, max_responses=MAX_PLANNED, retentions=self._retentions
                )
                note_plan(await self._readers.run(lambda db: look(db, now=self._now())))
        plan = self._plans.next()
        purged = Purged(more=plan.more)
        for batch in plan.batches():
            purged += await self._do(lambda db, _, batch=batch: remove_ended(db, batch))
        return purged

    async def check(self) -> str | None:
        try:
            asked = _problem_of_server if self._usable else _problem_of_tables
            problem = await self._readers.run(asked, waits=False)
        except NotMigrated as error:  # its tables were there, and are gone
            return str(error)
        except StoreError as error:
            logger.warning("the database cannot be reached: %s", error)
            return error.cause or (
                "The database cannot be reached, or does not answer: check that it runs and that DATABASE_URL names it."
            )
        self._usable = self._usable or problem is None
        return problem

    def _known_since(self, project: str) -> float:
        """Return the time, in Unix seconds, from which on responses of a project are known."""
        return self._retentions.oldest(project, self._now(), ttl=self._settings.responses_store_ttl)

    async def _look(
        self, find: Callable[..., Result], project: str, name: str, *further: object, unknown: Result
    ) -> Result:
        """Return what `find` finds of a response, by its own id or what clients call it; else `unknown`."""
        if not can_be_known(name):
            return unknown
        since = self._known_since(project)
        return await self._readers.run(lambda db: find(db, project, name, *further, since=since))

    async def _step(self, act: Act) -> ResponseStep:
        step = ResponseStep(act)
        await self._writer.write(step)
        if step.lost:
            raise ClaimLost(f"{step.response_id} is not {step.claim.worker}'s any more")
        return step

    async def _do(self, act: Callable[[BaseDatabaseWrapper, Result | None], Result]) -> Result:
        """Return what `act` returns, which runs on the writer's thread."""
        job = OtherWrite(act)
        await self._writer.write(job)
        return job.result  # type: ignore[return-value]


def _problem_of_server(connection: BaseDatabaseWrapper) -> str | None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return ONLY_READS if getattr(connection, "only_reads", False) else None  # SQLite has no standbys


def _problem_of_tables(connection: BaseDatabaseWrapper) -> str | None:
    executor = MigrationExecutor(connection)
    if executor.migration_plan(executor.loader.graph.leaf_nodes()):
        return str(NotMigrated())
    return _problem_of_server(connection)
