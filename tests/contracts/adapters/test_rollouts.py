"""Roll-outs in memory, on SQLite and on PostgreSQL."""

from collections.abc import AsyncIterator

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from responses_app.models.rollouts import Rollout, RolloutGeneration
from responses_app.stores.database.rollouts.rows import AT_ONCE, GONE
from responses_app.stores.database.rollouts.store import DatabaseRollouts
from tests.contracts.adapters.stores import OnBothCase
from tests.contracts.rollouts import LIMITS, NOW, RolloutsContract, added, call_of, record
from tests.contracts.store import new_id
from tests.kit.memory_rollouts import MemoryRollouts


class TestInMemory(RolloutsContract):
    @pytest.fixture
    def rollouts(self) -> MemoryRollouts:
        return MemoryRollouts(LIMITS, now=lambda: NOW)

    @pytest.fixture
    def other_worker(self, rollouts: MemoryRollouts) -> MemoryRollouts:
        return rollouts


class TestInDatabases(OnBothCase, RolloutsContract):
    @pytest.fixture
    async def rollouts(self, alias: str) -> AsyncIterator[DatabaseRollouts]:
        rollouts = DatabaseRollouts(using=alias, settings=LIMITS, now=lambda: NOW)
        yield rollouts
        await rollouts.aclose()

    @pytest.fixture
    async def other_worker(self, alias: str) -> AsyncIterator[DatabaseRollouts]:
        rollouts = DatabaseRollouts(using=alias, settings=LIMITS, now=lambda: NOW)
        yield rollouts
        await rollouts.aclose()

    async def test_what_was_rolled_back_leaves_nothing(self, alias: str, rollouts: DatabaseRollouts) -> None:
        project = new_id("proj")
        await rollouts.create(record(project))
        await rollouts.keep(added(project, call_of([1], [2, 3], "resp_1")))

        class Broken(Exception):
            pass

        def write() -> None:
            with transaction.atomic(using=alias):
                lost = added(project, call_of([1, 2, 3, 4], [5, 6], "resp_lost"))
                rollouts.keeper.keep(connections[alias], [lost], now=NOW)
                raise Broken

        with pytest.raises(Broken):
            await rollouts._threads.run(lambda _: write())
        await rollouts.keep(added(project, call_of([1, 2, 3, 4, 5, 6], [7, 8], "resp_2")))
        found = await rollouts.generations(project, "task")
        assert found is not None
        assert [(each.call.response_id, each.shared) for each in found] == [("resp_1", 0), ("resp_2", 3)]

    async def test_responses_that_end_at_once_look_its_tokens_up_once(
        self, alias: str, rollouts: DatabaseRollouts, other_worker: DatabaseRollouts
    ) -> None:
        project = new_id("proj")
        await rollouts.create(record(project))
        await other_worker.keep(added(project, call_of([1], [2, 3], "resp_first")))
        ends = [added(project, call_of([1, 2, 3, n], [n, 9], f"resp_{n}")) for n in range(4, 30)]

        def write() -> tuple[int, int]:
            with CaptureQueriesContext(connections[alias]) as queries, transaction.atomic(using=alias):
                rollouts.keeper.keep(connections[alias], [*ends, ends[0]], now=NOW)
            # PostgreSQL is asked by a cursor: DECLARE … CURSOR FOR SELECT.
            asked = [query["sql"] for query in queries if not query["sql"].startswith("INSERT")]
            return sum('"tail"' in sql for sql in asked), len(queries)

        looked_up, statements = await rollouts._threads.run(lambda _: write())
        assert looked_up == 1
        assert statements < len(ends)
        found = await rollouts.generations(project, "task")
        assert found is not None
        assert [each.call.response_id for each in found] == ["resp_first", *(each.response_id for each in ends)]
        assert {(each.parent, each.shared, each.cut) for each in found[1:]} == {(0, 3, "")}

    async def test_a_deletion_that_stopped_half_way_goes_on(self, alias: str, rollouts: DatabaseRollouts) -> None:
        await rollouts.purge()  # of what other tests have left
        project = new_id("proj")
        await rollouts.create(record(project))
        count = AT_ONCE + 50
        for number in range(count):
            await rollouts.keep(added(project, call_of([number], [2, 3], f"resp_{number}")))
        kept = await rollouts.get(project, "task")
        assert kept is not None

        def hide() -> None:
            Rollout.objects.using(alias).filter(pk=kept.id).update(project=GONE, name=kept.id)

        await rollouts._threads.run(lambda _: hide())
        assert await rollouts.purge() == 1
        rows = RolloutGeneration.objects.using(alias).filter(rollout_id=kept.id)
        assert await rollouts._threads.run(lambda _: rows.count()) == 0
        assert await rollouts._threads.run(lambda _: Rollout.objects.using(alias).filter(pk=kept.id).exists()) is False

    async def test_a_small_memory_only_costs_time(self, alias: str) -> None:
        from dataclasses import replace

        rollouts = DatabaseRollouts(using=alias, settings=replace(LIMITS, rollout_memory_bytes=0), now=lambda: NOW)
        project = new_id("proj")
        await rollouts.create(record(project))
        whole = [1]
        for turn in range(4):
            await rollouts.keep(added(project, call_of(whole, [turn, 7], f"resp_{turn}")))
            whole = [*whole, turn, 7]
        found = await rollouts.generations(project, "task")
        await rollouts.aclose()
        assert [each.cut for each in found or ()] == [""] * 4
