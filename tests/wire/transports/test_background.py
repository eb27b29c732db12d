"""Background responses of a real server: they outlive their clients, wait in a bounded queue, and can be cancelled."""

import asyncio
import random
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.kit.background import RUNNING, WAITING, begin, cancel, get, is_idle, new_server, speak, until
from tests.kit.clients import http_client, read_error_answer, ready, text_of
from tests.kit.fixtures import module_server
from tests.kit.laws import assert_laws
from tests.kit.raw_streams import RawStream
from tests.kit.scripts import SPOKEN, was_aborted
from tests.kit.server import Server
from tests.kit.stored import stored_statuses
from tests.kit.waiting import eventually

server = module_server("background", new_server)  # runs two at once, while three wait


@pytest.fixture
async def http(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    """A client; what a test leaves running is cancelled."""
    async with http_client(server) as client:
        yield client
        await eventually(lambda: is_idle(server))


@pytest.mark.each_database
@pytest.mark.parametrize(("name", "store"), [("a", True), ("f", False)])
async def test_it_survives_its_client(server: Server, http: httpx.AsyncClient, name: str, store: bool) -> None:
    stream = await RawStream.create(server, input=f"[dumb {name}]", background=True, store=store)
    seen = await stream.take(3)
    stream.kill()
    response_id = seen[0]["response"]["id"]
    assert (await get(http, response_id))["status"] == "in_progress"
    speak(server, name)
    done = await until(http, response_id, "completed")
    events = [*seen, *await (await RawStream.resume(server, response_id, 2)).rest()]
    assert_laws(events)
    assert events[-1]["response"] == done
    assert done["store"] is store
    continued = await http.post("/responses", json={"input": "Hello", "previous_response_id": response_id})
    assert continued.status_code == (200 if store else 400)


async def test_a_client_that_leaves_before_the_answer_leaves_nothing_behind(
    server: Server, http: httpx.AsyncClient
) -> None:
    """What it asked for runs or does not; nothing hangs in the queue, and nothing takes a place there."""
    chance = random.Random(7)
    for _ in range(40):
        stream = await RawStream.create(server, input="Hello", background=True)
        await asyncio.sleep(chance.random() * 0.004)
        stream.kill()
    await eventually(lambda: is_idle(server))
    await until(http, (await begin(http, "[dumb b]"))["id"], "in_progress")  # the last one of all that were sent
    speak(server, "b")
    await eventually(lambda: is_idle(server))
    begun = [await begin(http, "[hang]") for _ in range(RUNNING + WAITING)]
    await cancel(http, *begun)
    assert set(stored_statuses(server).values()) <= {"completed", "cancelled", "failed"}


async def test_no_more_wait_than_the_maximum(server: Server, http: httpx.AsyncClient) -> None:
    bodies = [{"input": f"[hang] {number}", "background": True} for number in range(12)]
    answers = await asyncio.gather(*(http.post("/responses", json=body) for body in bodies))
    begun = [answer.json() for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code != 200]
    assert (len(begun), len(refused)) == (RUNNING + WAITING, len(bodies) - RUNNING - WAITING)
    for answer in refused:
        message = read_error_answer(answer, status=429, code="rate_limit_exceeded")
        assert "BACKGROUND_MAX_QUEUED" in message
        assert int(answer.headers["retry-after"]) >= 1
    answer = await http.post("/responses", json={"input": "x", "background": True, "stream": True})
    read_error_answer(answer, status=429, code="rate_limit_exceeded")
    assert (await http.post("/responses", json={"input": "In the foreground"})).json()["status"] == "completed"
    assert (await ready(server))["background_queued"] == WAITING
    statuses = sorted([(await get(http, response["id"]))["status"] for response in begun])
    assert statuses == ["in_progress"] * RUNNING + ["queued"] * WAITING
    (first,) = await cancel(http, begun[-1])
    assert first["status"] == "cancelled"
    begun[-1] = await begin(http, "There is room again")
    assert {response["status"] for response in await cancel(http, *begun)} == {"cancelled"}


@pytest.mark.each_database
@pytest.mark.parametrize("store", [True, False])
async def test_one_that_runs_is_cancelled_and_keeps_what_was_said(
    server: Server, http: httpx.AsyncClient, store: bool
) -> None:
    stream = await RawStream.create(server, input="[hang]", background=True, store=store)
    events = await stream.until("response.output_text.delta")
    response_id = events[0]["response"]["id"]
    both = await asyncio.gather(*(http.post(f"/responses/{response_id}/cancel") for _ in range(2)))
    assert [answer.json()["status"] for answer in both] == ["cancelled"] * 2
    events += await stream.rest()
    assert_laws(events)
    done = await get(http, response_id)
    assert done == events[-1]["response"] == both[0].json()
    assert text_of(done) == "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta") != ""
    assert done["usage"]["output_tokens"] > SPOKEN
    await eventually(lambda: was_aborted(server, response_id))


@pytest.mark.each_database
@pytest.mark.parametrize("store", [True, False])
async def test_one_that_is_deleted_ends_and_makes_room(server: Server, http: httpx.AsyncClient, store: bool) -> None:
    stream = await RawStream.create(server, input="[hang]", background=True, store=store)
    events = await stream.until("response.output_text.delta")
    response_id = events[0]["response"]["id"]
    assert (await http.delete(f"/responses/{response_id}")).json()["deleted"] is True
    events += await stream.rest()
    assert events[-1]["response"]["status"] == "cancelled"
    await eventually(lambda: was_aborted(server, response_id))
    read_error_answer(await http.get(f"/responses/{response_id}"), status=404, code=None, param="response_id")
