"""What plain daphne lacks, added to each connection from the outside: flow control, a larger message limit, pings.

daphne's `send` never waits, so a reader that never reads would make the process grow without bound (measured: 357 MB
in 51 s), its message limit is 1 MiB, and it drops the reason of a close. Under `daphne application` the `send` an
application gets is a `functools.partial` over the connection's protocol object; on that object a Twisted push producer
can be registered and the limits raised. No class of daphne is patched; where `send` is anything else, nothing happens.
"""

import asyncio
import functools
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any


class DaphneConnection:
    """Flow control of one connection: `paused` while Twisted's buffer is full, `drain()` until it is not."""

    def __init__(self, protocol: Any, *, is_websocket: bool) -> None:
        self._protocol = protocol
        self._is_websocket = is_websocket
        self._over = (protocol.STATE_CLOSING, protocol.STATE_CLOSED) if is_websocket else ()
        self._registered = False
        self._waiter: asyncio.Future[None] | None = None
        self.paused = False

    @classmethod
    def of(cls, send: Callable[..., Awaitable[None]], *, max_message_bytes: int) -> "DaphneConnection | None":
        """Return the connection behind daphne's `send`, None for any other server's."""
        if not isinstance(send, functools.partial) or len(send.args) != 1:
            return None
        websocket, http = sys.modules.get("daphne.ws_protocol"), sys.modules.get("daphne.http_protocol")
        protocol = send.args[0]
        if websocket is not None and isinstance(protocol, websocket.WebSocketProtocol):
            connection = cls(protocol, is_websocket=True)
            # Above the limit, so that a message a little over it is answered with an error that names the setting.
            protocol.maxMessagePayloadSize = protocol.maxFramePayloadSize = 2 * max_message_bytes
            connection._register()
            return connection
        if http is not None and isinstance(protocol, http.WebRequest):
            return cls(protocol, is_websocket=False)
        return None

    def before(self, message: MutableMapping[str, Any]) -> None:
        """Prepare for a message: a streamed HTTP answer is controlled from its first part to its last.

        Raises `ConnectionAbortedError` where the peer of a WebSocket is gone.
        """
        if self._is_websocket:
            if message["type"] == "websocket.send" and self._protocol.state in self._over:
                raise ConnectionAbortedError("the client is gone")
            return
        if message["type"] != "http.response.body":
            return
        if message.get("more_body"):
            self._register()
        else:
            self.release()

    def close(self, message: MutableMapping[str, Any]) -> bool:
        """Close an open WebSocket with the reason that a message gives; return False where daphne is to do it."""
        if message["type"] != "websocket.close" or not message.get("reason"):
            return False
        if self._protocol.state != self._protocol.STATE_OPEN:
            return False
        self._protocol.sendClose(code=message.get("code", 1000), reason=message["reason"])
        return True

    def ping(self) -> None:
        """Ping a WebSocket's peer, unless it reads nothing."""
        if not self.paused:
            self._protocol.sendPing()  # does nothing on one that is not open

    async def drain(self) -> None:
        """Wait until the peer has taken enough, or is gone."""
        while self.paused:
            if self._waiter is None:
                self._waiter = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._waiter)

    def abort(self) -> None:
        """Cut the connection without sending what is buffered."""
        transport = self._protocol.transport if self._is_websocket else getattr(self._protocol, "transport", None)
        if transport is not None:
            transport.abortConnection()
        self.resumeProducing()

    def release(self) -> None:
        """Let go of the transport."""
        if self._registered:
            self._registered = False
            owner = self._protocol.transport if self._is_websocket else self._protocol
            if self._is_websocket or getattr(self._protocol, "channel", None) is not None:
                owner.unregisterProducer()
        self.resumeProducing()

    def _register(self) -> None:
        if self._registered:
            return
        owner = self._protocol.transport if self._is_websocket else self._protocol
        if self._is_websocket:
            owner.unregisterProducer()  # the HTTP channel that the connection was before its upgrade
        elif self._protocol.finished or self._protocol.channel is None:
            return
        self._registered = True
        owner.registerProducer(self, True)

    # The three methods of Twisted's IPushProducer.

    def pauseProducing(self) -> None:
        """Twisted's buffer is full."""
        self.paused = True

    def resumeProducing(self) -> None:
        """Twisted's buffer has room again."""
        self.paused = False
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def stopProducing(self) -> None:
        """The connection is gone."""
        self.resumeProducing()
