"""`Fleet`: which worker is started and stopped when, with time as an argument and no process anywhere."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from responses_app.management.fleet import Action, Fleet, FleetTimes, GiveUp, KillWorker, StartWorker, StopWorker

PACE = FleetTimes(start_seconds=20, leave_seconds=60, grown_seconds=100)


def serving(size: int = 3, *, now: float = 0.0) -> Fleet:
    fleet = Fleet(size, PACE)
    for action in fleet.decide(now):
        assert isinstance(action, StartWorker)
        fleet.ready(action.number, now)
    return fleet


def test_all_are_started_at_once_and_accept_at_once() -> None:
    fleet = Fleet(3, PACE)
    assert fleet.decide(0) == [StartWorker(1, at_once=True), StartWorker(2, at_once=True), StartWorker(3, at_once=True)]
    assert fleet.decide(0) == []
    assert fleet.due() is None, "none is given up while no other serves"
    fleet.ready(2, 1)
    assert fleet.due() == 20


def test_one_that_dies_is_replaced_at_once_by_one_that_waits_until_it_is_ready() -> None:
    fleet = serving()
    assert fleet.ended(2, 50) is False
    assert fleet.decide(50) == [StartWorker(4, at_once=False)]


def test_where_none_serves_the_next_one_accepts_at_once() -> None:
    fleet = serving(1)
    fleet.ended(1, 50)
    assert fleet.decide(50) == [StartWorker(2, at_once=True)]


def test_starts_that_fail_again_and_again_wait_longer_and_longer() -> None:
    fleet = serving(2)
    now, pauses = 100.0, []
    fleet.ended(1, now)
    for number in range(3, 13):
        due = max(now, fleet.due() or 0.0)
        pauses.append(due - now)
        assert due == now or fleet.decide(due - 0.01) == []
        assert fleet.decide(due) == [StartWorker(number, at_once=False)]
        now = due
        fleet.ended(number, now)
    assert pauses == [0, 0, 0.5, 1, 2, 4, 8, 16, 30, 30]
    fleet.decide(now + 30)
    fleet.ready(13, now + 30)
    fleet.decide(now + 41)
    assert fleet.failures == 0
    fleet.ended(13, now + 42)
    assert fleet.decide(now + 42) == [StartWorker(14, at_once=False)]


def test_where_none_can_be_started_it_gives_up() -> None:
    fleet, now, starts = Fleet(2, PACE), 0.0, 0
    while not fleet.stopping:
        assert now < 10
        for action in fleet.decide(now):
            if isinstance(action, StartWorker):
                starts += 1
                fleet.ended(action.number, now)
            else:
                assert action == GiveUp()
        now += 0.1
    assert starts in (5, 6)
    assert fleet.decide(now) == []


@pytest.mark.parametrize("others", [True, False], ids=["others serve", "none serves"])
@pytest.mark.parametrize("is_ready", [True, False], ids=["they serve, and die", "they never serve"])
def test_once_one_was_ready_it_goes_on_however_often_workers_die(others: bool, is_ready: bool) -> None:
    fleet, now, pauses = serving(2), 100.0, list[float]()
    for number in (1,) if others else (1, 2):
        fleet.ended(number, now)
    for _ in range(30):
        pauses.append(fleet.pause(now))
        now = max(now, fleet.due() or now)
        for action in fleet.decide(now):
            assert isinstance(action, StartWorker)
            if is_ready:
                fleet.ready(action.number, now)
                assert fleet.served(action.number, now + 1) == 1
            fleet.ended(action.number, now + 1)
        now += 1
    assert not fleet.stopping
    assert pauses == sorted(pauses), "they grow"
    assert pauses[-1] == fleet.pace.longest_pause


def test_they_are_replaced_one_after_the_other_the_new_one_first() -> None:
    fleet = serving(2)
    fleet.replace_all()
    assert fleet.decide(10) == [StartWorker(3, at_once=False)]
    assert fleet.decide(11) == []
    fleet.ready(3, 12)
    assert fleet.decide(12) == [StopWorker(1), StartWorker(4, at_once=False)]
    assert fleet.decide(13) == []
    fleet.ready(4, 14)
    assert fleet.decide(14) == [StopWorker(2)], "whether the first has ended or not"
    assert (fleet.marked, fleet.serving, fleet.rolled_back) == ([], [3, 4], False)
    assert fleet.ended(1, 15) is True
    assert fleet.ended(2, 16) is True
    assert fleet.decide(16) == []


def test_a_replacement_that_does_not_come_to_serve_ends_the_roll() -> None:
    fleet = serving(2)
    fleet.replace_all()
    fleet.decide(50)
    fleet.ended(3, 51)
    assert (fleet.decide(51), fleet.marked, fleet.serving, fleet.rolled_back) == ([], [], [1, 2], True)


def test_one_that_dies_in_its_start_while_it_is_to_be_replaced_does_not_end_the_roll() -> None:
    fleet = Fleet(2, PACE)
    fleet.decide(0)
    fleet.ready(2, 1)
    fleet.replace_all()
    assert fleet.decide(1) == [], "the first one still starts"
    fleet.ended(1, 5)
    assert (fleet.marked, fleet.rolled_back) == ([2], False)
    assert fleet.decide(5) == [StartWorker(3, at_once=False)]
    fleet.ready(3, 6)
    assert fleet.decide(6) == [StartWorker(4, at_once=False)]
    fleet.ready(4, 7)
    assert (fleet.decide(7), fleet.marked) == ([StopWorker(2)], [])


def test_no_two_workers_have_one_place_however_often_one_of_them_is_started_again() -> None:
    fleet = serving(2)
    fleet.places = 5
    fleet.ended(2, 0.0)
    for turn in range(1, 40):
        now = 100.0 * turn
        (started,) = fleet.decide(now)
        assert isinstance(started, StartWorker)
        assert started.number % 5 != 1, "the place of the first one, which serves on"
        fleet.ended(started.number, now)
    fleet.places = 1
    assert fleet.decide(now + 100), "no place is free: it is started all the same"


def test_a_replacement_that_hangs_is_killed_and_ends_the_roll() -> None:
    fleet = serving(2)
    fleet.replace_all()
    fleet.decide(50)
    assert fleet.due() == 70
    assert fleet.decide(69.9) == []
    assert fleet.decide(70) == [KillWorker(3)]
    assert fleet.decide(71) == []
    fleet.ended(3, 71)
    assert (fleet.decide(71), fleet.rolled_back) == ([], True)


def test_one_that_dies_while_others_are_replaced_is_replaced_first() -> None:
    fleet = serving(2)
    fleet.replace_all()
    fleet.decide(50)
    fleet.ended(2, 51)
    fleet.ready(3, 52)
    assert fleet.decide(52) == [StartWorker(4, at_once=False)]
    fleet.ready(4, 53)
    assert fleet.decide(53) == [StopWorker(1)]
    assert fleet.marked == []


def test_replacing_begins_anew_where_it_is_asked_for_again() -> None:
    fleet = serving(1)
    fleet.replace_all()
    fleet.decide(50)
    fleet.replace_all()
    fleet.ready(2, 51)
    assert fleet.decide(51) == [StopWorker(1), StartWorker(3, at_once=False)]
    fleet.ready(3, 52)
    assert fleet.decide(52) == [StopWorker(2)]


def test_one_that_has_grown_is_replaced_once_it_has_served_for_some_time() -> None:
    fleet = serving(2)
    assert fleet.grown(1, 99) is False
    assert fleet.grown(1, 100) is True
    assert fleet.grown(1, 101) is False, "it is marked already"
    assert fleet.decide(101) == [StartWorker(3, at_once=False)]
    assert fleet.grown(3, 300) is False, "it does not serve yet"


def test_one_that_is_silent_while_it_serves_is_killed_and_replaced() -> None:
    fleet = Fleet(2, FleetTimes(silence_seconds=30))
    fleet.decide(0)
    assert fleet.due() is None, "one that starts need not be heard of"
    fleet.ready(1, 40)
    fleet.ready(2, 41)
    for now in (50, 60, 70):
        fleet.heard(2, now)
        assert fleet.due() == 70
        assert fleet.decide(now) == ([KillWorker(1, hangs=True)] if now == 70 else [])
    assert fleet.decide(71) == []
    fleet.ended(1, 71)
    assert fleet.decide(71) == [StartWorker(3, at_once=False)]


def test_nobody_is_to_blame_for_the_silence_while_the_supervisor_stood_still() -> None:
    fleet = Fleet(1, FleetTimes(silence_seconds=30))
    fleet.decide(0)
    fleet.ready(1, 0)
    fleet.stood_still(1000)
    assert fleet.decide(1000) == []
    assert fleet.due() == 1030
    assert fleet.decide(1030) == [KillWorker(1, hangs=True)]


def test_none_is_late_while_what_all_need_to_start_is_not_there() -> None:
    fleet = serving(2)
    fleet.ended(2, 50)
    fleet.decide(50)
    fleet.wait()
    assert fleet.due() is None
    assert fleet.decide(500) == []
    fleet.go_on(500)
    assert fleet.due() == 520
    assert fleet.decide(520) == [KillWorker(3)]


def test_all_stop_and_none_is_started_again() -> None:
    fleet = serving(2)
    fleet.ended(1, 50)
    fleet.decide(50)
    fleet.stop()
    assert fleet.decide(51) == [StopWorker(2), StopWorker(3)]
    assert fleet.due() == 111
    assert fleet.ended(3, 52) is True
    assert fleet.decide(110) == []
    assert fleet.decide(111) == [KillWorker(2)]
    assert fleet.due() is None
    fleet.ended(2, 112)
    assert (fleet.decide(113), len(fleet)) == ([], 0)


class _World:
    """Workers that do what chance wants, and a look at the fleet after each step."""

    def __init__(self, size: int) -> None:
        self.fleet = Fleet(size, PACE)
        self.now = 0.0
        self.starting: list[int] = []
        self.serving: list[int] = []
        self.leaving: list[int] = []
        self.killed: list[int] = []

    def decide(self) -> None:
        before = len(self.serving)
        for action in self.fleet.decide(self.now):
            self._do(action)
            if isinstance(action, StopWorker) and not self.fleet.stopping:
                assert len(self.serving) >= self.fleet.size
        for number in self.killed:
            self.end(number)
        if self.killed:
            self.killed.clear()
            self.decide()
        assert len(self.starting) + len(self.serving) <= self.fleet.size + 1
        assert len(self.serving) >= min(before, self.fleet.size) or self.fleet.stopping
        assert not [action for action in self.fleet.decide(self.now) if not isinstance(action, GiveUp)], "all was begun"

    def _do(self, action: Action) -> None:
        match action:
            case StartWorker(number):
                self.starting.append(number)
            case StopWorker(number):
                for group in (self.starting, self.serving):
                    if number in group:
                        group.remove(number)
                self.leaving.append(number)
            case KillWorker(number):
                self.killed.append(number)

    def ready(self, number: int) -> None:
        self.starting.remove(number)
        self.serving.append(number)
        self.fleet.ready(number, self.now)

    def end(self, number: int) -> None:
        for group in (self.starting, self.serving, self.leaving):
            if number in group:
                group.remove(number)
        self.fleet.ended(number, self.now)

    def calm_down(self) -> None:
        """Let every start work, until there is nothing more to do."""
        for _ in range(2 * self.fleet.size + 10):
            self.now += 31
            self.decide()
            for number in list(self.starting):
                self.ready(number)
            for number in list(self.leaving):
                self.end(number)
            self.decide()


def _pick(group: list[int], chance: int) -> int | None:
    return group[chance % len(group)] if group else None


STEPS: dict[str, Callable[[_World, int], None]] = {
    "ready": lambda world, chance: world.ready(n) if (n := _pick(world.starting, chance)) else None,
    "die": lambda world, chance: world.end(n) if (n := _pick(world.starting + world.serving, chance)) else None,
    "leave": lambda world, chance: world.end(n) if (n := _pick(world.leaving, chance)) else None,
    "roll": lambda world, chance: world.fleet.replace_all(),
    "grow": lambda world, chance: (
        world.fleet.grown(n, world.now) and None if (n := _pick(world.serving, chance)) else None
    ),
    "time": lambda world, chance: setattr(world, "now", world.now + chance),
}


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 4), st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 70)), max_size=60))
def test_whatever_happens_there_is_at_most_one_too_many_and_in_the_end_none_too_few(
    size: int, steps: list[tuple[str, int]]
) -> None:
    world = _World(size)
    world.decide()
    for name, chance in steps:
        STEPS[name](world, chance)
        world.decide()
        if world.fleet.stopping:
            return
    world.calm_down()
    assert (len(world.serving), world.fleet.marked, world.starting, world.leaving) == (size, [], [], [])
