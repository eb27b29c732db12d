"""The store of roll-outs, on SQLite and on PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test.utils import CaptureQueriesContext

from engine.formats.base import as_tokens
from engine.types import WeightsSpan
from responses_app.kit.clock import utc
from responses_app.protocol.rollouts.generations import (
    EngineCall,
    Generation,
    Recorded,
    RecordedResponse,
    Times,
    as_logprobs,
)
from responses_app.protocol.rollouts.requests import MAX_REWARDS, RewardObject, RolloutRef, RolloutSettings
from responses_app.resources.rollouts import removal
from responses_app.resources.rollouts.fields import (
    PurgedRollouts,
    RolloutExists,
    RolloutRecord,
    RolloutsFull,
    TooManyRewards,
)
from responses_app.resources.rollouts.model import Rollout, RolloutGeneration
from responses_app.resources.rollouts.removal import STEP_ROWS
from responses_app.resources.rollouts.rows import GONE, size_of
from responses_app.resources.rollouts.store import RolloutStore
from tests.contracts.store import UNTAMED, new_id, present

TTL, NOW, MOST = 100.0, 10_000.0, 5
LIMITS = RolloutSettings(rollout_ttl=TTL, rollouts_max_entries=MOST)


def record(project: str, name: str = "task", **fields: object) -> RolloutRecord:
    """Return a new roll-out."""
    made = {"id": new_id("rollout"), "project": project, "name": name, "created_at": int(NOW), "last_at": int(NOW)}
    return RolloutRecord(**{**made, **fields})  # type: ignore[arg-type]


def call_of(prompt: Sequence[int], sampled: Sequence[int], response_id: str, turn: int = 0) -> Recorded:
    """Return a call of the engine, with all that can be said of one."""
    call = EngineCall(
        response_id=response_id,
        api="chat",
        branch="a/b",
        agent="/root/helper",
        turn=turn,
        sampled=as_tokens(sampled),
        logprobs=as_logprobs([-0.1 * token for token in sampled]),
        tops=[[(token, -0.5), (1, float("-inf"))] for token in sampled],
        finish="stop",
        times=Times(1, 2, 3, 4),
        weights=[WeightsSpan(None, 1), WeightsSpan("v2", len(sampled) - 1)],
        sampling={"temperature": 0.5},
        grammar=False,
        images=[(0, "ab" * 32)],
        compacted=True,
        reasoning=1,
        instructions=2,
        dropped=3,
        vocabulary="harmony",
    )
    return Recorded(call, as_tokens(prompt))


def added(project: str, *calls: Recorded, name: str = "task", own: str = "") -> RecordedResponse:
    """Return what a response adds; `own` is the id of its roll-out, where that is known."""
    response_id = calls[0].call.response_id
    rollout = RolloutRef(name, id=own)
    return RecordedResponse(project=project, rollout=rollout, response_id=response_id, model="m", calls=calls)


async def kept_of(rollouts: RolloutStore, project: str) -> Sequence[Generation]:
    """Return all that is kept of the roll-out `task`."""
    made = await rollouts.get(project, "task")
    found = present(None if made is None else await rollouts.generations(made))
    return found


def _sizes(connection: BaseDatabaseWrapper, ids: Sequence[str]) -> dict[int, int]:
    """Return the bytes of generations, by their keys."""
    rows = RolloutGeneration.objects.using(connection.alias).filter(rollout_id__in=ids)
    return {row.pk: size_of(row) for row in rows}


@pytest.fixture
async def rollouts(alias: str) -> AsyncIterator[RolloutStore]:
    rollouts = RolloutStore(using=alias, settings=LIMITS, now=lambda: NOW)
    yield rollouts
    await rollouts.aclose()


other_worker = rollouts


async def test_it_comes_back_as_it_was(rollouts: RolloutStore) -> None:
    project = new_id("proj")
    made = record(
        project,
        group="a/b c",
        metadata={"a": UNTAMED},
        sampling={"seed": 2**60},
        weights_wanted="w",
        max_staleness=2,
    )
    await rollouts.create(made)
    await rollouts.create(made)  # tried again: its answer got lost
    assert await rollouts.get(project, "task") == made
    assert await rollouts.get(new_id("proj"), "task") is None
    assert await rollouts.get(project, "\0") is None
    assert not await rollouts.listed(project, after=None, limit=1, group="\0")
    assert not await rollouts.delete(project, "\0")
    assert await rollouts.end(project, "\0", at=1) is None
    with pytest.raises(RolloutExists):
        await rollouts.create(record(project))
    assert await rollouts.generations(made) == []


async def test_generations_come_back_to_the_bit(rollouts: RolloutStore) -> None:
    project = new_id("proj")
    await rollouts.create(record(project))
    first = added(project, call_of([1, 2], [3, 4], "resp_1"), call_of([1, 2, 3, 4, 5], [6, 1 << 25], "resp_1", 1))
    await rollouts.keep(first)
    await rollouts.keep(first)  # tried again
    await rollouts.keep(added(project, call_of([1, 9], [8], "resp_2")))
    found = await kept_of(rollouts, project)
    assert [each.number for each in found] == [0, 1, 2]
    assert [each.call for each in found[:2]] == [each.call for each in first.calls]
    assert [(each.parent, each.shared, each.cut) for each in found] == [
        (None, 0, ""),
        (0, 4, ""),
        (0, 1, "instructions_changed"),
    ]
    assert [each.tail.tolist() for each in found] == [[1, 2], [5], [9]]
    assert await rollouts.has(project, "task", "resp_2")
    for asked in [("task", "resp_3"), ("task", "\0"), ("other", "resp_2"), ("\0", "resp_2")]:
        assert not await rollouts.has(project, *asked)
    assert not await rollouts.has(new_id("proj"), "task", "resp_2")
    kept = present(await rollouts.get(project, "task"))
    assert (kept.generations, kept.prompt_tokens, kept.sampled_tokens, kept.model) == (3, 4, 5, "m")
    assert kept.bytes > 0
    assert kept.versions == ("v2",)


async def test_nothing_is_kept_of_one_that_is_gone(rollouts: RolloutStore) -> None:
    project = new_id("proj")
    await rollouts.keep(added(project, call_of([1], [2, 3], "resp_1")))
    assert await rollouts.get(project, "task") is None
    await rollouts.create(record(project))
    await rollouts.keep(added(project, call_of([1], [2, 3], "resp_1")))
    assert await rollouts.delete(project, "task")
    assert not await rollouts.delete(project, "task")
    await rollouts.keep(added(project, call_of([1], [2, 3], "resp_2")))
    await rollouts.create(record(project))
    assert await kept_of(rollouts, project) == []


async def test_what_was_begun_in_one_that_is_gone_is_not_kept_in_another_with_its_name(rollouts: RolloutStore) -> None:
    project = new_id("proj")
    before, after = record(project), record(project)
    await rollouts.create(before)
    assert await rollouts.delete(project, "task")
    await rollouts.create(after)
    for _ in range(2):  # behind nothing, and behind what was kept
        await rollouts.keep(added(project, call_of([1], [2, 3], "resp_before"), own=before.id))
        await rollouts.keep(added(project, call_of([1], [4, 5], "resp_after"), own=after.id))
    assert [each.call.response_id for each in await kept_of(rollouts, project)] == ["resp_after"]


async def test_generations_are_those_of_the_moment_at_which_it_was_read(rollouts: RolloutStore) -> None:
    project = new_id("proj")
    await rollouts.create(record(project))
    await rollouts.keep(added(project, call_of([1], [2, 3], "resp_1")))
    read = present(await rollouts.get(project, "task"))
    await rollouts.keep(added(project, call_of([1, 2, 3], [4, 5], "resp_2")))
    found = await rollouts.generations(read)
    assert [each.call.response_id for each in found or ()] == ["resp_1"]
    assert await rollouts.delete(project, "task")
    assert await rollouts.generations(read) is None
    await rollouts.create(record(project))
    assert await rollouts.generations(read) is None, "another one has its name"


async def test_workers_place_what_they_add_behind_each_other(
    rollouts: RolloutStore, other_worker: RolloutStore
) -> None:
    project = new_id("proj")
    await rollouts.create(record(project))
    whole: list[int] = [1]
    for turn in range(12):
        worker = rollouts if turn % 3 else other_worker
        await worker.keep(added(project, call_of(whole, [turn, 7], f"resp_{turn}")))
        whole = [*whole, turn, 7, 100 + turn]
    found = await kept_of(rollouts, project)
    assert [each.cut for each in found] == [""] * 12
    assert [each.parent for each in found[1:]] == list(range(11))
    assert sum(len(each.tail) for each in found) == 12


async def test_many_at_once(rollouts: RolloutStore, other_worker: RolloutStore) -> None:
    project = new_id("proj")
    await rollouts.create(record(project))
    await rollouts.keep(added(project, call_of([1], [2, 3], "resp_first")))
    adds = [added(project, call_of([1, 2, 3, n], [n, n], f"resp_{n}")) for n in range(20)]
    await asyncio.gather(*((rollouts, other_worker)[n % 2].keep(each) for n, each in enumerate(adds)))
    found = await kept_of(other_worker, project)
    assert [each.number for each in found] == list(range(21))
    assert {(each.parent, each.shared, each.cut) for each in found[1:]} == {(0, 3, "")}


async def test_rewards_and_the_end(rollouts: RolloutStore) -> None:
    project = new_id("proj")
    await rollouts.create(record(project))
    rewards: list[RewardObject] = [
        {"reward": 0.1 + 0.2, "turn": None, "at": int(NOW)},
        {"reward": {"a": -1e300}, "turn": "resp_1", "at": int(NOW)},
    ]
    for reward in rewards:
        kept = await rollouts.add_reward(project, "task", reward)
    assert kept is not None
    assert list(kept.rewards) == rewards
    for at in (int(NOW), int(NOW) + 5):
        ended = present(await rollouts.end(project, "task", at=at))
        assert ended.ended_at == int(NOW)
    assert await rollouts.add_reward(project, "nobody", rewards[0]) is None
    assert await rollouts.end(project, "nobody", at=1) is None


async def test_rewards_are_bounded_by_their_numbers(rollouts: RolloutStore) -> None:
    project = new_id("proj")
    await rollouts.create(record(project))
    named: RewardObject = {"reward": dict.fromkeys(map(str, range(MAX_REWARDS - 1)), 1.0), "turn": None, "at": 1}
    one: RewardObject = {"reward": 1.0, "turn": None, "at": 1}
    await rollouts.add_reward(project, "task", named)
    await rollouts.add_reward(project, "task", one)
    with pytest.raises(TooManyRewards):
        await rollouts.add_reward(project, "task", one)


async def test_lists(rollouts: RolloutStore) -> None:
    project = new_id("proj")
    for number in range(MOST):
        made = {"id": f"{project}_{number}", "group": "odd" if number % 2 else None}
        await rollouts.create(record(project, f"task-{number}", **made))
    with pytest.raises(RolloutsFull):
        await rollouts.create(record(project, "one-more"))
    names = [each.name for each in await rollouts.listed(project, after=None, limit=10)]
    assert names == [f"task-{number}" for number in reversed(range(MOST))]
    page = await rollouts.listed(project, after=f"{project}_1", limit=2, descending=False)
    assert [each.name for each in page] == ["task-2", "task-3"]
    odd = await rollouts.listed(project, after=None, limit=10, group="odd")
    assert [each.name for each in odd] == ["task-3", "task-1"]
    assert await rollouts.delete(project, "task-3")
    page = await rollouts.listed(project, after=f"{project}_3", limit=2)
    assert [each.name for each in page] == ["task-2", "task-1"], "where one that is gone was"
    assert await rollouts.listed(new_id("proj"), after=None, limit=2) == []


async def test_a_purge_takes_what_is_past_its_time(rollouts: RolloutStore) -> None:
    await rollouts.purge()  # of what other tests have left
    project = new_id("proj")
    await rollouts.create(record(project, "old", created_at=1, last_at=1))
    await rollouts.create(record(project, "young", last_at=int(NOW - TTL) + 1))
    assert await rollouts.purge() == (1, False)
    assert await rollouts.get(project, "old") is None
    assert await rollouts.get(project, "young") is not None
    assert await rollouts.purge() == (0, False)


async def test_what_was_rolled_back_leaves_nothing(alias: str, rollouts: RolloutStore) -> None:
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
    alias: str, rollouts: RolloutStore, other_worker: RolloutStore
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


async def test_a_deletion_that_stopped_half_way_goes_on(alias: str, rollouts: RolloutStore) -> None:
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
    alias: str, rollouts: RolloutStore, monkeypatch: pytest.MonkeyPatch
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


async def test_what_is_used_meanwhile_is_not_purged(alias: str, rollouts: RolloutStore) -> None:
    await rollouts.purge()  # of what other tests have left
    project = new_id("proj")
    await rollouts.create(record(project, last_at=1))
    await rollouts.keep(added(project, call_of([1], [2, 3], "resp_1")))
    assert await rollouts.purge() == (0, False)
    assert await rollouts.get(project, "task") is not None


async def test_a_small_memory_only_costs_time(alias: str) -> None:
    rollouts = RolloutStore(using=alias, settings=replace(LIMITS, rollout_memory_bytes=0), now=lambda: NOW)
    project = new_id("proj")
    await rollouts.create(record(project))
    whole = [1]
    for turn in range(4):
        await rollouts.keep(added(project, call_of(whole, [turn, 7], f"resp_{turn}")))
        whole = [*whole, turn, 7]
    found = await kept_of(rollouts, project)
    await rollouts.aclose()
    assert [each.cut for each in found] == [""] * 4
