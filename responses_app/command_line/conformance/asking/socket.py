"""How a check talks over the server's WebSocket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from responses_app.command_line.conformance.asking.shapes import TERMINAL, Json
from responses_app.command_line.conformance.asking.talk import MAX_BODY, MAX_EVENTS, MOST_TOKENS, Talk, read_json
from responses_app.command_line.conformance.asking.verdicts import Absent, Failed

ENDS = (*TERMINAL, "response.steer.failed", "response.steer.accepted")
CLOSE_SECONDS = 2.0  # for the server to close, too


class Socket:
    """One connection."""

    def __init__(self, talk: Talk, connection: aiohttp.ClientWebSocketResponse) -> None:
        self._talk = talk
        self._connection = connection
        self.frames = 0  # that have come

    @property
    def is_open(self) -> bool:
        """Whether neither side has closed."""
        return not self._connection.closed

    async def send(self, frame: object) -> None:
        """Send a frame; a text is sent as it is."""
        self._talk.note("WebSocket", frame, None, "")
        if isinstance(frame, str):
            await self._connection.send_str(frame)
        else:
            await self._connection.send_json(frame)

    async def begin(self, **fields: Any) -> None:
        """Send a `response.create`."""
        known = {"model": self._talk.model, "max_output_tokens": MOST_TOKENS}
        await self.send({"type": "response.create", **known, **fields})

    async def create(self, **fields: Any) -> list[Json]:
        """Return the events of a new response, alone on this connection."""
        await self.begin(**fields)
        return await self.events()

    async def events(self, ends: int = 1) -> list[Json]:
        """Return what comes until so many responses or errors have ended."""
        found: list[Json] = []
        while ends:
            found.append(await self.receive())
            ends -= found[-1].get("type") in ENDS
        return found

    async def receive(self) -> Json:
        """Return the next frame. Raises `Failed` where the connection ends, or the frame is no text with an object."""
        message = await self._connection.receive()
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise Failed(f"instead of a text frame came {message.type.name} {str(message.data or '')[:200]}")
        self.frames += 1
        self._talk.note("WebSocket", None, None, message.data)
        if self.frames > MAX_EVENTS:
            raise Failed(f"more than {MAX_EVENTS} frames came")
        frame = read_json(message.data, "a frame")
        if not isinstance(frame, dict):
            raise Failed(f"a frame is not an object: {message.data[:200]}")
        return frame

    async def ping(self) -> None:
        """Send a ping, and return when the server has answered it."""
        await self._connection.ping(b"conformance")
        message = await self._connection.receive()
        if message.type is not aiohttp.WSMsgType.PONG:
            raise Failed(f"instead of a pong came {message.type.name}")


@asynccontextmanager
async def socket(talk: Talk, *, autoping: bool = True) -> AsyncIterator[Socket]:
    """Connect. Raises `Absent` where the server does not upgrade."""
    server = talk.server
    try:
        connection = await server.session.ws_connect(
            server.endpoint.websocket_url,
            max_msg_size=MAX_BODY,
            autoping=autoping,
            timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_SECONDS),
        )
    except aiohttp.WSServerHandshakeError as error:
        talk.note("GET /responses, upgrade to WebSocket", None, error.status, error.message)
        raise Absent(f"the upgrade was answered with {error.status}") from None
    try:
        yield Socket(talk, connection)
    finally:
        await connection.close()
