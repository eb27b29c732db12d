"""What is kept of calls, so that they are made once: how much, and of whom."""

import asyncio

from responses_app.extensions.containers.sandbox.living import KeptBytes, KeptCalls
from responses_app.extensions.containers.sandbox.records import CellEnd, CellRun, Execution, Image

RUNS: list[str] = []


async def made(calls: KeptCalls, key: str, size: int = 0) -> int:
    """Make a call that shows an image of so many bytes; return how many bytes of images came."""

    async def run() -> CellRun:
        RUNS.append(key)
        images = [Image("image/png", bytes(size))] if size else []
        return CellRun(Execution("output", CellEnd.DONE, images=images), [], None)

    done = await calls.once(key, run)
    await asyncio.sleep(0)  # it is counted by a callback
    return sum(len(each.content) for each in done.execution.images)


async def test_what_is_kept_of_all_containers_is_bounded_and_the_largest_goes_first() -> None:
    RUNS.clear()
    kept = KeptBytes(1000)
    one, *others = (KeptCalls(kept) for _ in range(10))
    assert await made(one, "small") == 0
    for other in others:
        assert await made(other, "large", 600) == 600
        assert kept.used <= 1000
    assert await made(one, "small") == 0
    assert RUNS.count("small") == 1, "those with images did not take its place"
    assert RUNS.count("large") == len(others)


async def test_what_is_larger_than_all_that_is_kept_comes_to_who_asks_and_is_not_kept() -> None:
    kept = KeptBytes(1000)
    calls = KeptCalls(kept)
    assert await made(calls, "huge", 2000) == 2000
    assert kept.used == 0


async def test_nothing_is_kept_of_a_container_that_has_ended() -> None:
    kept = KeptBytes(1000)
    calls = KeptCalls(kept)
    for number in range(7):
        await made(calls, f"call {number}", 10)
    assert 0 < kept.used <= 5 * 16
    await calls.aclose()
    assert kept.used == 0
