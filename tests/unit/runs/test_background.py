"""Background responses: they wait, outlive their readers, can be cancelled, and survive the end of their process."""

import asyncio

import pytest

from engine.formats.harmony.encoding import encode_harmony
from responses_app.protocol.errors import ApiError
from responses_app.protocol.requests.requests import parse_create
from responses_app.protocol.requests.resources import Status
from responses_app.protocol.tiers import PRIORITIES
from responses_app.runs.queues.turns import BackgroundQueue
from responses_app.stores.base import StoreError
from tests.kit.fakes import ANSWER, FakeEngine, Site, SlowStore, run_settings
from tests.kit.laws import assert_laws
from tests.kit.oracle import validate_event
from tests.kit.waiting import eventually

HALF = "<|channel|>final<|message|>Half of it"


def hanging(**limits: int) -> Site:
    """Return a site whose engine says a half and then waits for ever."""
    engine = FakeEngine([[HALF, asyncio.Event(), ANSWER]])
    return Site(engine, settings=run_settings(**limits)) if limits else Site(engine)


async def test_its_events_tell_of_the_queue() -> None:
    events = await (await Site().begin(input="hi", background=True)).to_the_end()
    assert [event["type"] for event in events[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert [event["response"]["status"] for event in events[:3]] == ["queued", "queued", "in_progress"]  # type: ignore[index]
    assert events[-1]["response"]["background"] is True  # type: ignore[index]
    assert_laws(events)
    for event in events:
        validate_event(event)


async def test_it_is_accepted_by_the_store_before_it_runs() -> None:
    site = hanging()
    reading = await site.begin(input="hi", background=True)
    kept = await site.store.response("default", reading.run.response_id)
    assert kept is not None
    assert kept["status"] == "queued"
    site.store.failure = StoreError("away")
    with pytest.raises(ApiError) as refused:
        await site.begin(input="hi", background=True)
    assert refused.value.status == 503
    site.store.failure = None
    await site.registry.aclose()


async def test_it_goes_on_without_readers() -> None:
    gate = asyncio.Event()
    site = Site(FakeEngine([[HALF, gate, ANSWER]]))
    reading = await site.begin(input="hi", background=True)
    await site.engine.waits.wait()
    reading.leave()
    await asyncio.sleep(0)
    gate.set()
    await site.registry.wait_for_end(reading.run)
    assert reading.run.status is Status.COMPLETED


async def test_at_most_so_many_run_and_so_many_wait() -> None:
    site = hanging(background_max_running=1, background_max_queued=1)
    first = await site.begin(input="a", background=True)
    await site.engine.waits.wait()
    second = await site.begin(input="b", background=True)
    await eventually(lambda: site.registry.queue.waiting == 1)
    with pytest.raises(ApiError, match="BACKGROUND_MAX_QUEUED") as refused:
        await site.begin(input="c", background=True)
    assert (refused.value.status, refused.value.headers["retry-after"]) == (429, "5")
    assert second.run.status is Status.QUEUED
    site.registry.cancel(first.run, reason="asked to")
    await eventually(lambda: second.run.status is Status.IN_PROGRESS)
    await site.begin(input="foreground")  # has no queue to wait in
    await site.registry.aclose()


async def test_projects_have_equal_shares_and_the_tier_counts_inside_one() -> None:
    gate = asyncio.Event()
    site = Site(FakeEngine([[gate, ANSWER], ANSWER]), settings=run_settings(background_max_running=1))
    asked = {"first": ("a", "default"), "flex": ("a", "flex"), "plain": ("a", "default"), "soon": ("a", "priority")}
    asked |= {"other": ("b", "default"), "its flex": ("b", "flex")}
    for name, (project, tier) in asked.items():
        await site.begin(project=project, input="hi", service_tier=tier, background=True, metadata={"name": name})
        await asyncio.wait_for(site.engine.waits.wait(), 5)
    await eventually(lambda: site.registry.queue.waiting == 5)
    gate.set()
    await eventually(lambda: len(site.registry) == 0)
    ended = [each.response["metadata"]["name"] for each in site.store.saved]  # type: ignore[index]
    assert ended == ["first", "other", "soon", "plain", "its flex", "flex"]


async def test_flex_waits_a_minute_behind_the_others_and_no_longer() -> None:
    time = [0.0]
    queue, order = BackgroundQueue(max_running=1, max_queued=9, now=lambda: time[0]), list[str]()

    async def run(name: str, tier: str) -> None:
        async with queue.turn("a", tier, PRIORITIES[tier]):
            order.append(name)

    async with queue.turn("a", "default", 0):
        tasks = [asyncio.create_task(run("flex", "flex"))]
        await eventually(lambda: queue.waiting == 1)
        for time[0], name in ((59.0, "before"), (61.0, "late")):
            tasks.append(asyncio.create_task(run(name, "default")))
            await eventually(lambda: queue.waiting == len(tasks))
    await asyncio.gather(*tasks)
    assert order == ["before", "flex", "late"]


async def test_many_at_once_are_no_more_than_that() -> None:
    site = Site(
        FakeEngine([[asyncio.Event()]]),
        SlowStore(),
        settings=run_settings(background_max_running=2, background_max_queued=3),
    )
    attempts = [asyncio.create_task(site.begin(input=str(number), background=True)) for number in range(9)]
    await asyncio.sleep(0)
    assert isinstance(site.store, SlowStore)
    site.store.go_on.set()
    done = await asyncio.gather(*attempts, return_exceptions=True)
    assert [isinstance(each, ApiError) for each in done] == [False] * 5 + [True] * 4
    await eventually(lambda: site.registry.queue.waiting == 3)
    await site.registry.aclose()


async def test_one_that_could_not_be_accepted_takes_no_place() -> None:
    site = hanging(background_max_running=1, background_max_queued=0)
    site.store.failure = StoreError("away")
    for _ in range(3):
        with pytest.raises(ApiError) as refused:
            await site.begin(input="hi", background=True)
        assert refused.value.status == 503
    site.store.failure = None
    await site.begin(input="hi", background=True)
    await site.registry.aclose()


async def test_a_client_that_leaves_while_it_is_accepted_leaves_no_orphan() -> None:
    site = Site(store=SlowStore())
    assert isinstance(site.store, SlowStore)
    creating = asyncio.create_task(site.begin(input="hi", background=True))
    await eventually(lambda: site.store.accepting == 1)
    creating.cancel()
    await asyncio.wait([creating])
    site.store.go_on.set()
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
    await site.registry.aclose()


async def test_cancelled_in_the_middle_it_keeps_what_was_said() -> None:
    site = hanging()
    reading = await site.begin(input="hi", background=True)
    await site.engine.waits.wait()
    response = await site.responses.cancel("default", reading.run.response_id)
    assert response["status"] == "cancelled"
    assert response["output"][0]["content"][0]["text"] == "Half of it"  # type: ignore[index]
    again = await site.responses.cancel("default", reading.run.response_id)
    assert again == response == await site.responses.response("default", reading.run.response_id)


@pytest.mark.parametrize("background", [False, True])
async def test_what_cannot_be_cancelled(background: bool) -> None:
    site = Site()
    response = await site.ask(input="hi", background=background)
    with pytest.raises(ApiError, match="completed" if background else "synchronous") as refused:
        await site.responses.cancel("default", str(response["id"]))
    assert (refused.value.status, refused.value.param) == (400, "response_id")
    with pytest.raises(ApiError) as unknown:
        await site.responses.cancel("another", str(response["id"]))
    assert unknown.value.status == 404


async def test_when_the_server_stops_it_goes_to_another_worker() -> None:
    site = Site(FakeEngine([[asyncio.Event(), ANSWER]]))
    reading = await site.begin(input="hi", background=True, metadata={"a": "b"})
    await site.engine.waits.wait()
    await site.registry.aclose()
    kept = await site.store.response("default", reading.run.response_id)
    assert kept is not None
    assert kept["status"] == "in_progress"
    assert (await reading.to_the_end())[-1]["type"] == "response.in_progress"

    other = Site(store=site.store)
    (accepted,) = (await other.store.reclaim("other", dead_before=0.0)).claimed
    await other.service.run_again(accepted)
    await eventually(lambda: len(other.registry) == 0)
    done = await other.responses.response("default", reading.run.response_id)
    assert (done["status"], done["id"], done["metadata"]) == ("completed", reading.run.response_id, {"a": "b"})
    assert done["created_at"] == kept["created_at"]
    assert list(other.engine.prompts[0]) == list(site.engine.prompts[0])


async def test_what_is_said_to_a_reader_when_the_server_stops_has_failed() -> None:
    site = hanging()
    reading = await site.begin(input="hi")
    await site.engine.waits.wait()
    await site.registry.aclose()
    events = await reading.to_the_end()
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["code"] == "server_error"  # type: ignore[index]
    assert "server stopped" in events[-1]["response"]["error"]["message"]  # type: ignore[index]
    kept = await site.store.response("default", reading.run.response_id)
    assert kept is not None
    assert kept["status"] == "failed"
    assert len(encode_harmony(HALF)) == events[-1]["response"]["usage"]["output_tokens"]  # type: ignore[index]


async def test_what_ends_within_the_grace_is_completed() -> None:
    gate = asyncio.Event()
    site = Site(FakeEngine([[HALF, gate, ANSWER]]))
    reading = await site.begin(input="hi", background=True)
    await site.engine.waits.wait()
    closing = asyncio.create_task(site.registry.aclose(grace=30))
    await asyncio.sleep(0)
    gate.set()
    await closing
    assert reading.run.status is Status.COMPLETED


@pytest.mark.parametrize(
    "fields",
    [
        {"input": "hi", "background": True, "store": False},
        {"input": "hi", "conversation": "conv_1", "previous_response_id": "resp_1"},
    ],
)
def test_contradictions_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ApiError) as refused:
        parse_create(fields)
    assert refused.value.param in ("background", "conversation")


async def test_without_a_store_there_is_no_background() -> None:
    site = Site(settings=run_settings(responses_store=False))
    with pytest.raises(ApiError, match="RESPONSES_STORE") as refused:
        await site.begin(input="hi", background=True)
    assert refused.value.param == "background"


async def test_a_request_that_is_written_and_read_again_is_the_same() -> None:
    fields = {
        "input": [{"role": "user", "content": "hi"}, {"type": "local_shell_call", "x": 1}],
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}, {"type": "web_search"}],
        "tool_choice": "none",
        "reasoning": {"effort": "low"},
        "metadata": {"a": "b"},
        "conversation": "conv_1",
        "background": True,
        "max_output_tokens": 7,
        "include": ["message.output_text.logprobs"],
    }
    request = parse_create(fields)
    again = parse_create(request.as_json())
    assert again.as_json() == request.as_json()
    assert (again.tools_json, again.conversation_id, again.effort) == (request.tools_json, "conv_1", "low")


async def test_each_gives_its_place_back_when_it_has_ended() -> None:
    site = Site(settings=run_settings(background_max_running=1, background_max_queued=0))
    for _ in range(3):
        reading = await site.begin(input="hi", background=True)
        await reading.to_the_end()
        await eventually(lambda: len(site.registry) == 0)


async def test_what_runs_in_the_foreground_has_no_place_to_give_back() -> None:
    site = hanging(background_max_running=1, background_max_queued=0)
    for _ in range(2):
        foreground = await site.begin(input="hi")
        foreground.leave()
        await eventually(lambda: len(site.registry) == 0)
    await site.begin(input="hi", background=True)
    with pytest.raises(ApiError, match="BACKGROUND_MAX_QUEUED"):
        await site.begin(input="hi", background=True)
    await site.registry.aclose()
