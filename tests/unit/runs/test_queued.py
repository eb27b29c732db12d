"""Responses that wait for the engine: they say so, and end, stop and go on as any other."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from responses_app.protocol.errors import ApiError
from responses_app.protocol.requests.resources import Status
from responses_app.protocol.response.steps import StopReason
from responses_app.protocol.tiers import QueueBounds
from responses_app.runs.queues.turns import FairTurns
from responses_app.stores.base import StoreError
from tests.kit.fakes import ANSWER, FakeEngine, FakeOthers, Reading, Site
from tests.kit.laws import assert_laws
from tests.kit.waiting import eventually
from tests.unit.runs.readers import Failing, id_of, idle


def full(*, waiting: int = 10, **parts: object) -> tuple[Site, asyncio.Event]:
    """Return a server whose engine does one turn at a time, and an event that the first turn waits for."""
    held = asyncio.Event()
    turns = FairTurns(max_running=1, bounds=QueueBounds(waiting))
    return Site(FakeEngine([[held, ANSWER], ANSWER]), turns=turns, **parts), held  # type: ignore[arg-type]


async def waiting(site: Site, fields: Mapping[str, object] = {}) -> tuple[Reading, Reading]:
    """Begin a response that has the engine, and one that waits for it."""
    first = await site.begin(input="first")
    await asyncio.wait_for(site.engine.waits.wait(), 5)
    return first, await site.begin(**{"input": "second", **fields})


def types(reading: Reading) -> list[str]:
    reading.take()
    return [str(event["type"]).removeprefix("response.") for event in reading.events[:3]]


@pytest.mark.parametrize("store", [True, False])
async def test_it_says_so_and_says_when_it_runs(store: bool) -> None:
    site, held = full()
    first, second = await waiting(site, {"store": store})
    assert types(first) == ["created", "in_progress"]
    assert types(second) == ["created", "queued"]
    assert second.reader.source.status is Status.QUEUED
    assert second.reader.source.response()["status"] == "queued"
    held.set()
    for each in (first, second):
        await each.to_the_end()
        assert_laws(each.events)
    assert types(second) == ["created", "queued", "in_progress"]
    assert second.events[-1]["response"]["status"] == "completed"  # type: ignore[index]
    assert (site.turns.running, site.turns.waiting.total()) == (0, 0)


async def test_one_that_has_not_to_wait_says_nothing_of_it() -> None:
    site, held = full()
    held.set()
    for _ in range(3):
        reading = await site.begin(input="hi")
        await reading.to_the_end()
        assert types(reading) == ["created", "in_progress", "output_item.added"]


async def test_in_the_background_it_stays_queued_until_the_engine_has_a_turn() -> None:
    site, held = full()
    first, second = await waiting(site, {"background": True})
    await eventually(lambda: site.turns.waiting.total() == 1)
    assert types(second) == ["created", "queued"]
    held.set()
    await second.to_the_end()
    await first.to_the_end()
    assert types(second) == ["created", "queued", "in_progress"]


async def test_who_asks_another_worker_reads_that_it_is_queued_and_then_that_it_runs() -> None:
    site, held = full()
    _, second = await waiting(site)
    other = Site(store=site.store, worker="other")

    async def status() -> str:
        return str((await other.responses.response("default", id_of(second)))["status"])

    assert await status() == "queued"
    go_on = asyncio.Event()
    site.engine.turns[1] = [go_on, ANSWER]
    held.set()
    await second.until("response.in_progress")
    for _ in range(5):
        await asyncio.sleep(0)
    assert await status() == "in_progress"
    go_on.set()
    await second.to_the_end()
    assert await status() == "completed"


async def test_one_that_need_not_wait_any_more_once_it_is_kept_is_not_left_as_queued() -> None:
    site, held = full()
    first = await site.begin(input="first")
    await asyncio.wait_for(site.engine.waits.wait(), 5)
    accept = site.store.accept

    async def slowly(*args: Any, **options: Any) -> None:
        await accept(*args, **options)
        held.set()
        await first.to_the_end()

    site.store.accept = slowly  # type: ignore[method-assign]
    go_on = asyncio.Event()
    site.engine.turns[1] = [go_on, ANSWER]
    second = await site.begin(input="second")
    assert types(second) == ["created", "in_progress"]
    other = Site(store=site.store, worker="other")

    async def is_told_to_run() -> bool:
        return (await other.responses.response("default", id_of(second)))["status"] == "in_progress"

    await eventually(is_told_to_run)
    go_on.set()
    await second.to_the_end()


async def test_one_that_another_worker_took_over_leaves_nothing_that_notes_its_start() -> None:
    site, held = full()
    _, second = await waiting(site)
    began, gone = asyncio.Event(), asyncio.Event()

    async def hangs(*_: object) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()

    site.store.begin = hangs  # type: ignore[method-assign]
    site.engine.turns[1] = [asyncio.Event()]
    held.set()
    await asyncio.wait_for(began.wait(), 5)
    site.registry.lose(id_of(second))
    await idle(site)
    await asyncio.wait_for(gone.wait(), 5)


@pytest.mark.parametrize("problem", [StoreError("away"), RuntimeError("a bug of the store")])
async def test_a_store_that_is_away_meanwhile_does_not_keep_it_from_answering(problem: Exception) -> None:
    site, held = full()
    _, second = await waiting(site)
    failing = Failing(site.store, "begin", 1, problem)
    held.set()
    assert (await second.to_the_end())[-1]["type"] == "response.completed"
    assert failing.left == 0


@pytest.mark.parametrize(
    ("reason", "end"),
    [
        (StopReason.CANCELLED, ("cancelled", None)),
        (StopReason.STEERED, ("incomplete", "steered")),
        (StopReason.INTERRUPTED, ("incomplete", "interrupted")),
        (StopReason.DISCARDED, ("incomplete", "interrupted")),
    ],
)
async def test_it_can_be_stopped_and_gives_up_its_place(reason: StopReason, end: tuple[str, str | None]) -> None:
    site, held = full()
    first, second = await waiting(site, {"transport": "websocket"})
    assert second.run.stop(reason)
    await second.to_the_end()
    assert_laws(second.events)
    response = second.events[-1]["response"]
    details = response["incomplete_details"]  # type: ignore[index]
    assert (response["status"], details and details["reason"]) == end  # type: ignore[index]
    assert site.turns.waiting.total() == 0
    held.set()
    await first.to_the_end()
    assert len(site.engine.requests) == 1
    if end[0] == "incomplete":
        await site.ask(input="and", previous_response_id=id_of(second))


async def test_a_client_that_leaves_gives_up_its_place() -> None:
    site, held = full(waiting=1)
    first, second = await waiting(site)
    with pytest.raises(ApiError, match="ENGINE_MAX_QUEUED"):
        await site.begin(input="third")
    second.leave()
    await eventually(lambda: not site.turns.waiting)
    third = await site.begin(input="third")
    held.set()
    assert (await third.to_the_end())[-1]["type"] == "response.completed"
    await first.to_the_end()
    assert len(site.engine.requests) == 2


async def test_what_is_refused_by_a_limit_or_the_store_keeps_no_place() -> None:
    site, held = full(waiting=1)
    await site.begin(input="first")
    await asyncio.wait_for(site.engine.waits.wait(), 5)
    site.store.failure = StoreError("away")
    for _ in range(3):
        with pytest.raises(ApiError, match="again"):
            await site.begin(input="second")
    site.store.failure = None
    second = await site.begin(input="second")
    held.set()
    await second.to_the_end()


async def test_a_warm_up_waits_without_a_word_and_not_at_all_where_there_is_nothing_to_warm() -> None:
    site, held = full()
    _, second = await waiting(site, {"generate": False})
    assert types(second) == ["created"]
    assert second.reader.source.response()["status"] == "in_progress"
    site.engine.supports_prefill = False
    third = await site.begin(input="third", generate=False)
    assert [event["type"] for event in await third.to_the_end()] == ["response.created", "response.completed"]
    held.set()
    assert [event["type"] for event in await second.to_the_end()] == ["response.created", "response.completed"]


async def test_a_server_that_stops_lets_it_fail_so_that_its_client_asks_again() -> None:
    site, _ = full()
    _, second = await waiting(site)
    await site.registry.aclose()
    await second.to_the_end()
    assert_laws(second.events)
    assert second.events[-1]["type"] == "response.failed"
    assert (second.reader.source.problem.status, second.reader.source.problem.retry_after) == (503, 2)
    assert (site.turns.running, site.turns.waiting.total()) == (0, 0)


async def test_a_background_response_that_waits_goes_on_waiting_on_another_worker() -> None:
    others = FakeOthers()
    site, held = full(worker="first", others=others)
    _, second = await waiting(site, {"background": True})
    await eventually(lambda: site.turns.waiting.total() == 1)
    await site.registry.aclose()
    heir, busy = full(worker="heir", others=others, store=site.store)
    running = await heir.begin(input="has the engine there")
    await asyncio.wait_for(heir.engine.waits.wait(), 5)
    orphans = await site.store.reclaim("heir", dead_before=float("inf"))
    [accepted] = orphans.claimed
    await heir.service.run_again(accepted)
    reading = await heir.follow(id_of(second), starting_after=None)
    await eventually(lambda: heir.turns.waiting.total() == 1)
    assert types(reading) == ["created", "queued"]
    busy.set()
    held.set()
    await reading.to_the_end()
    await running.to_the_end()
    assert_laws(reading.events)
    assert types(reading) == ["created", "queued", "in_progress"]


async def test_a_later_turn_waits_without_a_word() -> None:
    """A response that runs does not go back to `queued`."""
    site, held = full()
    thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    call = f"{thought}<|channel|>commentary to=python code<|message|>1+1<|call|>"
    site.engine.turns = [[call], [held, ANSWER], [ANSWER]]
    first = await site.begin(input="calls a tool that is not there")
    await asyncio.wait_for(site.engine.waits.wait(), 5)
    second = await site.begin(input="second")
    assert types(second) == ["created", "queued"]
    held.set()
    for each in (first, second):
        await each.to_the_end()
        assert_laws(each.events)
    assert types(first)[:2] == ["created", "in_progress"]
