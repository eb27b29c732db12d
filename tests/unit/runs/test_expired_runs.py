"""A stored response that is past its time (RESPONSES_STORE_TTL) while it runs: only who reads it already reads on."""

import asyncio

import pytest

from responses_app.protocol.errors import ApiError
from responses_app.protocol.response.steps import OutputGiven
from responses_app.stores.base import RetentionSettings
from tests.kit.fakes import NOW, Site, run_settings
from tests.unit.runs.readers import id_of, refused, says_half

TTL = 60.0


async def running(*, age: float, **fields: object) -> tuple[Site, asyncio.Event, str]:
    """Return a site with a response of this age (seconds) that runs, and what lets it end."""
    gate = asyncio.Event()
    site = Site(says_half(gate), settings=run_settings(responses_max_in_flight=10, responses_store_ttl=TTL))
    site.store._settings = RetentionSettings(responses_store_ttl=TTL)
    site.registry.now = site.store._now = lambda: int(NOW) + age
    reading = await site.begin(**{"input": "hi", "background": True, **fields})
    await site.engine.waits.wait()
    return site, gate, id_of(reading)


async def test_up_to_that_second_it_is_found() -> None:
    site, _, response_id = await running(age=TTL - 1)
    assert (await site.responses.response("default", response_id))["status"] == "in_progress"
    with pytest.raises(ApiError, match="in progress"):
        await site.begin(input="more", previous_response_id=response_id)
    assert (await site.responses.cancel("default", response_id))["status"] == "cancelled"


@pytest.mark.parametrize("door", ["response", "input_items", "follow", "cancel", "delete", "give"])
async def test_from_that_second_on_it_is_unknown(door: str) -> None:
    site, gate, response_id = await running(age=TTL)
    given = (OutputGiven("call_1", "42", "42"),) if door == "give" else ()
    at = site.outputs if door == "give" else site.responses
    assert (await refused(getattr(at, door)("default", response_id, *given))).status == 404
    gate.set()
    run = site.registry.get(response_id)
    await site.registry.wait_for_end(run)
    assert run.status.value == "completed"


async def test_nor_can_it_be_continued() -> None:
    site, _, response_id = await running(age=TTL)
    assert (await site.refusal(input="more", previous_response_id=response_id)).code == "previous_response_not_found"


async def test_its_reader_reads_on_and_what_is_not_stored_has_no_such_time(gate: asyncio.Event) -> None:
    site = Site(says_half(gate), settings=run_settings(responses_max_in_flight=10, responses_store_ttl=TTL))
    for stored in (True, False):
        reading = await site.begin(input="hi", store=stored)
        gate.set()
        assert (await reading.to_the_end())[-1]["type"] == "response.completed"
        assert site.registry.is_forgotten(reading.run) is stored
