"""A connection's life: the warning, the end when idle, the end when something still runs."""

import time

import pytest

from tests.inprocess.conftest import Connect
from tests.kit.clients import Socket, http_client, read_error_frame
from tests.kit.fixtures import module_server
from tests.kit.inprocess import Server
from tests.kit.scripts import gate, main_script, release, was_aborted
from tests.kit.waiting import eventually

OVER = {"status": 400, "code": "websocket_connection_limit_reached"}
LIFETIME, WARNED_BEFORE, LAST_GRACE = 3600.0, 110.0, 900.0  # seconds, of which none is waited for
SLACK = 25.0  # seconds: more than a test takes, and few beside the times of a connection


# Its connections live for `LIFETIME`, and for `LAST_GRACE` more with a response running.
impatient_server = module_server(
    "impatient",
    Server,
    script=main_script,
    journal=True,
    websocket_lifetime_seconds=LIFETIME,
    websocket_warning_seconds=LIFETIME - WARNED_BEFORE,
    websocket_grace_seconds=LAST_GRACE,
)


async def end_of_life(server: Server, socket: Socket) -> None:
    """Move the clock behind the connection's time."""
    server.advance(LIFETIME - WARNED_BEFORE + SLACK)
    while not socket.frames("connection_expiring"):
        await socket.receive()
    server.advance(WARNED_BEFORE)


async def test_an_idle_connection_is_warned_and_closed(impatient_server: Server, open_socket: Connect) -> None:
    opened = time.time()
    socket = await open_socket(impatient_server)
    impatient_server.advance(LIFETIME - WARNED_BEFORE - SLACK)
    await socket.ask("Hello", "lane")
    assert not socket.frames("connection_expiring")
    impatient_server.advance(2 * SLACK)
    await socket.ask("Hello", "lane")
    assert socket.frames("connection_expiring")
    impatient_server.advance(WARNED_BEFORE)
    assert await socket.closed() == 1000
    warning, error = [frame for frame in socket.log if not frame["type"].startswith("response.")]
    assert set(warning) == {"type", "message", "seconds_left", "closes_at"}
    assert warning["type"] == "connection_expiring"
    left = warning["seconds_left"]
    assert WARNED_BEFORE - 2 * SLACK <= left <= WARNED_BEFORE
    assert warning["message"] == f"Connection will close in {left} second{'' if left == 1 else 's'}"
    assert opened + LIFETIME - 0.5 <= warning["closes_at"] <= time.time() + LIFETIME + 0.5
    assert "stream_id" not in error
    message = read_error_frame(error, **OVER)
    assert message.startswith("Responses websocket connection limit reached (60 minutes). ")


async def test_what_runs_may_finish_and_the_rest_is_sent_away(impatient_server: Server, open_socket: Connect) -> None:
    socket = await open_socket(impatient_server)
    await socket.create(gate("e0"), "runs")
    await socket.create("Waits since long", "runs")
    await socket.until("response.output_text.delta", "runs")
    await end_of_life(impatient_server, socket)
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
    socket = await open_socket(impatient_server)
    await socket.create(word, "runs")
    await socket.create("Waits since long", "runs")
    running = (await socket.until("response.created", "runs"))[0]["response"]["id"]
    await end_of_life(impatient_server, socket)
    impatient_server.advance(LAST_GRACE - 3 * SLACK)
    await socket.send({"type": "response.steer"})  # its answer shows that the connection goes on
    assert (await socket.next())["type"] == "response.steer.failed"
    impatient_server.advance(4 * SLACK)
    assert await socket.closed() == 1000
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
