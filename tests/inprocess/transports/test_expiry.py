"""A response past its time to live is unknown from that second on, also to the connection that made it."""

import httpx
import pytest

from tests.kit.clients import Socket, http_client, read_error_frame
from tests.kit.fixtures import module_server
from tests.kit.inprocess import Server
from tests.kit.scripts import main_script
from tests.kit.waiting import eventually

# It forgets after two seconds; nothing is purged while these tests run.
server = module_server("expiry", Server, script=main_script, responses_store_ttl=2)


async def is_unknown(http: httpx.AsyncClient, response_id: str) -> bool:
    """Whether a response cannot be read."""
    return (await http.get(f"/responses/{response_id}")).status_code == 404


@pytest.mark.each_database
async def test_an_expired_response_is_not_continued_on_its_own_connection(server: Server) -> None:
    lanes = {"stored": True, "not-stored": False}
    async with await Socket.open(server.ws_url) as socket, http_client(server) as http:
        made = {lane: await socket.ask("Hello", lane) for lane in lanes}
        unstored = await socket.ask("Hello", store=False)
        for response in made.values():
            await eventually(lambda id=response["id"]: is_unknown(http, id))  # type: ignore[misc]
        for lane, store in lanes.items():
            await socket.create("And?", lane, previous_response_id=made[lane]["id"], store=store)
            gone = {"status": 400, "code": "previous_response_not_found", "param": "previous_response_id"}
            read_error_frame(await socket.error(lane), **gone)
        await socket.ask("What is not stored has no time", previous_response_id=unstored["id"], store=False)
