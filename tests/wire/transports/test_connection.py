"""`SocketConnection` alone: how far its lanes may fall behind together, and a stream that breaks at its very end."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from engine.errors import GenerationFailed
from responses_app.protocol.events.events import TERMINAL, Event
from responses_app.runs.log.journal import EventJournal
from responses_app.runs.retention import RetentionWatch
from responses_app.settings.conf import from_environ
from responses_app.web.sockets.connection import SocketConnection
from responses_app.wiring.site import Site
from tests.kit.waiting import eventually

LANES = 8


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """A site with the demo engine and a small bound; nothing is stored."""
    settings, _ = from_environ({"STREAM_MAX_LAG_BYTES": "1000000", "RESPONSES_STORE": "off"})
    built = Site(settings)
    built.service.retention = RetentionWatch.of_none()  # it would ask the database
    built.engines.start()
    await built.engines["demo"].wait()
    yield built
    await built.registry.aclose()
    await built.engines.aclose()


async def test_lanes_that_are_slow_together_end_the_connection(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Each lane stays under the bound of its own journal; their sum does not."""
    held = asyncio.Event()
    closed: list[tuple[int, str]] = []

    async def send(text: str) -> None:
        await held.wait()

    async def close(code: int, reason: str) -> None:
        closed.append((code, reason))

    connection = SocketConnection(site, send=send, close=close)
    with caplog.at_level(logging.WARNING, logger="respsite"):
        for lane in range(LANES):
            create = {"type": "response.create", "stream_id": f"lane-{lane}", "input": "count to 1500"}
            await connection.receive_text(json.dumps(create))
        await eventually(lambda: closed == [(1008, "it reads too slowly (STREAM_MAX_LAG_BYTES)")])
    await eventually(lambda: len(site.registry) == 0)
    assert "was dropped: it reads too slowly (STREAM_MAX_LAG_BYTES)" in caplog.text
    assert "a reader fell more than" not in caplog.text
    await connection.aclose("the test is over")


async def test_a_stream_that_breaks_at_its_end_is_an_error_and_its_lane_goes_on(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, frames = EventJournal.extend, []

    def broken(journal: EventJournal, events: Sequence[Event]) -> None:
        if any(event.type in TERMINAL for event in events):
            monkeypatch.undo()
            raise RuntimeError("bug: /secret")
        whole(journal, events)

    async def send(text: str) -> None:
        frames.append(json.loads(text))

    async def close(code: int, reason: str) -> None:
        raise AssertionError(f"closed with {code}: {reason}")

    connection = SocketConnection(site, send=send, close=close)
    monkeypatch.setattr(EventJournal, "extend", broken)
    for _ in range(2):
        await connection.receive_text(json.dumps({"type": "response.create", "stream_id": "one", "input": "hi"}))
    await eventually(lambda: frames[-1:] and frames[-1]["type"] == "response.completed")
    (error,) = (frame for frame in frames if frame["type"] == "error")
    assert (error["status"], error["stream_id"], error["error"]["type"]) == (500, "one", "server_error")
    assert "secret" not in str(frames)
    assert [frame["type"] for frame in frames].count("response.created") == 2
    await connection.aclose("the test is over")


@pytest.mark.parametrize("bug", [RuntimeError("bug: /secret"), GenerationFailed("bug: /secret")])
async def test_a_request_that_breaks_before_its_response_is_a_processing_error(
    site: Site, monkeypatch: pytest.MonkeyPatch, bug: Exception
) -> None:
    """Nothing was created, so the lane goes on with the next one."""
    frames: list[dict[str, Any]] = []

    async def send(text: str) -> None:
        frames.append(json.loads(text))

    async def close(code: int, reason: str) -> None:
        raise AssertionError(f"closed with {code}: {reason}")

    def broken(*_: object) -> None:
        monkeypatch.undo()
        raise bug

    connection = SocketConnection(site, send=send, close=close)
    monkeypatch.setattr("responses_app.runs.service.make_plan", broken)
    for _ in range(2):
        await connection.receive_text(json.dumps({"type": "response.create", "stream_id": "one", "input": "hi"}))
    await eventually(lambda: frames[-1:] and frames[-1]["type"] == "response.completed")
    error, created, *_ = frames
    assert (error["type"], error["status"], error["stream_id"]) == ("error", 500, "one")
    assert (error["error"]["type"], error["error"]["code"]) == ("server_error", "processing_error")
    assert created["type"] == "response.created"
    assert "secret" not in str(frames)
    await connection.aclose("the test is over")
