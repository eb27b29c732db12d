"""`respsite replay ID`: a stored response once more, as it came: its events, at its metronome or a multiple of it.

Events tell no times. So the metronome is the response's own mean one: its seconds, by the tokens that it said.
"""

import asyncio
import json
import sys
import time
from argparse import Namespace
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from responses_app.command_line.endpoint import FAILED, CommandFailed, RemoteServer, endpoint_of, fetch, session_options
from responses_app.extensions.terminal.showing import Plain, Vivid
from responses_app.extensions.terminal.streams import TERMINAL, EventView, events_of
from responses_app.management.terminal import console
from responses_app.protocol.json_text import one_line

MAX_CUTS = 1000  # times that the stream is picked up again: who reads slowly is dropped by the server
LIVE = ("queued", "in_progress")


def run(options: Namespace) -> int:
    """Show it, and return 1 where it failed."""
    return asyncio.run(_replay(options))


async def _replay(options: Namespace) -> int:
    endpoint = endpoint_of(options.url, options.key_variable)
    view = _view(options)
    async with aiohttp.ClientSession(**session_options(endpoint)) as session:
        response = await fetch(session, endpoint, f"/responses/{options.id}")
        metronome = Metronome(0.0 if response["status"] in LIVE else seconds_per_token(response) / options.speed)
        last: dict[str, Any] = {}
        async for event in _whole_stream(session, endpoint, options.id, options.starting_after):
            if event["type"].endswith(".delta"):
                await metronome.wait()
            view.show(event)
            last = event
    view.end()
    return FAILED if last.get("type") == "response.failed" else 0


def _view(options: Namespace) -> EventView:
    if options.json:
        return Lines()
    if sys.stdout.isatty():
        return Vivid(console(), reasoning=True, timed=False)
    return Plain(_write)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


async def _whole_stream(
    session: aiohttp.ClientSession, endpoint: RemoteServer, response_id: str, after: int | None
) -> AsyncIterator[dict[str, Any]]:
    """Yield all events, picking the stream up where it breaks."""
    for _ in range(MAX_CUTS):
        params = {"stream": "true", **({} if after is None else {"starting_after": str(after)})}
        # The number up to which this try knows the stream.
        before = after
        try:
            async for event in events_of(session, endpoint, f"/responses/{response_id}", params=params):
                after = event.get("sequence_number", after)
                yield event
                if event["type"] in TERMINAL:
                    return
        except CommandFailed:
            if after == before:  # nothing came at all: it is refused, or the server is away
                raise
        if after == before:
            return  # all has been seen: it was asked for what comes behind the end
    raise CommandFailed(f"The stream broke {MAX_CUTS} times. Try a greater --speed.")


def seconds_per_token(response: dict[str, Any]) -> float:
    """Return how long it took, by the tokens it said; 0 where its whole seconds do not tell."""
    tokens = (response.get("usage") or {}).get("output_tokens") or 0
    seconds = (response.get("completed_at") or response["created_at"]) - response["created_at"]
    return max(0.0, seconds / tokens) if tokens else 0.0


class Metronome:
    """Lets something pass every so many seconds; what comes late is made up for."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._due = time.monotonic()

    async def wait(self) -> None:
        """Wait until the next one is due."""
        # From the last due time, and not from now: what came late is made up for.
        self._due += self._seconds
        if (left := self._due - time.monotonic()) > 0:
            await asyncio.sleep(left)


class Lines(EventView):
    """Every event as a line of JSON."""

    def show(self, event: dict[str, Any]) -> None:
        """Write it."""
        _write(one_line(json.dumps(event, ensure_ascii=False).encode()).decode() + "\n")

    def end(self) -> None:
        """Every line has been written."""
