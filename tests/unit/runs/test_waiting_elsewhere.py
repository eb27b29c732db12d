"""A response that waits is another worker's: outputs go there, and it goes there itself where its worker stops."""

import asyncio

import pytest

from responses_app.protocol.errors import ApiError
from responses_app.protocol.session.tool_outputs import as_json
from responses_app.stores.base import AcceptedResponse, WorkerState
from tests.kit.fakes import ANSWER, CALL_F, FakeEngine, FakeOthers, FakeStore, Site
from tests.kit.laws import assert_laws
from tests.unit.runs.test_waiting import given, refused, waits

pytestmark = pytest.mark.usefixtures("closed")


async def test_in_the_background_it_goes_to_another_worker_at_once() -> None:
    store = FakeStore()
    site = Site(FakeEngine([CALL_F, ANSWER]), store, worker="stops")
    reading, [call_id] = await waits(site, background=True)
    response_id = reading.reader.source.response_id
    async with asyncio.timeout(5):
        await site.registry.aclose(grace=60)
    heir = Site(FakeEngine([ANSWER]), store, worker="heir")
    await store.beat(WorkerState(id="heir", started_at=0.0))
    [claimed] = (await store.reclaim("heir", dead_before=0.0)).claimed
    await heir.service.run_again(claimed)
    await heir.outputs.give("default", response_id, given(call_id))
    again = await heir.follow(response_id)
    events = await again.to_the_end()
    assert_laws(events)
    assert events[: len(reading.events)] == reading.events


async def test_while_it_goes_to_another_worker_its_client_is_to_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is not told that nobody waits for the output: then it would never come."""
    site = Site(FakeEngine([CALL_F, ANSWER]))
    reading, [call_id] = await waits(site, background=True)
    going, go = asyncio.Event(), asyncio.Event()
    give_back = site.store.give_back

    async def slowly(accepted: AcceptedResponse) -> None:
        going.set()
        await go.wait()
        await give_back(accepted)

    monkeypatch.setattr(site.store, "give_back", slowly)
    stopping = asyncio.create_task(site.registry.aclose())
    await going.wait()
    try:
        assert await refused(site, reading.reader.source.response_id, given(call_id)) == (503, None)
    finally:
        go.set()
        await stopping
    assert await refused(site, reading.reader.source.response_id, given(call_id)) == (503, None)


class TestOtherWorkers:
    async def test_the_one_that_ran_it_says_that_it_has_ended(self) -> None:
        """It may end between the look into the store and the question: else nobody answers, and a client waits."""
        store, others = FakeStore(), FakeOthers()
        owner = Site(FakeEngine([CALL_F, ANSWER]), store, others=others, worker="owner")
        reading, [call_id] = await waits(owner)
        told = {"project": "default", "response_id": reading.reader.source.response_id, **as_json(given(call_id))}
        await owner.outputs.give("default", reading.reader.source.response_id, given(call_id))
        await reading.to_the_end()
        answer = await owner.outputs.take_here(told)
        assert answer is not None
        assert answer["error"]["status"] == 409  # type: ignore[index]

    async def test_the_one_that_runs_it_takes_it(self) -> None:
        store, others = FakeStore(), FakeOthers()
        owner = Site(FakeEngine([CALL_F, ANSWER]), store, others=others, worker="owner")
        other = Site(FakeEngine(), store, others=others, worker="other")
        reading, [call_id] = await waits(owner)
        response_id = reading.reader.source.response_id
        assert await refused(other, response_id, given("call_nobody")) == (404, "tool_call_id")
        await reading.run.keep_inputs()
        seen = await other.responses.response("default", response_id)
        assert seen == await owner.responses.response("default", response_id)
        assert seen["output"][-1]["call_id"] == call_id, "who polls it there knows what to answer"
        await other.outputs.give("default", response_id, given(call_id))
        assert await refused(other, response_id, given(call_id)) in [(409, "tool_call_id"), (409, "response_id")]
        assert (await reading.to_the_end())[-1]["type"] == "response.completed"

    async def test_one_that_is_not_stored_is_found_by_asking(self) -> None:
        others = FakeOthers()
        owner = Site(FakeEngine([CALL_F, ANSWER]), others=others)
        other = Site(FakeEngine(), others=others)
        reading, [call_id] = await waits(owner, store=False)
        assert await refused(other, "resp_nobody", given(call_id)) == (404, "response_id")
        await other.outputs.give("default", reading.reader.source.response_id, given(call_id))
        assert (await reading.to_the_end())[-1]["type"] == "response.completed"

    async def test_without_redis_it_is_refused_and_goes_on(self) -> None:
        store, others = FakeStore(), FakeOthers(reaches_others=False)
        owner = Site(FakeEngine([CALL_F, ANSWER]), store, others=others, worker="owner")
        other = Site(FakeEngine(), store, others=others, worker="other")
        reading, [call_id] = await waits(owner)
        with pytest.raises(ApiError) as caught:
            await other.outputs.give("default", reading.reader.source.response_id, given(call_id))
        assert caught.value.status == 503
        assert "REDIS_URL" in caught.value.message
        await owner.outputs.give("default", reading.reader.source.response_id, given(call_id))
        assert (await reading.to_the_end())[-1]["type"] == "response.completed"
