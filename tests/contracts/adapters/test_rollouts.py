"""Roll-outs on SQLite and on PostgreSQL."""

from collections.abc import AsyncIterator, Sequence

import pytest
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test.utils import CaptureQueriesContext

from responses_app.kit.clock import utc
from responses_app.models.rollouts import Rollout, RolloutGeneration
from responses_app.stores.database.rollouts import removal
from responses_app.stores.database.rollouts.removal import STEP_ROWS
from responses_app.stores.database.rollouts.rows import GONE, size_of
from responses_app.stores.database.rollouts.store import DatabaseRollouts
from responses_app.stores.rollouts import PurgedRollouts
from tests.contracts.rollouts import LIMITS, NOW, RolloutsContract, added, call_of, kept_of, record
from tests.contracts.store import new_id


def _sizes(connection: BaseDatabaseWrapper, ids: Sequence[str]) -> dict[int, int]:
    """Return the bytes of generations, by their keys."""
    rows = RolloutGeneration.objects.using(connection.alias).filter(rollout_id__in=ids)
    return {row.pk: size_of(row) for row in rows}


class TestInDatabases(RolloutsContract):
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
        found = await kept_of(rollouts, project)
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
        found = await kept_of(rollouts, project)
        assert [each.call.response_id for each in found] == ["resp_first", *(each.response_id for each in ends)]
        assert {(each.parent, each.shared, each.cut) for each in found[1:]} == {(0, 3, "")}

    async def test_a_deletion_that_stopped_half_way_goes_on(self, alias: str, rollouts: DatabaseRollouts) -> None:
        await rollouts.purge()  # of what other tests have left
        project = new_id("proj")
        await rollouts.create(record(project))
        count = STEP_ROWS + 50
        for number in range(count):
            await rollouts.keep(added(project, call_of([number], [2, 3], f"resp_{number}")))
        kept = await rollouts.get(project, "task")
        assert kept is not None

        def hide() -> None:
            Rollout.objects.using(alias).filter(pk=kept.id).update(project=GONE, name=kept.id)

        await rollouts._threads.run(lambda _: hide())
        assert await rollouts.purge() == (1, False)
        rows = RolloutGeneration.objects.using(alias).filter(rollout_id=kept.id)
        assert await rollouts._threads.run(lambda _: rows.count()) == 0
        assert await rollouts._threads.run(lambda _: Rollout.objects.using(alias).filter(pk=kept.id).exists()) is False

    async def test_many_are_removed_in_bounded_steps(
        self, alias: str, rollouts: DatabaseRollouts, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await rollouts.purge()  # of what other tests have left
        steps, remove_some, projects = list[tuple[int, int]](), removal.remove_some, list[str]()
        for number in range(removal.AT_ONCE + 5):
            projects.append(new_id("proj"))
            await rollouts.create(record(projects[-1]))
            prompt = list(range(number * 10 + 1))  # the larger ones have more than a step's bytes alone
            await rollouts.keep(added(projects[-1], *(call_of(prompt, [2], "resp_1", turn) for turn in range(3))))

        def watched(connection: BaseDatabaseWrapper, ids: Sequence[str]) -> bool:
            before = _sizes(connection, ids)
            done = remove_some(connection, ids)
            gone = [before[key] for key in before.keys() - _sizes(connection, ids).keys()]
            steps.append((len(gone), sum(gone)))
            return done

        def grow_old() -> None:
            assert Rollout.objects.using(alias).filter(project__in=projects).update(last_at=utc(1)) == len(projects)

        await rollouts._threads.run(lambda _: grow_old())
        monkeypatch.setattr(removal, "STEP_ROWS", 7)
        monkeypatch.setattr(removal, "STEP_BYTES", 4000)
        monkeypatch.setattr(removal, "remove_some", watched)
        removed, purges, purged = 0, 0, PurgedRollouts(0, more=True)
        while purged.more:
            purged = await rollouts.purge()
            removed, purges = removed + purged.rollouts, purges + 1
        assert removed == len(projects)
        assert 2 < len(steps) <= purges * removal.MAX_STEPS
        assert sum(rows for rows, _ in steps) == 3 * len(projects)
        assert max(rows for rows, _ in steps) == 7
        assert max(size for rows, size in steps if rows > 1) <= 4000
        assert await rollouts.get(projects[0], "task") is None

    async def test_what_is_used_meanwhile_is_not_purged(self, alias: str, rollouts: DatabaseRollouts) -> None:
        await rollouts.purge()  # of what other tests have left
        project = new_id("proj")
        await rollouts.create(record(project, last_at=1))
        await rollouts.keep(added(project, call_of([1], [2, 3], "resp_1")))
        assert await rollouts.purge() == (0, False)
        assert await rollouts.get(project, "task") is not None

    async def test_a_small_memory_only_costs_time(self, alias: str) -> None:
        from dataclasses import replace

        rollouts = DatabaseRollouts(using=alias, settings=replace(LIMITS, rollout_memory_bytes=0), now=lambda: NOW)
        project = new_id("proj")
        await rollouts.create(record(project))
        whole = [1]
        for turn in range(4):
            await rollouts.keep(added(project, call_of(whole, [turn, 7], f"resp_{turn}")))
            whole = [*whole, turn, 7]
        found = await kept_of(rollouts, project)
        await rollouts.aclose()
        assert [each.cut for each in found] == [""] * 4
