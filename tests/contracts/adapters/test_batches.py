"""What a store of batches does, on SQLite and on PostgreSQL."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any
from unittest.mock import AsyncMock

import pytest
from django.forms.models import model_to_dict

from responses_app.kit.clock import utc
from responses_app.kit.errors import StoreError
from responses_app.resources.batches.fields import BatchSettings
from responses_app.resources.batches.lines import CANCELLED, ERRORED, EXPIRED, SUCCEEDED, LineTokens, NewLine
from responses_app.resources.batches.model import (
    BEGUN,
    CANCELLING,
    COMPLETED,
    FINALIZING,
    IN_PROGRESS,
    PENDING,
    VALIDATING,
    Batch,
)
from responses_app.resources.batches.store import KEPT_SECONDS, Batches, DoneLine, TooManyBatches
from responses_app.stores.base import ClaimLost
from tests.contracts.store import IDS_NOBODY_MADE, UNTAMED, new_id, present

NOBODY_IS_DEAD = -1e9
MAX_OPEN = 3  # BATCHES_MAX_OPEN of the store
NOW = 1_800_000_000
NAME = "é 🍎 %s '\\"


class Clock:
    """The store's clock, which the test sets."""

    now = float(NOW)

    def __call__(self) -> float:
        return self.now


def new_batch(project: str = "", **columns: object) -> Batch:
    """Return a batch that is in no store yet."""
    made: dict[str, Any] = {
        "id": new_id("batch"),
        "project": project or new_id("proj"),
        "endpoint": "/v1/responses",
        "status": VALIDATING,
        "created_at": utc(NOW),
        "expires_at": utc(NOW + 10),
        "input_file_id": "file-a",
        "metadata": {"a": UNTAMED},
    }
    return Batch(**made | columns)


def same(found: Batch | None, batch: Batch) -> bool:
    """Whether all columns of two rows are the same."""
    return model_to_dict(present(found)) == model_to_dict(batch)


def lines(count: int, size: int = 10) -> list[NewLine]:
    """Return lines of a batch, from 1 on."""
    return [NewLine(number, f"{number} {NAME}", b"x" * size) for number in range(1, count + 1)]


def done(number: int, outcome: str = SUCCEEDED) -> DoneLine:
    """Return what came of a line."""
    tokens = LineTokens(input=3, cached=1, output=2, reasoning=1)
    return DoneLine(number=number, outcome=outcome, result=b"%d\n" % number, tokens=tokens)


async def claimed(store: Batches, batch: Batch, worker: str = "") -> Batch:
    """Claim a batch, and let go of all others."""
    found = await store.claim(worker or new_id("worker"), dead_before=NOBODY_IS_DEAD, limit=1000)
    return next(each for each in found if each.pk == batch.pk)


async def begun(store: Batches, count: int, size: int = 10) -> Batch:
    """Return a claimed batch whose input was read."""
    made = new_batch()
    await store.create(made)
    batch = await claimed(store, made)
    await store.add_lines(batch, lines(count, size))
    await store.add_lines(batch, lines(1, size))  # once more is as good as once
    await store.begin(batch, total=count, model="m")
    return batch


async def now(store: Batches, batch: Batch) -> Batch:
    """Return a batch as it is."""
    return present(await store.get(batch.project, batch.pk))


class TestInDatabases:
    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    async def batches(self, alias: str, clock: Clock) -> AsyncIterator[Batches]:
        batches = Batches(using=alias, settings=BatchSettings(batches_max_open=MAX_OPEN), now=clock)
        yield batches
        await batches.aclose()

    async def test_they_are_kept_and_listed(self, batches: Batches) -> None:
        made = [new_batch()]
        made += [new_batch(made[0].project) for _ in range(2)]
        made.sort(key=lambda each: str(each.pk))
        for each in made:
            await batches.create(each)
            await batches.create(each)  # an answer was lost
        project = made[0].project
        assert same(await batches.get(project, made[0].pk), made[0])
        assert await batches.get("another", made[0].pk) is None
        page = partial(batches.page, project, after=None, descending=True, limit=2)
        assert await page() == [made[2], made[1]]
        assert await page(after=made[1].pk) == [made[0]]
        assert await page(after=made[1].pk, descending=False) == [made[2]]
        assert await batches.page("another", after=None, descending=True, limit=2) == []
        assert await page(prefix="msgbatch_") == []
        with pytest.raises(TooManyBatches):
            await batches.create(new_batch(project))
        await batches.create(new_batch())

    @pytest.mark.parametrize("name", IDS_NOBODY_MADE, ids=ascii)
    async def test_ids_nobody_made(self, batches: Batches, name: str) -> None:
        project = new_id("proj")
        assert await batches.get(project, name) is None
        assert await batches.cancel(project, name) is None
        assert not await batches.delete(project, name)

    async def test_one_worker_at_a_time_works_on_one(self, batches: Batches) -> None:
        made = new_batch()
        await batches.create(made)
        one, other = new_id("worker"), new_id("worker")
        batch = await claimed(batches, made, one)
        assert (batch.worker, batch.epoch) == (one, 1)
        others = await batches.claim(one, dead_before=NOBODY_IS_DEAD, limit=1000, known=[made.pk])
        assert made not in others
        # Nobody has ever seen the first one, so it is dead.
        taken = await claimed(batches, made, other)
        assert (taken.worker, taken.epoch) == (other, 2)
        with pytest.raises(ClaimLost):
            await batches.add_lines(batch, lines(1))
        with pytest.raises(ClaimLost):
            await batches.end(batch, COMPLETED)
        again = await claimed(batches, made, other)  # where the first answer got lost
        with pytest.raises(ClaimLost):
            await batches.give_back(taken, pending=())
        await batches.give_back(again, pending=())
        with pytest.raises(ClaimLost):
            await batches.give_back(again, pending=())
        assert made in await batches.claim(other, dead_before=NOBODY_IS_DEAD, limit=1000, known=["another"])

    async def test_the_batches_of_some_projects_are_left_to_others(self, batches: Batches) -> None:
        made, other = new_batch(), new_batch()
        for each in (made, other):
            await batches.create(each)
        claim = partial(batches.claim, new_id("worker"), dead_before=NOBODY_IS_DEAD, limit=1000)
        rest = await claim(without=[made.project])
        assert other in rest
        assert made not in rest
        assert made in await claim(without=[other.project])

    async def test_lines_are_begun_and_done_once(self, batches: Batches) -> None:
        batch = await begun(batches, 5)
        _, some = await batches.step(batch, done=[], after=0, limit=2, max_bytes=1000)
        assert [(each.number, each.state) for each in some] == [(1, PENDING), (2, PENDING)]
        assert (some[0].custom_id, some[0].body) == (f"1 {NAME}", b"x" * 10)
        assert isinstance(some[0].body, bytes)
        both = [done(1), done(2, ERRORED)]
        for _ in range(2):  # an answer was lost
            _, some = await batches.step(batch, done=both, after=2, limit=2, max_bytes=15)
            assert [each.number for each in some] == [3]
        found = await now(batches, batch)
        assert (found.status, found.model, found.times) == (IN_PROGRESS, "m", {IN_PROGRESS: NOW})
        assert (found.total, found.completed, found.failed) == (5, 1, 1)
        assert (found.input_tokens, found.cached_tokens) == (6, 2)
        assert (found.output_tokens, found.reasoning_tokens) == (4, 2)
        await batches.give_back(batch, pending=[])
        batch = await claimed(batches, batch)
        _, some = await batches.step(batch, done=[], after=0, limit=5, max_bytes=1000)
        assert [(each.number, each.state) for each in some] == [(3, BEGUN), (4, PENDING), (5, PENDING)]
        await batches.give_back(batch, pending=[4])
        batch = await claimed(batches, batch)
        _, some = await batches.step(batch, done=[], after=0, limit=5, max_bytes=1000)
        assert [(each.number, each.state) for each in some] == [(3, BEGUN), (4, PENDING), (5, BEGUN)]

    async def test_a_large_line_comes_alone(self, batches: Batches) -> None:
        batch = await begun(batches, 3, size=100)
        _, some = await batches.step(batch, done=[], after=0, limit=3, max_bytes=50)
        assert [each.number for each in some] == [1]

    async def test_its_end(self, batches: Batches, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        batch = await begun(batches, 4)
        await batches.step(batch, done=[done(2), done(1, ERRORED)], after=0, limit=0, max_bytes=1)
        ids = {"output_file_id": "file-o", "error_file_id": "file-e"}
        for clock.now in (NOW + 2, NOW + 3):
            found = await batches.finalize(batch, unrun=EXPIRED, **ids)
        assert (found.status, found.output_file_id, found.error_file_id) == (FINALIZING, "file-o", "file-e")
        assert (found.total, found.completed, found.failed, found.expired, found.cancelled) == (4, 1, 1, 2, 0)
        assert await batches.sizes(batch.pk, [SUCCEEDED, ERRORED]) == (2, 4)
        rest = await batches.results(batch.pk, after=1, limit=2, outcomes=[SUCCEEDED, EXPIRED])
        assert [(each.number, each.outcome, each.result) for each in rest] == [
            (2, SUCCEEDED, b"2\n"),
            (3, EXPIRED, b""),
        ]
        assert not await batches.delete(batch.project, batch.pk), "it has not ended"
        with pytest.raises(ClaimLost):  # of an attempt before, whose files are gone
            await batches.end(batch, EXPIRED, output_file_id="file-before")
        await batches.end(batch, EXPIRED, output_file_id="file-o")
        found = await now(batches, batch)
        assert (found.status, found.output_file_id, found.error_file_id) == (EXPIRED, "file-o", "")
        assert found.times == {IN_PROGRESS: NOW, FINALIZING: NOW + 2, EXPIRED: NOW + 3}
        with pytest.raises(ClaimLost):
            await batches.step(batch, done=[done(3)], after=0, limit=1, max_bytes=1)
        assert same(await batches.cancel(batch.project, batch.pk), found)
        clock.now = NOW + KEPT_SECONDS
        assert await batches.purge() == 0
        # What is cut in the middle can be asked for again: while lines are there, the batch is.
        with monkeypatch.context() as cut:
            cut.setattr(batches, "drop_lines", AsyncMock(side_effect=StoreError("away")))
            with pytest.raises(StoreError):
                await batches.delete(batch.project, batch.pk)
        assert same(await batches.get(batch.project, batch.pk), found)
        assert await batches.delete(batch.project, batch.pk)
        assert await batches.sizes(batch.pk, [SUCCEEDED]) == (0, 0)

    async def test_a_cancelled_one_begins_no_line(self, batches: Batches, clock: Clock) -> None:
        batch = await begun(batches, 2)
        clock.now = NOW + 2
        found = present(await batches.cancel(batch.project, batch.pk))
        assert (found.status, found.times[CANCELLING]) == (CANCELLING, NOW + 2)
        clock.now = NOW + 3
        assert same(await batches.cancel(batch.project, batch.pk), found)
        assert await batches.step(batch, done=[done(1)], after=0, limit=2, max_bytes=1000) == (CANCELLING, ())
        found = await batches.finalize(batch, unrun=CANCELLED, output_file_id="", error_file_id="")
        assert (found.status, found.total, found.completed, found.cancelled) == (CANCELLING, 2, 1, 1)

    async def test_lines_that_come_with_the_request(self, batches: Batches) -> None:
        made = new_batch(status=IN_PROGRESS, total=3)
        await batches.create(made, lines(3))
        batch = await claimed(batches, made)
        _, some = await batches.step(batch, done=[], after=0, limit=9, max_bytes=1000)
        assert [each.number for each in some] == [1, 2, 3]

    async def test_old_ones_are_forgotten(self, batches: Batches, clock: Clock) -> None:
        batch = await begun(batches, 3)
        clock.now = NOW + KEPT_SECONDS + 1
        assert await batches.purge() == 0, "it has not ended"
        await batches.end(batch, COMPLETED)
        assert await batches.purge() >= 1
        assert await batches.get(batch.project, batch.pk) is None
        assert await batches.results(batch.pk, after=0, limit=5, outcomes=[SUCCEEDED]) == ()
