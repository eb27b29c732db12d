"""The registry owns the runs: who reads them, who ends them."""

import asyncio

import pytest

from engine.formats.harmony.encoding import encode_harmony
from engine.types import FinishReason
from responses_app.protocol.errors import ApiError
from responses_app.protocol.requests.resources import Status
from responses_app.protocol.response.steps import StopReason
from responses_app.runs.log.journal import ReaderTooSlow
from tests.kit.fakes import ANSWER, THOUGHT, FakeEngine, Site, run_settings
from tests.kit.laws import assert_laws
from tests.kit.oracle import validate_event
from tests.kit.waiting import eventually

HALF = "<|channel|>final<|message|>Half of it"


def hanging() -> Site:
    """Return a site whose engine says a half and then waits for ever."""
    return Site(FakeEngine([[HALF, asyncio.Event(), ANSWER]]))


async def test_the_last_reader_to_leave_cancels_the_run_and_the_generation_is_closed() -> None:
    site = hanging()
    reading = await site.begin(input="hi")
    second = site.registry.attach(reading.run)
    await site.engine.waits.wait()
    assert site.engine.running == 1
    second.leave()
    assert len(site.registry) == 1
    reading.leave()
    await eventually(lambda: len(site.registry) == 0)
    assert reading.run.status is Status.CANCELLED
    assert site.engine.running == 0
    assert reading.run.link is None


async def test_a_cancelled_run_tells_its_readers_and_keeps_what_was_said() -> None:
    site = hanging()
    reading = await site.begin(input="hi")
    await site.engine.waits.wait()
    site.registry.cancel(reading.run, reason="asked to")
    events = await reading.to_the_end()
    assert_laws(events)
    response = events[-1]["response"]
    assert events[-1]["type"] == "response.incomplete"
    assert (response["status"], response["incomplete_details"], response["error"]) == ("cancelled", None, None)
    assert response["output"][0]["content"][0]["text"] == "Half of it"
    assert response["output"][0]["status"] == "incomplete"
    assert response["usage"]["output_tokens"] == len(encode_harmony(HALF))
    assert response["completed_at"] is None
    for event in events:
        validate_event(event)
    assert site.store.saved[0].response == reading.run.response()
    assert site.store.saved[0].link is None, "cannot be continued"


async def test_a_run_that_is_cancelled_before_its_first_step_still_ends() -> None:
    site = hanging()
    reading = await site.begin(input="hi")
    site.registry.cancel(reading.run, reason="at once")
    events = await reading.to_the_end()
    assert_laws(events)
    assert events[-1]["response"]["status"] == "cancelled"
    assert site.engine.running == 0


async def test_cancelling_again_and_again_changes_nothing() -> None:
    site = hanging()
    reading = await site.begin(input="hi")
    await site.engine.waits.wait()
    for _ in range(5):
        site.registry.cancel(reading.run, reason="asked to")
        await asyncio.sleep(0)
    events = await reading.to_the_end()
    assert_laws(events)
    assert events[-1]["response"]["status"] == "cancelled"


async def test_a_run_that_is_finishing_is_not_cancelled() -> None:
    site = Site()
    site.store.gate = asyncio.Event()
    reading = await site.begin(input="hi")
    await site.store.saving.wait()
    reading.leave()
    site.registry.cancel(reading.run, reason="too late")
    await asyncio.sleep(0)
    site.store.gate.set()
    await eventually(lambda: len(site.registry) == 0)
    assert reading.run.status is Status.COMPLETED
    assert site.store.saved[0].response["status"] == "completed"


@pytest.mark.parametrize("turns", range(4))  # of the loop, from the last token on
async def test_what_is_cancelled_while_it_comes_to_its_end_has_the_end_that_is_kept(turns: int) -> None:
    last = asyncio.Event()
    site = Site(FakeEngine([[HALF, last, ANSWER]]))
    site.store.gate = asyncio.Event()
    reading = await site.begin(input="hi")
    await site.engine.waits.wait()
    last.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    site.registry.cancel(reading.run, reason="asked to")
    await site.store.saving.wait()
    site.store.gate.set()
    status = (await reading.to_the_end())[-1]["response"]["status"]
    assert status in ("cancelled", "completed")
    assert [stored.response["status"] for stored in site.store.saved] == [status]


async def test_one_that_goes_on_here_again_is_known_when_the_run_before_has_ended() -> None:
    site = hanging()
    before = (await site.begin(input="hi", background=True)).run
    await site.engine.waits.wait()
    [task] = [task for task in asyncio.all_tasks() if task.get_name() == before.response_id]
    [claimed] = (await site.store.reclaim("heir", dead_before=0.0)).claimed
    await site.service.run_again(claimed)
    again = site.registry.get(before.response_id)
    assert before.stop(StopReason.CANCELLED)
    await asyncio.wait([task])
    await asyncio.sleep(0)  # whoever is told of its end
    assert site.registry.get(before.response_id) is again is not before
    await site.registry.aclose()


async def test_a_run_that_ended_is_forgotten() -> None:
    site = Site()
    reading = await site.begin(input="hi")
    assert site.registry.get(reading.run.response_id) is reading.run
    await reading.to_the_end()
    assert site.registry.get(reading.run.response_id) is None
    await eventually(lambda: len(site.registry) == 0)
    assert site.registry.get("resp_unknown") is None


async def test_no_more_runs_than_there_may_be() -> None:
    site = Site(FakeEngine([[HALF, asyncio.Event(), ANSWER]]), settings=run_settings(responses_max_in_flight=2))
    readings = [await site.begin(input="hi") for _ in range(2)]
    with pytest.raises(ApiError) as refused:
        await site.begin(input="hi")
    assert (refused.value.status, refused.value.code) == (503, "server_is_overloaded")
    assert "RESPONSES_MAX_IN_FLIGHT" in refused.value.message
    assert refused.value.headers == {"retry-after": "2"}
    for reading in readings:
        reading.leave()


async def test_closing_stops_what_runs_and_refuses_the_rest() -> None:
    site = hanging()
    reading = await site.begin(input="hi")
    await site.engine.waits.wait()
    await site.registry.aclose()
    assert (await reading.to_the_end())[-1]["response"]["status"] == "failed"
    assert site.engine.running == 0
    with pytest.raises(ApiError) as refused:
        await site.begin(input="hi")
    assert refused.value.status == 503
    await site.registry.aclose()


async def test_closing_with_runs_that_have_not_begun() -> None:
    site = hanging()
    reading = await site.begin(input="hi")
    await site.registry.aclose()
    assert (await reading.to_the_end())[-1]["response"]["status"] == "failed"


async def test_closing_gives_runs_a_grace() -> None:
    gate = asyncio.Event()
    site = Site(FakeEngine([[THOUGHT, gate, ANSWER]]))
    reading = await site.begin(input="hi")
    await site.engine.waits.wait()
    closing = asyncio.create_task(site.registry.aclose(grace=5))
    await asyncio.sleep(0)
    gate.set()
    await closing
    assert (await reading.to_the_end())[-1]["response"]["status"] == "completed"


async def test_a_slow_reader_is_dropped_and_its_run_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    site = Site(
        FakeEngine([["<|channel|>final<|message|>", *["word " * 50] * 50, ANSWER]]),
        settings=run_settings(stream_max_lag_bytes=20_000),
    )
    reading = await site.begin(input="hi")
    await eventually(lambda: len(site.registry) == 0)
    with pytest.raises(ReaderTooSlow):
        reading.take()
    assert reading.run.status is Status.CANCELLED
    assert site.engine.running == 0
    assert "STREAM_MAX_LAG_BYTES" in caplog.text


async def test_a_slow_reader_does_not_end_the_run_of_another() -> None:
    site = Site(
        FakeEngine([["<|channel|>final<|message|>", *["word " * 50] * 50, ANSWER]]),
        settings=run_settings(stream_max_lag_bytes=8_000),
    )
    reading = await site.begin(input="hi")
    slow = site.registry.attach(reading.run)
    events = await reading.to_the_end()
    with pytest.raises(ReaderTooSlow):
        slow.take()
    assert events[-1]["response"]["status"] == "completed"


async def test_an_engine_that_aborts_by_itself_cancels() -> None:
    site = Site(FakeEngine([[HALF, FinishReason.ABORT]]))
    assert (await site.ask(input="hi"))["status"] == "cancelled"
