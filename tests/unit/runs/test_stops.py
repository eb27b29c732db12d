"""A run that is stopped from outside so that it can be continued: at any moment, and beside whatever else ends it."""

import asyncio

import pytest

from engine.errors import EngineError
from responses_app.protocol.response.steps import StopReason
from tests.kit.fakes import ANSWER, THOUGHT, TOOL_F, FakeEngine, Reading, Site
from tests.kit.laws import assert_laws
from tests.unit.runs.readers import id_of, idle

HALF = "<|channel|>final<|message|>Half"
REST = " of it.<|end|><|start|>assistant<|channel|>final<|message|>More.<|return|>"


async def speaking(said: str, then: str = REST) -> tuple[Site, Reading, asyncio.Event]:
    """Begin a response whose model has said this, and hangs before the rest."""
    go_on = asyncio.Event()
    site = Site(FakeEngine([[said, go_on, then], ANSWER]))
    reading = await site.begin(input="hi", tools=[TOOL_F], transport="websocket")
    await asyncio.wait_for(site.engine.waits.wait(), 5)
    return site, reading, go_on


def last(reading: Reading) -> tuple[object, object]:
    assert_laws(reading.events)
    response = reading.events[-1]["response"]
    details = response["incomplete_details"]  # type: ignore[index]
    return response["status"], details and details["reason"]  # type: ignore[index]


async def test_between_two_items_it_ends_at_once_and_the_engine_is_stopped() -> None:
    site, reading, _ = await speaking(THOUGHT)
    assert reading.run.stop(StopReason.STEERED)
    await reading.to_the_end()
    assert last(reading) == ("incomplete", "steered")
    assert site.engine.running == 0


async def test_inside_an_item_that_comes_to_its_end_first() -> None:
    site, reading, go_on = await speaking(HALF)
    assert reading.run.stop(StopReason.STEERED)
    assert reading.run.stop(StopReason.STEERED), "twice is once"
    await asyncio.sleep(0)
    assert site.engine.running == 1
    go_on.set()
    await reading.to_the_end()
    assert last(reading) == ("incomplete", "steered")
    [item] = reading.events[-1]["response"]["output"]  # type: ignore[index]
    assert item["content"][0]["text"] == "Half of it."


@pytest.mark.parametrize("reason", [StopReason.INTERRUPTED, StopReason.DISCARDED])
async def test_what_was_said_is_continued_with_its_very_tokens(reason: StopReason) -> None:
    site, reading, _ = await speaking("<|channel|>commentary<|message|>So.<|end|><|start|>assistant" + HALF)
    assert reading.run.stop(reason)
    await reading.to_the_end()
    assert last(reading) == ("incomplete", "interrupted")
    response_id = id_of(reading)
    await site.ask(input="Go on", previous_response_id=response_id, tools=[TOOL_F])
    first, second = site.engine.prompts
    said = site.engine.encode("<|channel|>commentary<|message|>So.<|end|>")
    assert second[: len(first) + len(said)] == [*first, *said]
    half = site.engine.encode("Half")[0]
    assert (half in second[len(first) + len(said) :]) == (reason is StopReason.INTERRUPTED)


async def test_before_its_first_step(site: Site) -> None:
    reading = await site.begin(input="hi")
    assert reading.run.stop(StopReason.INTERRUPTED)
    await reading.to_the_end()
    assert last(reading) == ("incomplete", "interrupted")
    assert site.engine.requests == []


@pytest.mark.parametrize("stop", [StopReason.STEERED, StopReason.INTERRUPTED, StopReason.DISCARDED])
@pytest.mark.parametrize("order", ["stop first", "cancel first"])
async def test_beside_a_cancellation_it_ends_once(stop: StopReason, order: str) -> None:
    site, reading, _ = await speaking(THOUGHT)
    run = reading.run
    if order == "cancel first":
        site.registry.cancel(run, reason="test")
        await asyncio.sleep(0)
        run.stop(stop)
    else:
        run.stop(stop)
        site.registry.cancel(run, reason="test")
    await reading.to_the_end()
    assert last(reading)[0] in ("incomplete", "cancelled")
    await idle(site)
    assert site.engine.running == 0


class Failing(FakeEngine):
    """Fails when it is told to stop."""

    async def generate(self, request):  # type: ignore[no-untyped-def, override]
        try:
            async for chunk in super().generate(request):
                yield chunk
        except asyncio.CancelledError:
            raise EngineError("it broke as it was stopped") from None


async def test_an_engine_that_breaks_as_it_is_stopped_changes_nothing() -> None:
    site = Site(Failing([[THOUGHT, asyncio.Event(), ANSWER]]))
    reading = await site.begin(input="hi")
    await asyncio.wait_for(site.engine.waits.wait(), 5)
    assert reading.run.stop(StopReason.INTERRUPTED)
    await reading.to_the_end()
    assert last(reading) == ("incomplete", "interrupted")


async def test_once_its_end_is_decided_nothing_stops_it(site: Site) -> None:
    site.store.gate = asyncio.Event()
    reading = await site.begin(input="hi")
    await asyncio.wait_for(site.store.saving.wait(), 5)
    assert not any(reading.run.stop(reason) for reason in StopReason)
    site.store.gate.set()
    await reading.to_the_end()
    assert last(reading) == ("completed", None)
    assert not reading.reader.source.stop(StopReason.INTERRUPTED)


async def test_a_reader_that_leaves_a_steered_response_ends_it() -> None:
    site, reading, _ = await speaking(HALF)
    reading.run.stop(StopReason.STEERED)
    reading.leave()
    await idle(site)
    stored = await site.responses.response("default", id_of(reading))
    assert stored["status"] == "cancelled"
