"""Server-sent events over a bare socket that can be cut at any moment, as a process that is killed leaves it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from tests.kit.clients import WAIT_SECONDS, Frame
from tests.kit.server import Server

CUT = (ConnectionError, asyncio.IncompleteReadError)


class Refused(AssertionError):
    """A 503: the client is to come again."""


class RawStream:
    """One stream; heartbeats are left out."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._lines = self._read_lines()
        self.done = False  # `[DONE]` was read

    @classmethod
    async def create(cls, server: Server, **body: Any) -> "RawStream":
        content = json.dumps({"stream": True, **body}).encode()
        head = f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        return await cls._open(server, "POST /v1/responses", head, content)

    @classmethod
    async def resume(cls, server: Server, response_id: str, last: int | None = None) -> "RawStream":
        """Pick up the stream of a response, behind the event `last`."""
        query = "" if last is None else f"&starting_after={last}"
        return await cls._open(server, f"GET /v1/responses/{response_id}?stream=true{query}")

    @classmethod
    async def _open(cls, server: Server, line: str, head: str = "", body: bytes = b"") -> "RawStream":
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(f"{line} HTTP/1.1\r\nHost: localhost\r\n{head}\r\n".encode() + body)
        return cls(reader, writer)

    def kill(self) -> None:
        """Cut the connection without a word; what was sent and not read yet is lost."""
        self._writer.transport.abort()

    async def next(self) -> Frame | None:
        """Return the next event, None at the end. Raises one of `CUT` where the server has cut the stream.

        Behind an event there may be more; behind anything else the connection is closed here, too.
        """
        event = None
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                async for line in self._lines:
                    if line == b"data: [DONE]":
                        self.done = True
                    elif line.startswith(b"data: ") and (frame := json.loads(line[6:]))["type"] != "response.ping":
                        event = dict(frame)
                        return event
            return None
        finally:
            if event is None:
                self.kill()

    async def take(self, count: int) -> list[Frame]:
        """Return up to `count` events; fewer where the stream ends."""
        events: list[Frame] = []
        while len(events) < count and (event := await self.next()) is not None:
            events.append(event)
        return events

    async def until(self, kind: str) -> list[Frame]:
        """Return the events up to one of this type."""
        events: list[Frame] = []
        while not events or events[-1]["type"] != kind:
            event = await self.next()
            assert event is not None, events
            events.append(event)
        return events

    async def rest(self) -> list[Frame]:
        """Return all events that are left; the stream ends as it should."""
        events = await self.take(10**9)
        assert self.done
        return events

    async def rest_until_cut(self) -> list[Frame]:
        """Return all events that come before the server cuts the stream, whose end is elsewhere or unknown."""
        events: list[Frame] = []
        with suppress(*CUT):
            while (event := await self.next()) is not None:
                events.append(event)
            raise AssertionError("the stream ended as if it were whole")
        self.kill()
        return events

    async def _chunk_size(self) -> int:
        line = await self._reader.readline()
        if not line:
            raise ConnectionResetError("the stream was cut between two chunks")
        return int(line, 16)

    async def _read_lines(self) -> AsyncIterator[bytes]:
        head = await self._reader.readuntil(b"\r\n\r\n")
        if head.split()[1] == b"503":
            raise Refused(head.decode())
        assert head.split()[1] == b"200", head + await self._reader.read(1000)
        text = b""
        while size := await self._chunk_size():
            *lines, text = (text + await self._reader.readexactly(size)).split(b"\n")
            await self._reader.readexactly(2)
            for line in lines:
                yield line
