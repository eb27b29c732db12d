"""`DatabaseRollouts`: roll-outs in Django's database."""

import math
from collections.abc import Callable, Sequence

from django.db import IntegrityError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from responses_app.kit.clock import utc
from responses_app.kit.places import left
from responses_app.kit.retention import Retentions
from responses_app.kit.sql import one_at_a_time
from responses_app.kit.table import Store, can_be_known, part_of
from responses_app.models.rollouts import Rollout
from responses_app.protocol.ids import ROLLOUT, is_made
from responses_app.protocol.rollouts.generations import Generation, RecordedResponse
from responses_app.protocol.rollouts.requests import (
    RewardObject,
    RolloutSettings,
    can_be_group,
    can_be_name,
    is_full_of_rewards,
)
from responses_app.stores.database.rollouts import removal
from responses_app.stores.database.rollouts.keeping import GenerationKeeper
from responses_app.stores.database.rollouts.rows import (
    LISTED,
    found,
    generations_of,
    read_generations,
    record_of,
    rollouts_of,
    row_of,
)
from responses_app.stores.rollouts import (
    UNLIMITED,
    PurgedRollouts,
    RolloutExists,
    RolloutRecord,
    RolloutsFull,
    TooManyRewards,
)

CREATION_LOCK = 0x726F6C6C  # the space of the locks of projects


class DatabaseRollouts(Store[RolloutSettings]):
    """Keeps roll-outs, per project, in the database `using`. All methods raise `StoreError`.

    `timeout` bounds, in seconds, whatever waits for it.
    """

    unlimited = UNLIMITED

    def __init__(
        self,
        *,
        using: str = "default",
        settings: RolloutSettings | None = None,
        now: Callable[[], float] | None = None,
        timeout: float = math.inf,
        retentions: Retentions | None = None,
    ) -> None:
        super().__init__(using=using, settings=settings, now=now, timeout=timeout, retentions=retentions)
        self.settings = self._settings
        # What the store of responses keeps generations with, too, in the transaction of a response's end.
        self.keeper = GenerationKeeper(max_bytes=self._settings.rollout_memory_bytes)

    async def create(self, record: RolloutRecord) -> None:
        """Keep a new roll-out. Raises `RolloutExists`, and `RolloutsFull`."""

        def write(connection: BaseDatabaseWrapper) -> None:
            with transaction.atomic(using=connection.alias):
                one_at_a_time(connection, CREATION_LOCK, record.project)
                mine = rollouts_of(connection).filter(project=record.project)
                since = self._since(record.project)
                if since >= 0:  # one that is past its time has its name no longer
                    removal.hide_made_until(mine.filter(name=record.name), since)
                known = mine.filter(name=record.name).values_list("pk", flat=True).first()
                if known == record.id:
                    return  # an earlier attempt was committed after all
                if known is not None:
                    raise RolloutExists(record.name)
                most = self._settings.rollouts_max_entries
                if mine.order_by("pk").values("pk")[most - 1 : most].exists():
                    raise RolloutsFull(record.project)
                row_of(record).save(using=connection.alias, force_insert=True)

        try:
            await self._threads.run(write)
        except IntegrityError as error:
            raise RolloutExists(record.name) from error

    async def get(self, project: str, name: str) -> RolloutRecord | None:
        """Return a roll-out."""
        if not can_be_name(name):
            return None
        since = self._since(project)

        def read(connection: BaseDatabaseWrapper) -> RolloutRecord | None:
            row = found(connection, project, name)
            is_known = row is not None and row.created_at.timestamp() > since
            return record_of(row) if is_known else None

        return await self._threads.run(read)

    async def place(self, project: str, name: str) -> str | None:
        """Return the id of its own of what has, or had of late, this name; None for what is no name and no id."""

        def read(connection: BaseDatabaseWrapper) -> str | None:
            row = found(connection, project, name)
            return row.pk if row is not None else left(connection.alias, project, LISTED, name)

        if not can_be_name(name):
            return None
        place = await self._threads.run(read)
        return name if place is None and is_made(name, ROLLOUT) else place

    async def listed(
        self, project: str, *, after: str | None, limit: int, descending: bool = True, group: str | None = None
    ) -> Sequence[RolloutRecord]:
        """Return up to `limit` roll-outs behind the one with the id `after`, which may be gone."""
        if group is not None and not can_be_group(group):
            return ()

        def read(connection: BaseDatabaseWrapper) -> Sequence[RolloutRecord]:
            rows = rollouts_of(connection).filter(**self._mine(project))
            if group is not None:
                rows = rows.filter(group=group)
            return [record_of(row) for row in part_of(rows, after=after, descending=descending, limit=limit)]

        return await self._threads.run(read)

    async def generations(self, record: RolloutRecord) -> Sequence[Generation] | None:
        """Return the generations that a roll-out had when it was read, in order; None where it is gone."""

        def read(connection: BaseDatabaseWrapper) -> Sequence[Generation] | None:
            generations = read_generations(connection, record.id, range(record.generations))
            # Looked for behind that: one that is here still had all its generations then.
            is_here = rollouts_of(connection).filter(pk=record.id, project=record.project).exists()
            return generations if is_here else None

        return await self._threads.run(read)

    async def has(self, project: str, name: str, response_id: str) -> bool:
        """Return whether anything is kept of a response."""
        if not (can_be_name(name) and can_be_known(response_id)):
            return False

        def read(connection: BaseDatabaseWrapper) -> bool:
            known = (
                rollouts_of(connection).filter(name=name, **self._mine(project)).values_list("pk", flat=True).first()
            )
            return known is not None and generations_of(connection, known).filter(response_id=response_id).exists()

        return await self._threads.run(read)

    async def keep(self, recorded: RecordedResponse) -> None:
        """Keep what a response adds; of a roll-out that is gone nothing is kept, also where another has its name."""

        def write(connection: BaseDatabaseWrapper) -> None:
            with transaction.atomic(using=connection.alias):
                self.keeper.keep(connection, [recorded], now=self._now())

        await self._threads.run(write)

    async def add_reward(self, project: str, name: str, reward: RewardObject) -> RolloutRecord | None:
        """Add a reward; return the roll-out, None where it is not known. Raises `TooManyRewards`."""

        def change(row: Rollout) -> list[str]:
            if is_full_of_rewards(row.rewards, reward):
                raise TooManyRewards(name)
            row.rewards, row.last_at = [*row.rewards, reward], utc(reward["at"])
            return ["rewards", "last_at"]

        return await self._changed(project, name, change)

    async def end(self, project: str, name: str, *, at: int) -> RolloutRecord | None:
        """End a roll-out, unless it has ended; return it, None where it is not known."""

        def change(row: Rollout) -> list[str]:
            row.ended_at = row.ended_at or utc(at)
            return ["ended_at"]

        return await self._changed(project, name, change)

    async def delete(self, project: str, name: str) -> bool:
        """Forget a roll-out and its generations; return whether there was one."""
        if not can_be_name(name):
            return False
        rollout_id = await self._threads.run(lambda db: removal.hide(db, name, self._mine(project)))
        if rollout_id is None:
            return False
        self.keeper.forget(rollout_id)
        await removal.in_steps(self._threads.run, [rollout_id])
        await self._threads.run(lambda db: removal.remove_hidden(db, [rollout_id]))
        return True

    async def purge(self) -> PurgedRollouts:
        """Forget roll-outs whose time is over, some at once."""
        before = self._now() - self._settings.rollout_ttl if self._settings.rollout_ttl else None
        ids = await self._threads.run(lambda db: removal.hide_old(db, before, spared=self._retentions.endless))
        if not ids:
            return PurgedRollouts(0, more=False)
        for rollout_id in ids:
            self.keeper.forget(rollout_id)
        done = await removal.in_steps(self._threads.run, ids, steps=removal.MAX_STEPS)
        removed = await self._threads.run(lambda db: removal.remove_hidden(db, ids))
        return PurgedRollouts(removed, more=not done or len(ids) == removal.AT_ONCE)

    async def _changed(self, project: str, name: str, change: Callable[[Rollout], list[str]]) -> RolloutRecord | None:
        if not can_be_name(name):
            return None

        def write(connection: BaseDatabaseWrapper) -> RolloutRecord | None:
            with transaction.atomic(using=connection.alias):
                row = rollouts_of(connection).select_for_update().filter(name=name, **self._mine(project)).first()
                if row is None:
                    return None
                row.save(using=connection.alias, update_fields=change(row))
                return record_of(row)

        return await self._threads.run(write)
