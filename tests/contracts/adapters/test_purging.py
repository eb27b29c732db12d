"""How much a worker's purges look for, and how often."""

import pytest

from responses_app.kit.errors import StoreError
from responses_app.stores.database.responses.removal import MAX_RESPONSES, PAUSES, PurgePlan, PurgePlans
from tests.kit.clock import Clock


def looked(plans: PurgePlans, clock: Clock, found: PurgePlan, *, seconds: float) -> None:
    with plans.looking() as tell:
        clock.now += seconds
        tell(found)


def test_one_look_is_for_many_purges() -> None:
    clock = Clock(100.0)
    plans = PurgePlans(clock)
    ids = [f"resp_{number}" for number in range(2 * MAX_RESPONSES + 1)]
    assert plans.wants_look
    looked(plans, clock, PurgePlan(ids, 5, more=False), seconds=0.01)
    steps = []
    while not plans.wants_look:
        steps.append(plans.next())
    assert [len(step.response_ids) for step in steps] == [MAX_RESPONSES, MAX_RESPONSES, 1]
    assert [each for step in steps for each in step.response_ids] == ids
    assert [step.more for step in steps] == [True, True, False]


def test_where_there_is_more_it_looks_again_at_once() -> None:
    clock = Clock(100.0)
    plans = PurgePlans(clock)
    looked(plans, clock, PurgePlan(["resp_1"], 5, more=True), seconds=0.01)
    assert plans.next().more
    assert plans.wants_look


def test_after_a_slow_look_there_is_a_pause() -> None:
    clock = Clock(100.0)
    plans = PurgePlans(clock)
    looked(plans, clock, PurgePlan(["resp_1"], 5, more=True), seconds=2.0)
    assert not plans.next().more, "nothing to do for now"
    assert plans.next() == PurgePlan((), 0, more=False)
    clock.now += 2.0 * PAUSES - 1
    assert not plans.wants_look
    clock.now += 1.1
    assert plans.wants_look


def test_after_a_look_that_was_given_up_there_is_a_pause_too() -> None:
    clock = Clock(100.0)
    plans = PurgePlans(clock)

    def give_up() -> None:
        with plans.looking():
            clock.now += 10.0
            raise StoreError("The database did not answer within 10 s.")

    with pytest.raises(StoreError):
        give_up()
    assert not plans.wants_look
    clock.now += 10.0 * PAUSES
    assert plans.wants_look
