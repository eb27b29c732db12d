"""Requests that end workers: whom a death is blamed on, how innocents are freed, and that all of it is bounded.

A worker is a `Running` on the table that all share; it dies by being left alone.
"""

import asyncio
from collections.abc import Mapping

import pytest

from responses_app.limits import suspects
from responses_app.limits.suspects import (
    CONDEMNED_SECONDS,
    MAX_RUNNING,
    MAX_SUSPECTS,
    SUSPECT_SECONDS,
    TRIAL_SECONDS,
    Holds,
    Name,
    Running,
    Stage,
    SuspectTable,
    Trial,
    Trials,
    after_death,
    name_of,
)
from responses_app.protocol.errors import ApiError

INNOCENT, SUSPECT, ON_TRIAL, PASSED, CONDEMNED = Stage
PLACES = 4


@pytest.mark.parametrize(
    ("there", "then"),
    [
        ({"a": INNOCENT, "b": INNOCENT}, {"a": SUSPECT, "b": SUSPECT}),
        ({"waits": SUSPECT, "b": INNOCENT}, {"waits": SUSPECT, "b": SUSPECT}),
        ({"tried": ON_TRIAL, "passed": PASSED, "b": INNOCENT}, {"tried": CONDEMNED, "passed": SUSPECT, "b": SUSPECT}),
        ({"passed": PASSED, "b": INNOCENT}, {"passed": CONDEMNED, "b": SUSPECT}),
        ({"known": CONDEMNED, "tried": ON_TRIAL}, {"known": CONDEMNED, "tried": CONDEMNED}),
        # Two that were killed from outside must not end all that ran at both.
        ({"a": PASSED, "b": PASSED, "c": SUSPECT}, {"a": SUSPECT, "b": SUSPECT, "c": SUSPECT}),
        ({"a": ON_TRIAL, "b": ON_TRIAL, "c": PASSED}, {"a": SUSPECT, "b": SUSPECT, "c": SUSPECT}),
        ({}, {}),
    ],
)
def test_whom_a_death_is_blamed_on(there: Mapping[str, Stage], then: Mapping[str, Stage]) -> None:
    assert after_death(there) == then


class Cluster:
    """Workers on one table, and a clock that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.table = SuspectTable(bytearray(SuspectTable.size(PLACES)), PLACES)
        self.started = 0
        monkeypatch.setattr(suspects.time, "monotonic", lambda: self.now)

    def worker(self) -> tuple[Running, int]:
        self.started += 1
        running = Running()
        running.attach(self.table, self.started)
        return running, self.started

    def kill(self, number: int) -> dict[Name, Stage]:
        return {each.name: each.stage for each in self.table.died(number, self.now)}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


POISON, OTHERS = name_of("p", b"poison"), [name_of("p", b"%d" % number) for number in range(6)]


# Each request with its ages at its deaths up to this one, in seconds; + where it is taken over, and goes on.
@pytest.mark.parametrize(
    ("running", "condemned"),
    [
        ("poison 0.1 0.1, long 30 12, fresh 3", "poison"),
        ("poison 5 5.2, long 20 7, longer 20 9", "poison"),
        ("poison 5 5.2, tried 20 1", "poison"),
        ("poison 0.1 0.2, beside 2.9 1.6", "poison"),
        ("poison 5 5, beside 5 3", ""),
        ("poison 5 5 5, beside 5 4 3", "poison"),
        ("poison 5 6 5, beside 5 4 3", ""),
        ("poison+ 30 0.1, long 8 12, longer+ 31 9", "poison"),
        ("poison+ 5 5.1, longer+ 31 9", "poison"),
        ("alone 20 7, fresh 2", "alone"),
        ("slow 5 6, long 20 21, longer 20 9", ""),
        ("long 20 7, longer 20 5, tried 30 1, fresh 3", ""),
        ("long+ 20 7, longer+ 20 5, fresh 2", ""),
        ("one 3 3, two 3 3", ""),
    ],
)
async def test_of_several_that_one_is_blamed_which_dies_at_one_age(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, running: str, condemned: str
) -> None:
    monkeypatch.setattr(suspects, "TRIAL_SECONDS", 1e-9)
    worker, number = cluster.worker()
    died_at = cluster.now
    each = [(name, *map(float, ages)) for name, *ages in map(str.split, running.split(", "))]
    for name, *ages in sorted(each, key=lambda one: -one[-1]):  # the oldest first
        key, cluster.now = name.encode().ljust(16), died_at - ages[-1]
        if len(ages) == 1:
            assert worker.begin(Holds(), "p", key)
            continue
        for age in ages[:-1]:
            cluster.table.suspect(key, SUSPECT, "p", cluster.now, age)
        if name.endswith("+"):
            assert worker.hold_again(Holds(), "p", key, lambda: None)
        else:
            await worker.stand_trial(Holds(), "p", key)
        if ages[-1] > 1.5 or name != min(each, key=lambda one: one[-1])[0]:
            cluster.now += 0.001  # by which the event loop goes, too
            await asyncio.sleep(0)
            await asyncio.sleep(0)  # it has passed
    cluster.now = died_at
    found = [name.decode().rstrip(" +") for name, stage in cluster.kill(number).items() if stage is CONDEMNED]
    assert found == ([condemned] if condemned else [])


async def test_who_ends_workers_is_found_at_the_second_death_and_the_others_are_freed(
    cluster: Cluster,
) -> None:
    first, number = cluster.worker()
    for name in (*OTHERS, POISON):
        assert first.begin(Holds(), "p", name)
    assert set(cluster.kill(number).values()) == {SUSPECT}
    # Each client sends its request again; the poison's is the first whose turn it is.
    second, number = cluster.worker()
    assert not any(second.begin(Holds(), "p", name) for name in (POISON, *OTHERS))
    await second.stand_trial(Holds(), "p", POISON)
    waiting = [asyncio.create_task(second.stand_trial(Holds(), "p", name)) for name in OTHERS]
    fresh = name_of("p", b"fresh")
    assert second.begin(Holds(), "p", fresh), "what was at no death need not wait"
    await asyncio.sleep(0)
    assert cluster.kill(number) == {POISON: CONDEMNED, fresh: SUSPECT}
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    third, number = cluster.worker()
    with pytest.raises(ApiError, match="two worker processes") as refused:
        third.begin(Holds(), "p", POISON)
    assert (refused.value.status, refused.value.code) == (503, "request_ends_workers")
    assert not refused.value.helps_to_wait, "a line of a batch is not to come back for it"
    for name in (*OTHERS, fresh):
        holds = Holds()
        await third.stand_trial(holds, "p", name)
        holds.release()
        assert third.begin(holds, "p", name), "it is freed"
        holds.release()
    assert [each.name for each in cluster.table.suspects(cluster.now)] == [POISON]
    assert cluster.kill(number) == {}, "nothing was left running"


@pytest.mark.parametrize(
    ("seconds", "grouped"),
    [
        (TRIAL_SECONDS, [1, 1, 1, 1, 2, 4, 2, 0]),
        (0.5, [1] * 8),  # those that end soon are not beside others before there was time for it
    ],
)
async def test_trials_come_one_at_a_time_then_in_groups_and_alone_again_where_nobody_waits(
    cluster: Cluster, seconds: float, grouped: list[int]
) -> None:
    trials = Trials()
    begun: list[Trial] = []

    async def stand() -> None:
        trial = await trials.wait(lambda: None)
        begun.append(trial)

    waiting = [asyncio.create_task(stand()) for _ in range(12)]
    groups = []
    for _ in range(8):
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # whose turn it is wakes up in the first
        groups.append(len(begun))
        ended, begun = begun, []
        cluster.now += seconds
        for trial in ended:
            trial.end()
    assert groups == grouped
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    alone = trials.begin(lambda: None)
    assert alone is not None
    assert trials.begin(lambda: None) is None
    alone.end()


async def test_who_has_passed_makes_room_and_whose_client_leaves_takes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspects, "TRIAL_SECONDS", 1e-9)
    trials, passed = Trials(), asyncio.Event()
    trials.begin(passed.set)
    left, stays = (asyncio.create_task(trials.wait(lambda: None)) for _ in range(2))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    await stays
    assert passed.is_set()


def test_who_stops_as_told_leaves_nobody_suspected(cluster: Cluster) -> None:
    running, number = cluster.worker()
    running.begin(Holds(), "p", POISON)
    cluster.table.forget(number)
    assert cluster.kill(number) == {}


async def test_one_request_that_is_sent_several_times_is_held_until_the_last_ends(cluster: Cluster) -> None:
    running, number = cluster.worker()
    first, second = Holds(), Holds()
    running.begin(first, "p", POISON)
    running.begin(second, "p", POISON)
    first.release()
    assert cluster.kill(number) == {POISON: SUSPECT}


def test_what_was_noted_has_its_lifetime(cluster: Cluster) -> None:
    table = cluster.table
    table.suspect(POISON, SUSPECT, "p", cluster.now)
    table.suspect(OTHERS[0], CONDEMNED, "p", cluster.now)
    table.suspect(OTHERS[0], SUSPECT, "p", cluster.now)
    assert table.stage(OTHERS[0], cluster.now) == (CONDEMNED, CONDEMNED_SECONDS)
    assert table.stage(POISON, cluster.now + SUSPECT_SECONDS)[0] is INNOCENT
    assert table.stage(OTHERS[0], cluster.now + CONDEMNED_SECONDS)[0] is SUSPECT, "it has one more trial"
    assert table.stage(OTHERS[0], cluster.now + CONDEMNED_SECONDS + SUSPECT_SECONDS)[0] is INNOCENT
    assert table.stage(OTHERS[1], cluster.now)[0] is INNOCENT


def test_it_is_bounded(cluster: Cluster) -> None:
    running, number = cluster.worker()
    for index in range(MAX_RUNNING + 5):
        assert running.begin(Holds(), "p", name_of("p", b"%d" % index))
    assert len(cluster.kill(number)) == MAX_RUNNING
    for index in range(MAX_SUSPECTS):
        cluster.table.suspect(name_of("q", b"%d" % index), SUSPECT, "q" * 100, cluster.now + index)
    found = cluster.table.suspects(cluster.now)
    assert len(found) == MAX_SUSPECTS
    assert {each.project for each in found} <= {"p", "q" * 47}
    assert name_of("q", b"%d" % (MAX_SUSPECTS - 1)) in {each.name for each in found}, "the oldest makes room"


def test_projects_and_contents_are_told_apart() -> None:
    assert len({name_of("p", b"a"), name_of("q", b"a"), name_of("p", b"b")}) == 3
    assert name_of("p", b"a") == name_of("p", b"a")


def test_the_number_of_places_is_known_by_the_size() -> None:
    assert SuspectTable.places_of(SuspectTable.size(28)) == 28
