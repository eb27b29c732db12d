"""Slow readers, on every server: a `send` that takes longer than the stall time ends its connection.

uvicorn's `send` waits while the peer reads slowly; daphne's never does, so there `daphne.py` makes it wait. What is
not sent yet stays in the run's journal, whose own bound drops a reader that falls too far behind.

`Backpressure` also puts into a WebSocket's scope what only some servers can do (`SocketExtras`), such as protocol
pings: ASGI has none, so they are sent around it. Under daphne and under uvicorn with `--ws websockets-sansio` the
connection behind `send` is at hand. Anywhere else nothing is sent, and the server's own pings have to do (uvicorn's
every 20 s, hypercorn's where they are turned on).
"""

import asyncio
import logging
import socket
import struct
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

from responses_app.observing.logs import OF_STRANGERS
from responses_app.web.bodies import Message, Receive, SendMessage
from responses_app.web.http import CUT
from responses_app.web.servers.daphne import DENIAL, DaphneConnection
from responses_app.web.servers.inflow import FrameRules, Frames

logger = logging.getLogger("respsite.transport")

SWEEPS_PER_STALL = 10  # looks for sends that stall, within the stall time
EXTRAS = "respsite.extras"  # the key of `SocketExtras` in a WebSocket's scope

Ping = Callable[[], None]


def ping_of(send: Callable[..., Awaitable[None]], daphne: DaphneConnection | None) -> Ping:
    """Return what pings the peer of a WebSocket; it never waits, and does nothing where that cannot be done."""
    if daphne is not None:
        return daphne.ping
    module = sys.modules.get("uvicorn.protocols.websockets.websockets_sansio_impl")
    protocol = getattr(send, "__self__", None)
    if module is not None and isinstance(protocol, module.WebSocketsSansIOProtocol):
        return lambda: _ping_through_uvicorn(protocol)
    return no_ping


def no_ping() -> None:
    """Send nothing."""


@dataclass(frozen=True, slots=True)
class SocketExtras:
    """What only some servers can do for a WebSocket."""

    # Sends a protocol ping; it never waits.
    ping: Ping = no_ping
    # Writes many text frames at once; False where they have to be sent one by one.
    write_frames: Callable[[Sequence[bytes]], Awaitable[bool]] | None = None
    # Counts what comes in; None where the server cannot be reached.
    frames_in: Frames | None = None


def _ping_through_uvicorn(protocol: Any) -> None:
    """Send an empty ping. uvicorn does not wait for its pong, takes it as unasked for and goes on."""
    open_and_read = protocol.writable.is_set() and not protocol.close_sent and not protocol.transport.is_closing()
    if protocol.handshake_complete and open_and_read:
        protocol.conn.send_ping(b"")
        protocol.transport.write(b"".join(protocol.conn.data_to_send()))


class Backpressure:
    """ASGI middleware around the whole application."""

    def __init__(
        self, app: Callable[..., Awaitable[None]], *, stall_seconds: float, max_message_bytes: int,
        frame_rules: FrameRules, is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        """Take what is served. While `is_stopping()`, connections over HTTP end with their answer."""
        self._app = app
        self.is_stopping = is_stopping
        self._stall_seconds = stall_seconds
        self._max_message_bytes = max_message_bytes
        self._frame_rules = frame_rules
        # A dict in place of a set, for its order.
        self.sending: dict[_Guard, None] = {}  # in order of their age
        self.sweeper: asyncio.TimerHandle | None = None  # runs while any send waits
        self._transports: WeakSet[Any] = WeakSet()  # of daphne's, that answers over HTTP go out by

    async def __call__(self, scope: Message, receive: Receive, send: SendMessage) -> None:
        """Serve one connection or request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        daphne = DaphneConnection.of(send, max_message_bytes=self._max_message_bytes, stall_seconds=self._stall_seconds)
        is_websocket = scope["type"] == "websocket"
        guard = _Guard(self, send, daphne, is_websocket=is_websocket)
        frames_in = getattr(getattr(send, "__self__", None), "frames_in", None)  # under uvicorn
        if daphne is not None:
            if not is_websocket and (transport := daphne.plain_transport()) is not None:
                self._transports.add(transport)
            receive = daphne.receive_from(receive)
            if is_websocket:
                frames_in = daphne.count_frames(self._frame_rules)
                scope = {**scope, "extensions": {**scope.get("extensions", {}), DENIAL: {}}}
        if is_websocket:
            scope = {**scope, EXTRAS: SocketExtras(ping_of(send, daphne), guard.write_frames, frames_in)}
        else:
            scope = {**scope, CUT: guard.cut}
        try:
            await self._app(scope, receive, guard.send)
        finally:
            if daphne is not None:
                daphne.release()

    def is_unsent(self) -> bool:
        """Whether the end of an answer lies here still: its handler has returned, and Twisted has it."""
        return any(each.connected and (each.dataBuffer or each._tempDataBuffer) for each in self._transports)

    def schedule(self) -> None:
        """Look after the sends that wait, by one timer: each may wait up to a tenth longer than the stall time."""
        loop = asyncio.get_running_loop()
        self.sweeper = loop.call_later(self._stall_seconds / SWEEPS_PER_STALL, self._sweep)

    def _sweep(self) -> None:
        self.sweeper = None
        overdue = asyncio.get_running_loop().time() - self._stall_seconds
        for guard in [guard for guard in self.sending if guard.since <= overdue]:
            guard.give_up(self._stall_seconds)
        if self.sending:
            self.schedule()


class _Guard:
    """One connection's `send`. On a stalled WebSocket it raises `ConnectionAbortedError`, as for a lost client."""

    def __init__(
        self, owner: Backpressure, send: SendMessage, daphne: DaphneConnection | None, *, is_websocket: bool
    ) -> None:
        self._owner = owner
        self._send = send
        self._daphne = daphne
        self._is_websocket = is_websocket
        writable = getattr(getattr(send, "__self__", None), "writable", None)
        self._writable = writable if isinstance(writable, asyncio.Event) else None  # of uvicorn's WebSockets
        self._sender: asyncio.Task[Any] | None = None
        self._stalled = False
        self._is_open = False  # a WebSocket, accepted and not closed by the application
        self.since = 0.0  # when the present send began to wait, on the loop's clock

    async def send(self, message: Message) -> None:
        """Send, and wait until the peer takes more."""
        if not self._is_websocket and self._owner.is_stopping():
            message = self._as_the_last(message)
        try:
            if self._daphne is not None:
                self._daphne.before(message)
                if not self._daphne.sends(message):
                    await self._send(message)
                self._daphne.after(message)
                if self._daphne.paused:
                    await self._watched(self._daphne.drain())
            elif self._writable is not None:
                await self._watched(self._send_to_the_end(message, self._writable))
            else:
                await self._watched(self._send(message))
        except RuntimeError:
            if not self._is_open:
                raise
            # uvicorn has closed it, as its client broke the protocol's rules; an OSError is what the others raise.
            raise ConnectionAbortedError("the server has closed the connection") from None
        if self._is_websocket:
            self._is_open = message["type"] != "websocket.close"

    def _as_the_last(self, message: Message) -> Message:
        """Let the connection end with this answer, so that its client asks a server that does not stop."""
        if self._daphne is not None:
            self._daphne.end_with_answer()
        # Only the head has headers; the parts behind it go out as they are.
        if message["type"] != "http.response.start":
            return message
        return {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}

    async def _send_to_the_end(self, message: Message, writable: asyncio.Event) -> None:
        """Send, and wait until the peer takes more.

        uvicorn's WebSocket waits before it writes only. As the last message of all it would lie there unwatched, and
        the server, which reads from no peer that takes nothing, would never have another one to send.
        """
        await self._send(message)
        await writable.wait()

    async def write_frames(self, payloads: Sequence[bytes]) -> bool:
        """Write text messages at once, and wait until the peer takes more; False where `send` has to do it."""
        if self._daphne is None or not self._daphne.write_frames(payloads):
            return False
        if self._daphne.paused:
            await self._watched(self._daphne.drain())
        return True

    async def cut(self) -> None:
        """Close a request's connection behind what was sent of its answer, which its client then knows not to be whole.

        Does not return: the server tells the application that its client is gone. Where the connection cannot be
        reached it returns at once.
        """
        if self._daphne is not None:
            self._daphne.cut()
        elif (transport := _transport_of(self._send)) is not None:
            transport.close()
        else:
            return
        # Nobody sets this future: the task is cancelled when the server has noticed that the connection is gone.
        await self._watched(asyncio.get_running_loop().create_future())

    async def _watched(self, waiting: Awaitable[None]) -> None:
        owner = self._owner
        self.since = asyncio.get_running_loop().time()
        self._sender = asyncio.current_task()
        owner.sending[self] = None
        if owner.sweeper is None:
            owner.schedule()
        try:
            await waiting
        # A cancellation by `give_up` becomes an error below; any other one goes on.
        except asyncio.CancelledError:
            if not self._stalled or not self._is_websocket:
                raise
        finally:
            owner.sending.pop(self, None)
        if self._stalled and self._is_websocket:
            raise ConnectionAbortedError("the client takes nothing")

    def give_up(self, seconds: float) -> None:
        """End a connection whose peer takes nothing."""
        self._stalled = True
        self._owner.sending.pop(self, None)
        told = "a client took no byte for %g s (STREAM_STALL_SECONDS) and was dropped"
        logger.warning(told, seconds, extra=OF_STRANGERS)
        if self._daphne is not None:
            self._daphne.abort()  # the server tells the application that its client is gone
        elif not _abort_transport(self._send) and self._sender is not None:
            self._sender.cancel()


def _abort_transport(send: SendMessage) -> bool:
    """Cut the connection behind uvicorn's `send`, throwing away what the kernel holds; return False for other servers.

    Closing it would wait until the peer has taken everything.
    """
    transport = _transport_of(send)
    if transport is None:
        return False
    connection = transport.get_extra_info("socket")
    if connection is not None:
        # Linger on, for 0 seconds: the close becomes a reset, and what the kernel holds is thrown away.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
    return True


def _transport_of(send: SendMessage) -> asyncio.WriteTransport | None:
    """Return the transport behind uvicorn's `send`, None for other servers."""
    transport = getattr(getattr(send, "__self__", None), "transport", None)
    return transport if isinstance(transport, asyncio.WriteTransport) else None
