"""What the tests of steering share: a response that runs, what is said to it, and how it ends."""

from typing import Any

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.requests.resources import Status
from responses_app.protocol.session.session import Command, WebSocketSession
from responses_app.protocol.session.steering import Create
from tests.unit.protocol.sessions import create, frames, link, started

CALL: JsonObject = {"type": "function_call", "call_id": "call_1", "name": "f", "status": "completed", "arguments": "{}"}
STUB = {"type": "function_call_output", "call_id": "call_1", "name": "f"}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "18 °C"}


def begun(
    connection: WebSocketSession, response_id: str = "resp_1", lane: str | None = None, **fields: object
) -> Create:
    """Let a response run on a lane."""
    [each] = started(connection.receive(*create(lane, input="hi", **fields)))
    connection.started(each, response_id)
    return each


def steer(
    connection: WebSocketSession, given: object = "Faster!", response_id: object = "resp_1", **more: object
) -> list[Command]:
    frame = {"type": "response.steer", "previous_response_id": response_id, "input": given, **more}
    return connection.receive(frame, 100)


def steered(connection: WebSocketSession, **fields: Any) -> Create:
    """Let a response run, and say something to it."""
    first = begun(connection, **fields)
    steer(connection)
    return first


def types(commands: list[Command]) -> list[object]:
    return [frame["type"] for frame in frames(commands)]


def failed(commands: list[Command]) -> list[tuple[object, object, object]]:
    """Return code, id and input of each submission that came back."""
    found = [frame for frame in frames(commands) if frame["type"] == "response.steer.failed"]
    assert all(frame["error"]["type"] == "invalid_request_error" for frame in found)  # type: ignore[index]
    return [(f["error"]["code"], f["steer"].get("id"), f["steer"]["input"]) for f in found]  # type: ignore[index, attr-defined]


def end(
    connection: WebSocketSession,
    create: Create,
    response_id: str = "resp_1",
    status: Status = Status.INCOMPLETE,
    output: tuple[JsonObject, ...] = (),
) -> list[Command]:
    known = link(response_id) if status in (Status.COMPLETED, Status.INCOMPLETE) else None
    return connection.ended(create, status, known, None, output)
