"""`RolloutStore`: roll-outs in Django's database."""

from collections.abc import Sequence
from typing import Any

from django.db.models import QuerySet

from responses_app.kit.clock import utc
from responses_app.kit.places import left
from responses_app.kit.sql import one_at_a_time
from responses_app.kit.table import Store, can_be_known, part_of, reads, writes
from responses_app.protocol.ids import ROLLOUT, is_made
from responses_app.protocol.rollouts.generations import Generation, RecordedResponse
from responses_app.protocol.rollouts.requests import (
    RewardObject,
    RolloutSettings,
    can_be_group,
    can_be_name,
    is_full_of_rewards,
)
from responses_app.resources.rollouts import removal
from responses_app.resources.rollouts.fields import (
    UNLIMITED,
    PurgedRollouts,
    RolloutExists,
    RolloutRecord,
    RolloutsFull,
    TooManyRewards,
)
from responses_app.resources.rollouts.keeping import GenerationKeeper
from responses_app.resources.rollouts.model import Rollout
from responses_app.resources.rollouts.rows import (
    LISTED,
    found,
    generations_of,
    read_generations,
    record_of,
    row_of,
)

CREATION_LOCK = 0x726F6C6C  # the space of the locks of projects


class RolloutStore(Store[RolloutSettings]):
    """Keeps roll-outs; everything is seen per project, and every method raises `StoreError`.

    A roll-out has an id of its own, by which it sorts, and the name by which its client calls it. What a response adds
    is kept all at once, and only once, however often it is tried. Where a generation stands is found when it is kept
    (`protocol.rollouts.placing`), behind all that any worker has kept before.
    """

    unlimited = UNLIMITED

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.settings = self._settings
        # What the store of responses keeps generations with, too, in the transaction of a response's end.
        self.keeper = GenerationKeeper(max_bytes=self._settings.rollout_memory_bytes)

    @writes
    def create(self, record: RolloutRecord) -> None:
        """Keep a new roll-out. Raises `RolloutExists`, and `RolloutsFull`."""
        one_at_a_time(self._db, CREATION_LOCK, record.project)
        mine = self._rows.filter(project=record.project)
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
        row_of(record).save(using=self._using, force_insert=True)

    @reads
    def get(self, project: str, name: str) -> RolloutRecord | None:
        """Return a roll-out."""
        row = found(self._db, project, name) if can_be_name(name) else None
        is_known = row is not None and row.created_at.timestamp() > self._since(project)
        return record_of(row) if is_known else None

    @reads
    def place(self, project: str, name: str) -> str | None:
        """Return the id of its own of what has, or had of late, this name; None for what is no name and no id."""
        if not can_be_name(name):
            return None
        row = found(self._db, project, name)
        place = row.pk if row is not None else left(self._using, project, LISTED, name)
        return name if place is None and is_made(name, ROLLOUT) else place

    @reads
    def listed(
        self, project: str, *, after: str | None, limit: int, descending: bool = True, group: str | None = None
    ) -> Sequence[RolloutRecord]:
        """Return up to `limit` roll-outs behind the one with the id `after`, which may be gone."""
        if group is not None and not can_be_group(group):
            return ()
        rows = self._rows.filter(**self._mine(project), **({} if group is None else {"group": group}))
        return [record_of(row) for row in part_of(rows, after=after, descending=descending, limit=limit)]

    @reads
    def generations(self, record: RolloutRecord) -> Sequence[Generation] | None:
        """Return the generations that a roll-out had when it was read, in order; None where it is gone."""
        generations = read_generations(self._db, record.id, range(record.generations))
        # Looked for behind that: one that is here still had all its generations then.
        return generations if self._rows.filter(pk=record.id, project=record.project).exists() else None

    @reads
    def has(self, project: str, name: str, response_id: str) -> bool:
        """Return whether anything is kept of a response."""
        if not (can_be_name(name) and can_be_known(response_id)):
            return False
        known = self._rows.filter(name=name, **self._mine(project)).values_list("pk", flat=True).first()
        return known is not None and generations_of(self._db, known).filter(response_id=response_id).exists()

    @writes
    def keep(self, recorded: RecordedResponse) -> None:
        """Keep what a response adds; of a roll-out that is gone nothing is kept, also where another has its name."""
        self.keeper.keep(self._db, [recorded], now=self._now())

    @writes
    def add_reward(self, project: str, name: str, reward: RewardObject) -> RolloutRecord | None:
        """Add a reward; return the roll-out, None where it is not known. Raises `TooManyRewards`."""
        row = self._locked(project, name)
        if row is None:
            return None
        if is_full_of_rewards(row.rewards, reward):
            raise TooManyRewards(name)
        row.rewards, row.last_at = [*row.rewards, reward], utc(reward["at"])
        row.save(using=self._using, update_fields=["rewards", "last_at"])
        return record_of(row)

    @writes
    def end(self, project: str, name: str, *, at: int) -> RolloutRecord | None:
        """End a roll-out, unless it has ended; return it, None where it is not known."""
        row = self._locked(project, name)
        if row is None:
            return None
        row.ended_at = row.ended_at or utc(at)
        row.save(using=self._using, update_fields=["ended_at"])
        return record_of(row)

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

    @property
    def _rows(self) -> "QuerySet[Rollout]":
        return Rollout.objects.using(self._using)

    def _locked(self, project: str, name: str) -> Rollout | None:
        """Return a row that nobody else changes until this transaction ends, None if there is none."""
        if not can_be_name(name):
            return None
        return self._rows.select_for_update().filter(name=name, **self._mine(project)).first()
