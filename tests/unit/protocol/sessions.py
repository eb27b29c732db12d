"""What the tests of `WebSocketSession` share: creates in short, and reading its commands."""

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import orjson

from engine.formats.harmony.prompt import render_text
from responses_app.protocol.errors import ApiError
from responses_app.protocol.prompt.chain import ChainLink, new_link
from responses_app.protocol.requests.resources import Status
from responses_app.protocol.session.session import Command, SessionLimits, SessionSettings, Start, WebSocketSession
from responses_app.protocol.session.steering import Create, Reply, Send

DEEP = orjson.loads("[" * 1010 + "]" * 1010)
SETTINGS = SessionSettings(
    websocket_max_queued=5, websocket_warning_seconds=50, websocket_lifetime_seconds=60, websocket_grace_seconds=10
)
LIMITS = SessionLimits(max_in_flight=3, max_lanes=4)


def session(settings: SessionSettings = SETTINGS, **changes: Any) -> WebSocketSession:
    """Return a session with changes of its settings, or of its other limits."""
    others = {name: changes.pop(name) for name in [*changes] if not name.startswith("websocket_")}
    settings, limits = replace(settings, **changes), replace(LIMITS, **others)
    ids = (f"steer_{number}" for number in count(1))
    return WebSocketSession(settings, 1000.0, partial(next, ids), unix_offset=1_700_000_000.0, limits=limits)


def create(lane: str | None = None, /, *, size: int = 100, **fields: object) -> tuple[dict[str, object], int]:
    named = {} if lane is None else {"stream_id": lane}
    return {"type": "response.create", **named, **fields}, size


def started(commands: Iterable[Command]) -> list[Create]:
    return [command.create for command in commands if isinstance(command, Start)]


def frames(commands: Iterable[Command]) -> list[dict[str, object]]:
    texts = [command.text for command in commands if isinstance(command, Send)]
    return [json.loads(text) for text in texts] + [command.frame for command in commands if isinstance(command, Reply)]


def codes(commands: Iterable[Command]) -> list[tuple[object, object, object]]:
    """Return (status, code, stream_id) of each error frame."""
    sent = [frame for frame in frames(commands) if frame["type"] == "error"]
    return [(frame["status"], frame["error"]["code"], frame.get("stream_id")) for frame in sent]  # type: ignore[index]


def link(response_id: str, text: str = "hi", parent: ChainLink | None = None) -> ChainLink:
    return new_link(
        parent, response_id=response_id, started_on="2026-11-21", messages=[render_text("user", text)], items=[]
    )


def run(
    connection: WebSocketSession,
    response_id: str,
    lane: str | None = None,
    status: Status = Status.COMPLETED,
    problem: ApiError | None = None,
    **fields: object,
) -> list[Command]:
    """Let a create on an idle lane run to its end."""
    [begun] = started(connection.receive(*create(lane, **fields)))
    return connection.ended(begun, status, link(response_id) if status is not Status.FAILED else None, problem)
