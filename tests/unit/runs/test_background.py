"""Responses in the background, and those that wait for the engine: they say so, outlive readers, and end or go on."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from engine.formats.harmony.encoding import encode_harmony
from responses_app.kit.errors import StoreError
from responses_app.protocol.errors import ApiError
from responses_app.protocol.requests.requests import parse_create
from responses_app.protocol.requests.resources import Status
from responses_app.protocol.response.steps import StopReason
from responses_app.protocol.tiers import QueueBounds
from responses_app.runs.plan.turns import FairTurns
from tests.kit.fakes import ANSWER, NOW, FakeEngine, FakeOthers, Reading, Site, run_settings
from tests.kit.laws import assert_laws
from tests.kit.oracle import validate_event
from tests.kit.waiting import eventually
from tests.unit.protocol.refusals import refusal
from tests.unit.runs.readers import HALF, Failing, Held, half_said, hanging, hung, id_of, idle, refused, response_of


async def test_its_events_tell_of_the_queue() -> None:
    events = await (await Site().begin(input="hi", background=True)).to_the_end()
    assert [event["type"] for event in events[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert [event["response"]["status"] for event in events[:3]] == ["queued", "queued", "in_progress"]  # type: ignore[index]
    assert events[-1]["response"]["background"] is True  # type: ignore[index]
    assert_laws(events)
    for event in events:
        validate_event(event)


async def test_at_most_so_many_run_and_so_many_wait() -> None:
    site = hanging(background_max_running=1, background_max_queued=1)
    first = await site.begin(input="a", background=True)
    await site.engine.waits.wait()
    second = await site.begin(input="b", background=True)
    await eventually(lambda: site.registry.queue.waiting == 1)
    error = await site.refusal(input="c", background=True)
    assert (error.status, error.headers["retry-after"]) == (429, "5")
    assert "BACKGROUND_MAX_QUEUED" in error.message
    assert second.run.status is Status.QUEUED
    site.registry.cancel(first.run, reason="asked to")
    await eventually(lambda: second.run.status is Status.IN_PROGRESS)
    await site.begin(input="foreground")  # has no queue to wait in


async def test_projects_have_equal_shares_and_the_tier_counts_inside_one(gate: asyncio.Event) -> None:
    site = Site(FakeEngine([[gate, ANSWER], ANSWER]), settings=run_settings(background_max_running=1))
    asked = {"first": ("a", "default"), "flex": ("a", "flex"), "plain": ("a", "default"), "soon": ("a", "priority")}
    asked |= {"other": ("b", "default"), "its flex": ("b", "flex")}
    for name, (project, tier) in asked.items():
        await site.begin(project=project, input="hi", service_tier=tier, background=True, metadata={"name": name})
        await asyncio.wait_for(site.engine.waits.wait(), 5)
    await eventually(lambda: site.registry.queue.waiting == 5)
    gate.set()
    await idle(site)
    ended = [each.response["metadata"]["name"] for each in site.store.saved]  # type: ignore[index]
    assert ended == ["first", "other", "soon", "plain", "its flex", "flex"]


async def test_many_at_once_are_no_more_than_that() -> None:
    site = Site(
        FakeEngine([[asyncio.Event()]]), settings=run_settings(background_max_running=2, background_max_queued=3)
    )
    accepting = Held(site.store, "accept")
    attempts = [asyncio.create_task(site.begin(input=str(number), background=True)) for number in range(9)]
    await asyncio.sleep(0)
    accepting.go_on.set()
    done = await asyncio.gather(*attempts, return_exceptions=True)
    assert [isinstance(each, ApiError) for each in done] == [False] * 5 + [True] * 4
    await eventually(lambda: site.registry.queue.waiting == 3)


async def test_only_what_is_accepted_in_the_background_takes_a_place_and_gives_it_back() -> None:
    site = hanging(background_max_running=1, background_max_queued=0)
    site.store.failure = StoreError("away")
    for _ in range(3):
        assert (await site.refusal(input="hi", background=True)).status == 503
    site.store.failure = None
    for _ in range(2):
        (await site.begin(input="hi")).leave()
        await idle(site)
    for _ in range(2):
        reading = await site.begin(input="hi", background=True)
        assert (await site.store.response("default", id_of(reading)) or {})["status"] == "queued", "before it runs"
        assert "BACKGROUND_MAX_QUEUED" in (await site.refusal(input="hi", background=True)).message
        site.registry.cancel(reading.run, reason="asked to")
        await idle(site)


async def test_a_client_that_leaves_while_it_is_accepted_leaves_no_orphan(site: Site) -> None:
    accepting = Held(site.store, "accept")
    creating = asyncio.create_task(site.begin(input="hi", background=True))
    await accepting.waits.wait()
    creating.cancel()
    await asyncio.wait([creating])
    accepting.go_on.set()
    await eventually(lambda: len(site.store.saved) == 1)
    assert site.store.saved[0].response["status"] == "completed"


async def test_one_that_waits_can_be_cancelled() -> None:
    site = hanging(background_max_running=1)
    await site.begin(input="a", background=True)
    await site.engine.waits.wait()
    waiting = await site.begin(input="b", background=True)
    await eventually(lambda: site.registry.queue.waiting == 1)
    response = await site.responses.cancel("default", waiting.run.response_id)
    assert (response["status"], response["output"]) == ("cancelled", [])
    assert site.registry.queue.waiting == 0
    assert_laws(await waiting.to_the_end())


async def test_cancelled_in_the_middle_it_keeps_what_was_said() -> None:
    site, reading = await hung(background=True)
    response = await site.responses.cancel("default", reading.run.response_id)
    assert response["status"] == "cancelled"
    assert response["output"][0]["content"][0]["text"] == "Half of it"  # type: ignore[index]
    again = await site.responses.cancel("default", reading.run.response_id)
    assert again == response == await site.responses.response("default", reading.run.response_id)


@pytest.mark.parametrize("background", [False, True])
async def test_what_cannot_be_cancelled(background: bool, site: Site) -> None:
    response = await site.ask(input="hi", background=background)
    error = await refused(site.responses.cancel("default", str(response["id"])))
    assert (error.status, error.param) == (400, "response_id")
    assert ("completed" if background else "synchronous") in error.message
    assert (await refused(site.responses.cancel("another", str(response["id"])))).status == 404


async def test_when_the_server_stops_it_goes_to_another_worker() -> None:
    site = Site(FakeEngine([[asyncio.Event(), ANSWER]]))
    reading = await half_said(site, background=True, metadata={"a": "b"})
    await site.registry.aclose()
    kept = await site.store.response("default", reading.run.response_id)
    assert kept["status"] == "in_progress"
    assert (await reading.to_the_end())[-1]["type"] == "response.in_progress"

    other = Site(store=site.store)
    (accepted,) = (await other.store.reclaim("other", dead_before=0.0)).claimed
    await other.service.run_again(accepted)
    await idle(other)
    done = await other.responses.response("default", reading.run.response_id)
    assert (done["status"], done["id"], done["metadata"]) == ("completed", reading.run.response_id, {"a": "b"})
    assert done["created_at"] == kept["created_at"]
    assert list(other.engine.prompts[0]) == list(site.engine.prompts[0])


async def test_what_is_said_to_a_reader_when_the_server_stops_has_failed() -> None:
    site, reading = await hung()
    await site.registry.aclose()
    response = await response_of(reading)
    assert (response["status"], response["error"]["code"], site.engine.running) == ("failed", "server_error", 0)
    assert "server stopped" in response["error"]["message"]
    assert (await site.store.response("default", response["id"]) or {})["status"] == "failed"
    assert len(encode_harmony(HALF)) == response["usage"]["output_tokens"]


TWO_HOURS = {"completion_window": "2h"}


@pytest.mark.parametrize(
    "fields",
    [
        {"input": "hi", "background": True, "background_options": TWO_HOURS, "stream": True},
        {"input": "hi", "conversation": "conv_1", "previous_response_id": "resp_1"},
    ],
)
def test_contradictions_are_refused(fields: dict[str, object]) -> None:
    assert refusal(parse_create, fields).param in ("background_options.completion_window", "conversation")


async def test_with_store_false_it_can_be_polled_and_not_be_continued() -> None:
    site = Site()
    response = await response_of(await site.begin(input="hi", background=True, store=False))
    assert (response["status"], response["store"]) == ("completed", False)
    kept = await site.store.response("default", response["id"]) or {}
    assert (kept["status"], kept["store"]) == ("completed", False)
    with pytest.raises(ApiError) as refused:
        await site.begin(input="and now?", previous_response_id=response["id"])
    assert refused.value.code == "previous_response_not_found"
    named = {"type": "item_reference", "id": response["output"][-1]["id"]}
    with pytest.raises(ApiError) as refused:
        await site.begin(input=[named])
    assert refused.value.param == "input[0].id"


async def test_without_a_store_there_is_no_background() -> None:
    site = Site(settings=run_settings(responses_store=False))
    with pytest.raises(ApiError, match="RESPONSES_STORE") as refused:
        await site.begin(input="hi", background=True)
    assert refused.value.param == "background"


@pytest.mark.parametrize("waits", [True, False])
async def test_it_fails_with_its_reason_when_its_time_is_over(waits: bool) -> None:
    site = hanging(background_max_running=1)
    site.registry.now = lambda: NOW
    if waits:
        other = await half_said(site, background=True)
    site.registry.now = lambda: NOW + 7_199.95  # 50 ms are left
    response = await response_of(await site.begin(input="hi", background=True, background_options=TWO_HOURS))
    assert response["status"] == Status.FAILED.value
    assert response["error"] is not None
    assert "completion_window" in response["error"]["message"]
    kept = await site.store.response("default", response["id"])
    assert (kept["status"], kept["error"]) == ("failed", response["error"])
    if waits:
        assert site.registry.queue.waiting == 0
        other.leave()


async def test_one_that_is_done_in_time_leaves_no_timer(site: Site) -> None:
    site.registry.now = lambda: NOW
    reading = await site.begin(input="hi", background=True, background_options=TWO_HOURS)
    events = await reading.to_the_end()
    assert events[-1]["response"]["status"] == Status.COMPLETED.value  # type: ignore[index]


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


@pytest.mark.usefixtures("rollout_store")
@pytest.mark.parametrize("background", [False, True])
async def test_a_roll_out_has_its_share_beside_people(background: bool) -> None:
    site, held = full()
    if background:
        site = Site(FakeEngine([[held, ANSWER], ANSWER]), settings=run_settings(background_max_running=1))
    ids = []
    for fields in ({}, {}, {"metadata": {"rollout_id": "task-1"}}):
        ids.append(id_of(await site.begin(input="hi", background=background, **fields)))
        await asyncio.wait_for(site.engine.waits.wait(), 5)
    await eventually(lambda: site.registry.queue.waiting + site.turns.waiting.total() == 2)
    held.set()
    await idle(site)
    assert [each.response["id"] for each in site.store.saved] == [ids[0], ids[2], ids[1]], "the last one before people"


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
