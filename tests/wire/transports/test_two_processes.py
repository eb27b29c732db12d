"""Two servers on one database: what one makes, the other reads, continues and deletes; neither ever finds it locked."""

import httpx
import pytest

from tests.kit.background import begin, get, is_idle, new_server, speak
from tests.kit.clients import Frame, Socket, read_error_answer, read_error_frame
from tests.kit.fixtures import module_pair
from tests.kit.raw_streams import RawStream
from tests.kit.scripts import as_history, generations
from tests.kit.server import Server
from tests.kit.stored import stored_statuses
from tests.kit.waiting import eventually
from tests.wire.transports.load import under_load

ENOUGH = 60  # promises of each server
LEASE = 8.0  # WORKER_LEASE_SECONDS: a busy machine lets no worker stand still for so long


pair = module_pair("pair", new_server, background_max_running=5, background_max_queued=100, worker_lease_seconds=LEASE)


async def create(http: httpx.AsyncClient, given: object, **fields: object) -> Frame:
    """Create a response in the foreground."""
    answer = await http.post("/responses", json={"input": given, **fields})
    assert answer.status_code == 200, answer.text
    response: Frame = answer.json()
    return response


@pytest.mark.each_database
async def test_under_load_nothing_is_locked_and_everything_is_kept(
    pair: tuple[Server, Server], one: httpx.AsyncClient, two: httpx.AsyncClient
) -> None:
    async with under_load(pair[0], enough=ENOUGH) as ones, under_load(pair[1], enough=ENOUGH) as twos:
        pass
    for server in pair:
        await eventually(lambda server=server: is_idle(server))  # type: ignore[misc]
    for promises, http in ((ones, two), (twos, one)):
        for seen in promises.seen:
            assert await get(http, seen["id"]) == seen
        for response_id in promises.ids - {seen["id"] for seen in promises.seen}:
            assert (await get(http, response_id))["status"] == "completed"
    assert set(stored_statuses(pair[0]).values()) <= {"completed", "cancelled"}


@pytest.mark.each_database
async def test_a_chain_goes_from_one_to_the_other_token_by_token(
    pair: tuple[Server, Server], one: httpx.AsyncClient, two: httpx.AsyncClient
) -> None:
    parent: Frame = {}
    for turn, http in enumerate((one, two, one, two)):
        before = {"previous_response_id": parent["id"]} if parent else {}
        response = await create(http, f"Hello {turn}", **before)
        (generation,) = generations(pair[0], response["id"])  # both write into one journal
        if parent:
            history = as_history(generations(pair[0], parent["id"])[0])
            assert generation["prompt_tokens"][: len(history)] == history
        parent = response


@pytest.mark.parametrize("store", [True, False])
@pytest.mark.each_database
async def test_what_is_deleted_at_the_other_is_not_continued_where_it_was_made(
    pair: tuple[Server, Server], two: httpx.AsyncClient, store: bool
) -> None:
    """Nobody tells the first of it: there is no Redis here."""
    async with await Socket.open(pair[0].ws_url) as socket:
        first = await socket.ask("Hello")
        second = await socket.ask("Again", previous_response_id=first["id"], store=store)
        assert (await two.delete(f"/responses/{first['id']}")).status_code == 200
        await socket.ask("What continued it goes on", previous_response_id=second["id"], store=False)
        kept = await socket.ask("Hello")
        assert (await two.delete(f"/responses/{kept['id']}")).status_code == 200
        before = set(stored_statuses(pair[0]))
        for _ in range(2):
            await socket.create("And?", previous_response_id=kept["id"], store=store)
            gone = {"status": 400, "code": "previous_response_not_found", "param": "previous_response_id"}
            read_error_frame(await socket.error(), **gone)
        assert set(stored_statuses(pair[0])) == before


async def test_what_is_deleted_at_the_other_stays_deleted_when_it_ends(
    pair: tuple[Server, Server], one: httpx.AsyncClient, two: httpx.AsyncClient
) -> None:
    background = await begin(one, "[dumb b]")
    stream = await RawStream.create(pair[0], input="[dumb b]")
    events = await stream.take(2)
    ids = [background["id"], events[0]["response"]["id"]]
    await eventually(lambda: set(ids) <= set(stored_statuses(pair[0])))
    for response_id in ids:
        assert (await two.delete(f"/responses/{response_id}")).json()["deleted"] is True
    speak(pair[0], "b")
    assert (await stream.rest())[-1]["type"] == "response.completed"
    await eventually(lambda: is_idle(pair[0]))
    for http in (one, two):
        for response_id in ids:
            read_error_answer(await http.get(f"/responses/{response_id}"), status=404, code=None, param="response_id")
    assert not set(ids) & set(stored_statuses(pair[0]))
