"""Hostile words to responses that run: huge ones, floods, and types that no client sends. The connection stays."""

from collections import Counter

import pytest

from tests.inprocess.transports.test_steering import begin, script, steer
from tests.kit.clients import Frame, Socket
from tests.kit.fixtures import server_of_each_kind

LAG = 256 * 1024  # bytes: STREAM_MAX_LAG_BYTES
FLOOD = 1000
MAX_STEERS = 16


server = server_of_each_kind("hostile", script=script, journal=True, stream_max_lag_bytes=LAG)


async def test_input_that_comes_back_is_whole_however_long_it_is(socket: Socket) -> None:
    await steer(socket, "resp_nobody", "x" * 2 * LAG)
    assert (await socket.next())["steer"]["input"] == "x" * 2 * LAG
    events = await begin(socket)
    response_id = events[0]["response"]["id"]
    texts = [str(number) * LAG for number in range(6)]  # each may wait, and together they are more than the lag
    for text in texts:
        await steer(socket, response_id, text)
    while len(socket.frames("response.steer.accepted")) < len(texts):
        await socket.receive()
    await socket.send({"type": "response.cancel", "response_id": response_id})
    while len(socket.frames("response.steer.failed")) < 1 + len(texts):
        await socket.receive()
    back = socket.frames("response.steer.failed")[1:]
    assert [frame["steer"]["input"] for frame in back] == texts
    assert {frame["error"]["code"] for frame in back} == {"successor_creation_failed"}
    assert (await socket.ask("Still here", "another"))["status"] == "completed"


def words(kind: str, response_id: str) -> Frame:
    """Return what is said to a response."""
    if kind == "steer":
        return {"type": "response.steer", "previous_response_id": response_id, "input": "More!"}
    return {"type": f"response.{kind}", "response_id": response_id}


@pytest.mark.parametrize("kind", ["steer", "interrupt", "cancel"])
async def test_a_flood_is_answered_word_for_word(socket: Socket, kind: str) -> None:
    events = await begin(socket, store=False)
    for _ in range(FLOOD):
        await socket.send(words(kind, events[0]["response"]["id"]))
    await socket.send({"type": "session.update"})
    while not socket.frames("error"):
        await socket.receive()
    answers = Counter(frame["type"] for frame in socket.log if frame["type"].startswith(f"response.{kind}."))
    expected = {
        "steer": {"response.steer.accepted": MAX_STEERS, "response.steer.failed": FLOOD - MAX_STEERS},
        "interrupt": {"response.interrupt.accepted": 1, "response.interrupt.failed": FLOOD - 1},
        "cancel": {},
    }
    assert answers == expected[kind]
    wanted = 2 if kind == "steer" else 1
    while len([frame for frame in socket.log if frame["type"] in ENDS]) < wanted:
        await socket.receive()


ENDS = ("response.completed", "response.incomplete", "response.failed")


@pytest.mark.parametrize(
    "part", [{"type": []}, {"type": {"a": 1}, "text": "x"}, {"type": "input_text", "text": [7]}, []]
)
async def test_parts_of_any_shape_are_refused(socket: Socket, part: object) -> None:
    await steer(socket, "resp_nobody", [{"role": "user", "content": [part]}])
    assert (await socket.next())["error"]["code"] == "invalid_input"
