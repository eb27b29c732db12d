"""`Connection`: the WebSocket of an endpoint, with several lanes on it. It is opened when it is needed, and again."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from responses_app.command_line.base.endpoint import Endpoint, message_of, session_options
from responses_app.command_line.base.exits import CommandFailed

Frame = dict[str, Any]
MAX_FRAME_BYTES = 64 * 1024 * 1024
OPEN_SECONDS = 30.0  # for a connection and its upgrade
PING_SECONDS = 30.0  # a connection that leaves a ping unanswered for half of that is lost
MAX_WAITING = 1000  # frames of a lane that nobody has read yet: the server is made to wait then
TERMINAL = ("response.completed", "response.incomplete", "response.failed")
UNASKED = ("connection_expiring", "response.ping")  # of no concern: the connection is opened anew when it has ended


class Refused(CommandFailed):
    """The server answers a create with an error frame."""


class Connection:
    """One connection at a time. Lanes run beside each other; each has one create at a time."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._session: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._reader: asyncio.Task[None] | None = None
        self._lanes: dict[str | None, asyncio.Queue[Frame | None]] = {}
        self._opening = asyncio.Lock()

    async def create(self, lane: str | None, body: Frame) -> AsyncIterator[Frame]:
        """Send a `response.create` and yield its events, the terminal one last. Raises `CommandFailed`."""
        await self._open()
        queue = self._lanes[lane] = asyncio.Queue(MAX_WAITING)
        has_ended = False
        try:
            await self._send({"type": "response.create", **body, **({"stream_id": lane} if lane else {})})
            while True:
                event = await queue.get()
                if event is None:
                    raise CommandFailed("The connection was lost before the answer had ended. Send it again.")
                has_ended = event.get("type") in ("error", *TERMINAL)
                if event.get("type") == "error":
                    raise self._error(event)
                yield event
                if has_ended:
                    return
        finally:
            del self._lanes[lane]
            if not has_ended and self._socket is not None:  # what still comes is not for the lane's next create
                await self._socket.close()

    async def interrupt(self, response_id: str) -> None:
        """End a response at once, so that it can be continued."""
        await self._send({"type": "response.interrupt", "response_id": response_id})

    async def aclose(self) -> None:
        """Close the connection."""
        if self._reader is not None:
            self._reader.cancel()
        if self._socket is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._socket.close(), 2)
        if self._session is not None:
            await self._session.close()

    async def _open(self) -> None:
        async with self._opening:
            if self._socket is not None and not self._socket.closed:
                return
            if self._session is None:
                self._session = aiohttp.ClientSession(**session_options(self._endpoint))
            try:
                async with asyncio.timeout(OPEN_SECONDS):
                    self._socket = await self._session.ws_connect(
                        self._endpoint.websocket_url, max_msg_size=MAX_FRAME_BYTES, heartbeat=PING_SECONDS
                    )
            except aiohttp.WSServerHandshakeError as error:
                raise self._endpoint.refused(error.status, None) from None
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                raise self._endpoint.unreachable(error) from None
            self._reader = asyncio.create_task(self._read(self._socket), name="read frames")

    async def _send(self, frame: Frame) -> None:
        if self._socket is None:
            return
        try:
            await self._socket.send_str(json.dumps(frame))
        except (aiohttp.ClientError, OSError) as error:
            raise self._endpoint.unreachable(error) from None

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        try:
            async for message in socket:
                if message.type is aiohttp.WSMsgType.TEXT:
                    await self._hand_on(json.loads(message.data))
        except ValueError:  # no JSON: this is no server of responses
            await socket.close()
        for queue in list(self._lanes.values()):
            await queue.put(None)

    async def _hand_on(self, frame: Frame) -> None:
        if frame.get("type") in UNASKED:
            return
        lane = frame.get("stream_id")
        if lane in self._lanes:
            await self._lanes[lane].put(frame)
        elif frame.get("type") == "error" and lane is None:  # it is about the whole connection
            for queue in list(self._lanes.values()):
                await queue.put(frame)

    def _error(self, frame: Frame) -> CommandFailed:
        error = frame.get("error") or {}
        status = frame.get("status") or 500
        if status in (401, 403, 404):
            return self._endpoint.refused(status, frame)
        advice = ""
        if error.get("code") == "previous_response_not_found":
            advice = " Begin anew with /new; without --no-store answers are kept, and can be continued."
        return Refused(f"{message_of(error)}{advice}")
