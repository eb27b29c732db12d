"""A stored response's stream is read again by any worker, after a restart too, byte for byte."""

from pathlib import Path

import pytest

from tests.kit.clients import Frame, Socket, http_client, read_error_answer
from tests.kit.raw_streams import RawStream
from tests.kit.scripts import main_script
from tests.kit.server import Server


def server_of(folder: Path, kind: str = "daphne", **settings: object) -> Server:
    """A server of a folder; several of one folder share its database."""
    return Server(folder, kind=kind, script=main_script(folder), model_name="test-model", **settings)


async def made(server: Server, transport: str) -> list[Frame]:
    """Let a stored response be streamed to its end."""
    if transport == "websocket":
        async with await Socket.open(server.ws_url) as socket:
            await socket.create("Hello")
            return await socket.answer()
    return await (await RawStream.create(server, input="Hello", background=transport == "background")).rest()


async def again(server: Server, response_id: str, number: int) -> list[Frame]:
    """Read a stream behind the event `number`."""
    return await (await RawStream.resume(server, response_id, None if number < 0 else number)).rest()


@pytest.mark.parametrize("transport", ["sse", "websocket", "background"])
@pytest.mark.each_database
async def test_after_a_restart_and_at_another_worker(folder: Path, kind: str, transport: str) -> None:
    with server_of(folder, kind) as first:
        events = await made(first, transport)
    response_id = events[0]["response"]["id"]
    second, third = server_of(folder, kind), server_of(folder, kind)
    third.log = folder / "third.log"
    with second, third:
        for server in (second, third):
            for number in (-1, 0, len(events) // 2, len(events) - 2):
                assert await again(server, response_id, number) == events[number + 1 :]
        async with http_client(second) as http:
            assert (await http.delete(f"/responses/{response_id}")).status_code == 200
        async with http_client(third) as http:
            gone = await http.get(f"/responses/{response_id}?stream=true")
            read_error_answer(gone, status=404, code=None, param="response_id")
