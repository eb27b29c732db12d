"""What a store of batches does, on SQLite and on PostgreSQL."""

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from unittest.mock import AsyncMock

import pytest

from responses_app.kit.errors import StoreError
from responses_app.resources.batches.lines import (
    CANCELLED,
    CANCELLING,
    COMPLETED,
    EXPIRED,
    FINALIZING,
    IN_PROGRESS,
    VALIDATING,
    LineTokens,
    NewLine,
)
from responses_app.resources.batches.records import (
    ERRORED,
    SUCCEEDED,
    BaseBatchStore,
    BatchEnd,
    BatchRecord,
    ClaimedBatch,
    DoneLine,
    LineCounts,
    TooManyBatches,
)
from responses_app.resources.batches.settings import BatchSettings
from responses_app.resources.batches.store import DatabaseBatches
from responses_app.stores.base import Claim, ClaimLost
from tests.contracts.store import IDS_NOBODY_MADE, UNTAMED, new_id, present

NOBODY_IS_DEAD = -1e9
MAX_OPEN = 3  # BATCHES_MAX_OPEN of the store
NOW = 1_800_000_000
NAME = "é 🍎 %s '\\"


def record(project: str = "", **fields: object) -> BatchRecord:
    """Return a new batch."""
    made = BatchRecord(
        id=new_id("batch"),
        project=project or new_id("proj"),
        endpoint="/v1/responses",
        status=VALIDATING,
        created_at=NOW,
        expires_at=NOW + 10,
        input_file_id="file-a",
        metadata={"a": UNTAMED},
    )
    return replace(made, **fields)  # type: ignore[arg-type]


def lines(count: int, size: int = 10) -> list[NewLine]:
    """Return lines of a batch, from 1 on."""
    return [NewLine(number, f"{number} {NAME}", b"x" * size) for number in range(1, count + 1)]


def done(number: int, outcome: str = SUCCEEDED) -> DoneLine:
    """Return what came of a line."""
    tokens = LineTokens(input=3, cached=1, output=2, reasoning=1)
    return DoneLine(number=number, outcome=outcome, result=b"%d\n" % number, tokens=tokens)


async def claimed(store: BaseBatchStore, made: BatchRecord, worker: str = "") -> ClaimedBatch:
    """Claim a batch, and let go of all others."""
    found = await store.claim(worker or new_id("worker"), dead_before=NOBODY_IS_DEAD, limit=1000)
    return next(each for each in found if each.record.id == made.id)


async def begun(store: BaseBatchStore, count: int, size: int = 10) -> ClaimedBatch:
    """Return a batch whose input was read."""
    made = record()
    await store.create(made)
    batch = await claimed(store, made)
    await store.add_lines(made.id, batch.claim, lines(count, size))
    await store.add_lines(made.id, batch.claim, lines(1, size))  # once more is as good as once
    await store.begin(made.id, batch.claim, total=count, model="m", at=NOW + 1)
    return batch


async def now(store: BaseBatchStore, batch: ClaimedBatch) -> BatchRecord:
    """Return a batch as it is."""
    found = present(await store.get(batch.record.project, batch.record.id))
    return found


class TestInDatabases:
    @pytest.fixture
    async def batches(self, alias: str) -> AsyncIterator[DatabaseBatches]:
        batches = DatabaseBatches(using=alias, settings=BatchSettings(batches_max_open=MAX_OPEN))
        yield batches
        await batches.aclose()

    async def test_they_are_kept_and_listed(self, batches: BaseBatchStore) -> None:
        made = [record("") for _ in range(1)]
        made += [record(made[0].project) for _ in range(2)]
        made.sort(key=lambda each: each.id)
        for each in made:
            await batches.create(each)
            await batches.create(each)  # an answer was lost
        project = made[0].project
        assert await batches.get(project, made[0].id) == made[0]
        assert await batches.get("another", made[0].id) is None
        listed = await batches.listed(project, "batch_", after=None, limit=2)
        assert listed == [made[2], made[1]]
        assert await batches.listed(project, "batch_", after=made[1].id, limit=2) == [made[0]]
        assert await batches.listed(project, "batch_", after=made[1].id, limit=2, descending=False) == [made[2]]
        assert await batches.listed("another", "batch_", after=made[1].id, limit=2) == []
        assert await batches.listed(project, "msgbatch_", after=None, limit=2) == []
        with pytest.raises(TooManyBatches):
            await batches.create(record(project))
        await batches.create(record())

    @pytest.mark.parametrize("name", IDS_NOBODY_MADE, ids=ascii)
    async def test_ids_nobody_made(self, batches: BaseBatchStore, name: str) -> None:
        project = new_id("proj")
        assert await batches.get(project, name) is None
        assert await batches.cancel(project, name, at=NOW) is None
        assert not await batches.delete(project, name)

    async def test_one_worker_at_a_time_works_on_one(self, batches: BaseBatchStore) -> None:
        made = record()
        await batches.create(made)
        one, other = new_id("worker"), new_id("worker")
        batch = await claimed(batches, made, one)
        assert batch.claim == Claim(one, 1)
        known = [made.id]
        others = await batches.claim(one, dead_before=NOBODY_IS_DEAD, limit=1000, known=known)
        assert made.id not in [each.record.id for each in others]
        # Nobody has ever seen the first one, so it is dead.
        taken = await claimed(batches, made, other)
        assert taken.claim == Claim(other, 2)
        with pytest.raises(ClaimLost):
            await batches.add_lines(made.id, batch.claim, lines(1))
        with pytest.raises(ClaimLost):
            await batches.end(made.id, batch.claim, BatchEnd(status=COMPLETED, at=NOW))
        again = await claimed(batches, made, other)  # where the first answer got lost
        with pytest.raises(ClaimLost):
            await batches.give_back(made.id, taken.claim, pending=())
        await batches.give_back(made.id, again.claim, pending=())
        with pytest.raises(ClaimLost):
            await batches.give_back(made.id, again.claim, pending=())
        assert await batches.has_work(other, dead_before=NOBODY_IS_DEAD)

    async def test_the_batches_of_some_projects_are_left_to_others(self, batches: BaseBatchStore) -> None:
        made, other = record(), record(project=new_id("project"))
        worker = new_id("worker")
        for each in (made, other):
            await batches.create(each)
        claim = partial(batches.claim, worker, dead_before=NOBODY_IS_DEAD, limit=1000)
        without = [each.record.project for each in await claim(without=[made.project])]
        assert other.project in without
        assert made.project not in without
        assert made.id in {each.record.id for each in await claim(without=[other.project])}

    async def test_lines_are_begun_and_done_once(self, batches: BaseBatchStore) -> None:
        batch = await begun(batches, 5)
        batch_id, claim = batch.record.id, batch.claim
        step = await batches.step(batch_id, claim, done=[], after=0, limit=2, max_bytes=1000)
        assert [(each.number, each.again) for each in step.lines] == [(1, False), (2, False)]
        assert (step.lines[0].custom_id, step.lines[0].body) == (f"1 {NAME}", b"x" * 10)
        both = [done(1), done(2, ERRORED)]
        for _ in range(2):  # an answer was lost
            step = await batches.step(batch_id, claim, done=both, after=2, limit=2, max_bytes=15)
            assert [each.number for each in step.lines] == [3]
        found = await now(batches, batch)
        assert (found.status, found.model, found.times) == (IN_PROGRESS, "m", {IN_PROGRESS: NOW + 1})
        assert found.counts == LineCounts(total=5, completed=1, failed=1)
        assert found.tokens == LineTokens(input=6, cached=2, output=4, reasoning=2)
        await batches.give_back(batch_id, claim, pending=[])
        claim = (await claimed(batches, batch.record)).claim
        step = await batches.step(batch_id, claim, done=[], after=0, limit=5, max_bytes=1000)
        assert [(each.number, each.again) for each in step.lines] == [(3, True), (4, False), (5, False)]
        await batches.give_back(batch_id, claim, pending=[4])
        claim = (await claimed(batches, batch.record)).claim
        step = await batches.step(batch_id, claim, done=[], after=0, limit=5, max_bytes=1000)
        assert [(each.number, each.again) for each in step.lines] == [(3, True), (4, False), (5, True)]

    async def test_a_large_line_comes_alone(self, batches: BaseBatchStore) -> None:
        batch = await begun(batches, 3, size=100)
        step = await batches.step(batch.record.id, batch.claim, done=[], after=0, limit=3, max_bytes=50)
        assert [each.number for each in step.lines] == [1]

    async def test_its_end(self, batches: BaseBatchStore, monkeypatch: pytest.MonkeyPatch) -> None:
        batch = await begun(batches, 4)
        batch_id, claim = batch.record.id, batch.claim
        await batches.step(batch_id, claim, done=[done(2), done(1, ERRORED)], after=0, limit=0, max_bytes=1)
        ids = {"output_file_id": "file-o", "error_file_id": "file-e"}
        for _ in range(2):
            found = await batches.finalize(batch_id, claim, unrun=EXPIRED, **ids, at=NOW + 2)
        assert (found.status, found.output_file_id, found.error_file_id) == (FINALIZING, "file-o", "file-e")
        assert found.counts == LineCounts(total=4, completed=1, failed=1, expired=2)
        assert await batches.sizes(batch_id, [SUCCEEDED, ERRORED]) == (2, 4)
        rest = await batches.results(batch_id, after=1, limit=2, outcomes=[SUCCEEDED, EXPIRED])
        assert [(each.number, each.outcome, each.result) for each in rest] == [
            (2, SUCCEEDED, b"2\n"),
            (3, EXPIRED, b""),
        ]
        assert not await batches.delete(batch.record.project, batch_id), "it has not ended"
        with pytest.raises(ClaimLost):  # of an attempt before, whose files are gone
            await batches.end(batch_id, claim, BatchEnd(status=EXPIRED, at=NOW + 3, output_file_id="file-before"))
        await batches.end(batch_id, claim, BatchEnd(status=EXPIRED, at=NOW + 3, output_file_id="file-o"))
        found = await now(batches, batch)
        assert (found.status, found.output_file_id, found.error_file_id) == (EXPIRED, "file-o", "")
        assert found.times == {IN_PROGRESS: NOW + 1, FINALIZING: NOW + 2, EXPIRED: NOW + 3}
        with pytest.raises(ClaimLost):
            await batches.step(batch_id, claim, done=[done(3)], after=0, limit=1, max_bytes=1)
        assert await batches.cancel(batch.record.project, batch_id, at=NOW) == found
        assert await batches.purge(created_before=NOW) == 0
        # What is cut in the middle can be asked for again: while lines are there, the batch is.
        with monkeypatch.context() as cut:
            cut.setattr(batches, "drop_lines", AsyncMock(side_effect=StoreError("away")))
            with pytest.raises(StoreError):
                await batches.delete(batch.record.project, batch_id)
        assert await batches.get(batch.record.project, batch_id) == found
        assert await batches.delete(batch.record.project, batch_id)
        assert await batches.sizes(batch_id, [SUCCEEDED]) == (0, 0)

    async def test_a_cancelled_one_begins_no_line(self, batches: BaseBatchStore) -> None:
        batch = await begun(batches, 2)
        batch_id, claim, project = batch.record.id, batch.claim, batch.record.project
        found = present(await batches.cancel(project, batch_id, at=NOW + 2))
        assert (found.status, found.times[CANCELLING]) == (CANCELLING, NOW + 2)
        assert await batches.cancel(project, batch_id, at=NOW + 3) == found
        step = await batches.step(batch_id, claim, done=[done(1)], after=0, limit=2, max_bytes=1000)
        assert (step.status, step.lines) == (CANCELLING, ())
        found = await batches.finalize(
            batch_id, claim, unrun=CANCELLED, output_file_id="", error_file_id="", at=NOW + 4
        )
        assert (found.status, found.counts) == (CANCELLING, LineCounts(total=2, completed=1, cancelled=1))

    async def test_lines_that_come_with_the_request(self, batches: BaseBatchStore) -> None:
        made = record(status=IN_PROGRESS, counts=LineCounts(total=3))
        await batches.create(made, lines(3))
        claim = (await claimed(batches, made)).claim
        step = await batches.step(made.id, claim, done=[], after=0, limit=9, max_bytes=1000)
        assert [each.number for each in step.lines] == [1, 2, 3]

    async def test_old_ones_are_forgotten(self, batches: BaseBatchStore) -> None:
        batch = await begun(batches, 3)
        assert await batches.purge(created_before=NOW + 1) == 0, "it has not ended"
        await batches.end(batch.record.id, batch.claim, BatchEnd(status=COMPLETED, at=NOW))
        assert await batches.purge(created_before=NOW + 1) >= 1
        assert await batches.get(batch.record.project, batch.record.id) is None
        assert await batches.results(batch.record.id, after=0, limit=5, outcomes=[SUCCEEDED]) == []
