"""Places for containers at work: shared between projects, bounded, and never lost."""

import asyncio

import pytest

from responses_app.tools.places import NoPlace, SharedPlaces

PATIENT = 60.0


async def taking(places: SharedPlaces, project: str, times: int = 1) -> "list[asyncio.Task[None]]":
    tasks = [asyncio.create_task(places.take(project)) for _ in range(times)]
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


def had(tasks: "list[asyncio.Task[None]]") -> int:
    return sum(task.done() for task in tasks)


async def test_one_project_leaves_places_for_others() -> None:
    places = SharedPlaces(most=4, share=3, seconds=PATIENT)
    greedy = await taking(places, "greedy", 10)
    assert had(greedy) == 3
    await places.take("modest")
    places.give_back("greedy")
    await asyncio.gather(*greedy[:4])
    assert had(greedy) == 4
    await end(greedy)


async def test_a_free_place_goes_to_the_project_that_has_fewest() -> None:
    places = SharedPlaces(most=2, share=2, seconds=PATIENT)
    greedy = await taking(places, "greedy", 5)
    modest = await taking(places, "modest", 2)
    assert (had(greedy), had(modest)) == (2, 0)
    places.give_back("greedy")
    await modest[0]
    assert (had(greedy), had(modest)) == (2, 1)
    await end([*greedy, *modest])


async def test_who_waits_too_long_or_beside_too_many_is_told_why() -> None:
    places = SharedPlaces(most=2, share=1, seconds=0.01)
    await places.take("p")
    with pytest.raises(NoPlace) as own:
        await places.take("p")
    await places.take("q")
    with pytest.raises(NoPlace) as full:
        await places.take("r")
    assert (own.value.is_own, full.value.is_own) == (True, False)
    patient = SharedPlaces(most=1, share=1, seconds=PATIENT, most_waiting=2)
    waiting = await taking(patient, "p", 3)
    with pytest.raises(NoPlace):
        await patient.take("p")
    assert had(await taking(patient, "q")) == 0  # another project's queue is its own
    await end(waiting)


async def test_who_leaves_keeps_no_place() -> None:
    places = SharedPlaces(most=1, share=1, seconds=PATIENT)
    await places.take("p")
    tasks = [*await taking(places, "p", 3), *await taking(places, "q", 3)]
    places.give_back("p")  # given to one that is cancelled before it runs
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await asyncio.wait_for(places.take("r"), PATIENT)
    places.give_back("r")
    assert not places._taken
    assert not places._waiting


async def end(tasks: "list[asyncio.Task[None]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
