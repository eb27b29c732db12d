"""A connection's life: the warning, the end when idle, the end when something still runs."""

import time

import pytest

from tests.kit.clients import Socket, http_client, read_error_frame
from tests.kit.scripts import gate, release, was_aborted
from tests.kit.server import Server
from tests.kit.waiting import eventually
from tests.wire.transports.conftest import LAST_GRACE, LIFETIME, WARNED_BEFORE, Connect

pytestmark = pytest.mark.any_database

OVER = {"status": 400, "code": "websocket_connection_limit_reached"}


async def end_of_life(socket: Socket) -> None:
    """Wait until the connection's time is over."""
    while not socket.frames("connection_expiring"):
        await socket.receive()
    closes_at = socket.frames("connection_expiring")[0]["closes_at"]
    await eventually(lambda: time.time() > closes_at + 0.6)  # `closes_at` is rounded to seconds


async def test_an_idle_connection_is_warned_and_closed(impatient_server: Server, open_socket: Connect) -> None:
    opened = time.time()
    socket = await open_socket(impatient_server)
    await socket.ask("Hello", "lane")
    assert await socket.closed() == 1000
    warning, error = [frame for frame in socket.log if not frame["type"].startswith("response.")]
    assert set(warning) == {"type", "message", "seconds_left", "closes_at"}
    assert warning["type"] == "connection_expiring"
    left = warning["seconds_left"]
    assert 0 <= left <= WARNED_BEFORE
    assert warning["message"] == f"Connection will close in {left} second{'' if left == 1 else 's'}"
    assert opened + LIFETIME - 0.5 <= warning["closes_at"] <= time.time() + 0.5
    assert "stream_id" not in error
    message = read_error_frame(error, **OVER)
    assert message.startswith("Responses websocket connection limit reached (3 seconds). ")
    assert time.time() - opened >= LIFETIME


async def test_what_runs_may_finish_and_the_rest_is_sent_away(impatient_server: Server, open_socket: Connect) -> None:
    socket = await open_socket(impatient_server)
    await socket.create(gate("e0"), "runs")
    await socket.create("Waits since long", "runs")
    await socket.until("response.output_text.delta", "runs")
    await end_of_life(socket)
    await socket.create("Comes late", "late")
    await socket.create("Comes late")
    await socket.send({"type": "response.steer"})  # its answer shows that the two before it were read
    assert (await socket.next())["type"] == "response.steer.failed"
    assert socket.frames("error") == [], "clients drop the connection at that frame"
    release(impatient_server, "e0")
    assert (await socket.answer("runs"))[-1]["type"] == "response.completed"
    assert await socket.closed() == 1000
    last = socket.log[-3:]
    assert {frame.get("stream_id") for frame in last} == {"runs", "late", None}
    for frame in last:
        read_error_frame(frame, **OVER)
    assert len(socket.frames("response.created")) == 1


@pytest.mark.parametrize("word", ["[hang]", "[silence]"])
async def test_the_end_of_the_grace_cancels(impatient_server: Server, open_socket: Connect, word: str) -> None:
    opened = time.time()
    socket = await open_socket(impatient_server)
    await socket.create(word, "runs")
    await socket.create("Waits since long", "runs")
    running = (await socket.until("response.created", "runs"))[0]["response"]["id"]
    assert await socket.closed() == 1000
    assert time.time() - opened >= LIFETIME + LAST_GRACE
    *_, ending, error = socket.log
    assert (ending["type"], ending["response"]["status"]) == ("response.incomplete", "cancelled")
    assert (ending["response"]["id"], ending["stream_id"]) == (running, "runs")
    read_error_frame(error, **OVER)
    assert error["stream_id"] == "runs", "the one that waited"
    assert socket.raw.close_reason == OVER["code"]
    async with http_client(impatient_server) as http:
        assert (await http.get(f"/responses/{running}")).json() == ending["response"]
    assert [frame for frame in socket.log if frame["type"] == "connection_expiring"] != []
    await eventually(lambda: was_aborted(impatient_server, running))
    await eventually(lambda: f"response {running} websocket cancelled" in impatient_server.output)
