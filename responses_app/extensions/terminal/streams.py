"""How these commands read events of a server: server-sent ones over HTTP, or a WebSocket with several lanes.

`ChatSession` has the lanes of a chat over one connection, whose event loop has a thread of its own: so the person's
thread can wait for a line, and meanwhile the connection is kept alive and other lanes go on.
"""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

import aiohttp

from responses_app.command_line.endpoint import (
    MAX_LINE,
    CommandFailed,
    RemoteServer,
    body_of,
    message_of,
    session_options,
)


async def events_of(
    session: aiohttp.ClientSession,
    endpoint: RemoteServer,
    path: str,
    *,
    body: Mapping[str, Any] | None = None,
    params: Mapping[str, str] | None = None,
) -> AsyncIterator[dict[str, Any]]:
    """Post `body`, or get without one, and yield the events; `[DONE]` is none. Raises `CommandFailed`."""
    method = "GET" if body is None else "POST"
    try:
        async with session.request(method, f"{endpoint.base_url}{path}", json=body, params=params) as answer:
            if answer.status != 200:
                raise endpoint.refused(answer.status, await body_of(answer))
            async for line in _lines(answer.content):
                if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
                    yield json.loads(data)
    except (aiohttp.ClientError, OSError) as error:
        raise endpoint.unreachable(error) from None


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in content.iter_any():
        # The last part is a line that has not ended.
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
        if len(rest) > MAX_LINE:
            raise aiohttp.ClientPayloadError(f"an event has more than {MAX_LINE} bytes")
    if rest:
        yield rest


Frame = dict[str, Any]
MAX_FRAME_BYTES = 64 * 1024 * 1024
OPEN_SECONDS = 30.0  # for a connection and its upgrade
PING_SECONDS = 30.0  # a connection that leaves a ping unanswered for half of that is lost
MAX_WAITING = 1000  # frames of a lane that nobody has read yet: the server is made to wait then
TERMINAL = ("response.completed", "response.incomplete", "response.failed")
UNASKED = ("connection_expiring", "response.ping")  # of no concern: the connection is opened anew when it has ended


class ServerSocket:
    """A WebSocket to a server, one connection at a time. Lanes run beside each other; each has one create at a time."""

    def __init__(self, endpoint: RemoteServer) -> None:
        self._endpoint = endpoint
        self._session: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._reader: asyncio.Task[None] | None = None
        # Frames that wait, by lanes; None: the connection is lost
        self._lanes: dict[str | None, asyncio.Queue[Frame | None]] = {}
        self._opening = asyncio.Lock()  # two lanes at once open one connection

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
            # All that came before is read first.
            await queue.put(None)

    async def _hand_on(self, frame: Frame) -> None:
        if frame.get("type") in UNASKED:
            return
        lane = frame.get("stream_id")
        if lane in self._lanes:
            # It waits where a lane is full: then nothing is read from the socket, and the server waits, too.
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
        return CommandFailed(f"{message_of(error)}{advice}")


Item = dict[str, Any]
CONTINUABLE = ("completed", "incomplete")
DEFAULT = "main"  # what the lane without a `stream_id` is called
T = TypeVar("T")


class EventView(Protocol):
    """Shows a response while it comes."""

    def show(self, event: Item) -> None:
        """Show an event."""

    def end(self) -> None:
        """End what a view keeps open, such as the last line."""


class ChatSession:
    """The lanes of one chat, each of which continues its own last response. Creates go out with what `common` says."""

    def __init__(self, endpoint: RemoteServer, common: Mapping[str, Any]) -> None:
        self._common = common
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="connection", daemon=True)
        self._thread.start()
        self._connection = ServerSocket(endpoint)
        self.last: dict[str, str] = {}  # response ids, by the names of lanes
        self._running: dict[str, str] = {}  # ids of responses that are being answered, by lanes

    def begin(self, lane: str, items: list[Item], view: EventView) -> "Future[Item]":
        """Send items on a lane; the future gives the response, or raises `CommandFailed`."""
        return self._submit(self._turn(lane, items, view))

    def interrupt(self, lane: str) -> bool:
        """End what runs on a lane; return whether anything does."""
        if lane not in self._running:
            return False
        self._submit(self._connection.interrupt(self._running[lane]))
        return True

    def close(self) -> None:
        """Close the connection and end the thread."""
        self._submit(self._connection.aclose()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _turn(self, lane: str, items: list[Item], view: EventView) -> Item:
        body = {**self._common, "input": items}
        if lane in self.last:
            body["previous_response_id"] = self.last[lane]
        response: Item = {}
        try:
            async for event in self._connection.create(None if lane == DEFAULT else lane, body):
                if "response" in event:
                    response = event["response"]
                    self._running[lane] = response["id"]
                view.show(event)
        finally:
            self._running.pop(lane, None)
            view.end()
        if response.get("status") in CONTINUABLE:
            self.last[lane] = response["id"]
        return response
