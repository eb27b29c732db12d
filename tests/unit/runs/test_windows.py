"""Responses that are wanted within some hours (`completion_window`)."""

import asyncio

import pytest

from responses_app.protocol.requests.resources import Status
from tests.kit.fakes import ANSWER, NOW, FakeEngine, Site, run_settings
from tests.kit.laws import assert_laws

HALF = "<|channel|>final<|message|>Half of it"
TWO_HOURS = {"completion_window": "2h"}


@pytest.mark.parametrize("waits", [True, False])
async def test_it_fails_with_its_reason_when_its_time_is_over(waits: bool) -> None:
    site = Site(FakeEngine([[HALF, asyncio.Event(), ANSWER]]), settings=run_settings(background_max_running=1))
    site.registry.now = lambda: NOW
    if waits:
        other = await site.begin(input="hi", background=True)
        await site.engine.waits.wait()
    site.registry.now = lambda: NOW + 7_199.95  # 50 ms are left
    reading = await site.begin(input="hi", background=True, background_options=TWO_HOURS)
    events = await reading.to_the_end()
    assert_laws(events)
    response = events[-1]["response"]
    assert isinstance(response, dict)
    assert response["status"] == Status.FAILED.value
    assert response["error"] is not None
    assert "completion_window" in response["error"]["message"]
    kept = await site.store.response("default", response["id"])
    assert kept is not None
    assert (kept["status"], kept["error"]) == ("failed", response["error"])
    if waits:
        assert site.registry.queue.waiting == 0
        other.leave()
    await site.registry.aclose()


async def test_one_that_is_done_in_time_leaves_no_timer() -> None:
    site = Site()
    site.registry.now = lambda: NOW
    reading = await site.begin(input="hi", background=True, background_options=TWO_HOURS)
    events = await reading.to_the_end()
    assert events[-1]["response"]["status"] == Status.COMPLETED.value  # type: ignore[index]
