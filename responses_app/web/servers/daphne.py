"""What plain daphne lacks, added to each connection from the outside: flow control, larger limits, pings, fast writes.

daphne's `send` never waits, so a reader that never reads would make the process grow without bound (measured: 357 MB
in 51 s); it goes on reading from a peer that takes no answers, and what it reads waits in a queue without bound; its
message limit is 1 MiB, and it drops the reason of a close and the headers of an accept. Under `daphne application` the
`send` an application gets is a `functools.partial` over the connection's protocol object; on that object a Twisted push
producer can be registered, the queue be counted, and the limits raised. No class of daphne is patched; where `send` is
anything else, nothing happens.

Text frames of a WebSocket and parts of an HTTP stream are written here, many at one system call. daphne hands what is
to be sent to autobahn or to Twisted's HTTP, and that to Twisted's transport, whose `write` arms the selector, waits a
turn of the loop, sends, and disarms: three system calls an event. Where nothing is buffered the bytes can be sent at
once instead. They are the same bytes: a server's frame needs no mask, so it is a head of 2 to 10 bytes (RFC 6455
section 5.2) before the payload; a part of a stream is a chunk (RFC 9112 section 7.1). What the peer does not take at
once goes to Twisted's buffer, and so counts as before for a slow reader.

Wherever something is not as expected here (TLS, compression, HTTP/2, data that waits, a message over daphne's limit,
another transport), nothing is written, and the caller goes daphne's way.
"""

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import cache, partial
from typing import Any

from responses_app.protocol.transport import AnswerHeaders
from responses_app.web.bodies import BODY_FILE, BODY_SIZE, BodyRules, Message, Receive, date, written
from responses_app.web.servers.inflow import REASON_BYTES, FrameRules, Frames, Inflow
from responses_app.web.servers.listening import listen_widely, when_daphne_runs

logger = logging.getLogger("respsite.transport")

_TEXT = 0x81  # a whole text message in one frame


def write_text_frames(protocol: Any, payloads: Sequence[bytes]) -> bool:
    """Write text messages to the peer of daphne's WebSocket `protocol`; return False where that cannot be done here."""
    if not _sends_frames(protocol, payloads) or not _is_plain(protocol.transport):
        return False
    _send(protocol.transport, b"".join([part for payload in payloads for part in (_head(len(payload)), payload)]))
    return True


def write_chunk(request: Any, data: bytes) -> bool:
    """Write a part of a stream, not its last, to the peer of daphne's HTTP `request`; return False as above."""
    if not data or not _sends_chunks(request) or not _is_plain(request.channel.transport):
        return False
    request.sentLength += len(data)
    _send(request.channel.transport, b"%x\r\n%b\r\n" % (len(data), data))
    return True


def _sends_frames(protocol: Any, payloads: Sequence[bytes]) -> bool:
    """Whether a WebSocket is open, and its messages go out as frames of their own, in the order of the calls."""
    return (
        protocol.state == protocol.STATE_OPEN
        and protocol._perMessageCompress is None
        and not protocol.send_queue
        and not protocol.autoFragmentSize
        and max(map(len, payloads)) <= protocol.maxMessagePayloadSize
    )


def _sends_chunks(request: Any) -> bool:
    """Whether the head of an answer over HTTP/1.1 is written, and its body goes out as it is given."""
    return (
        isinstance(request.channel, _twisted()[1])  # None once the client is gone; another class with HTTP/2
        and request.channel.requests[:1] == [request]
        and bool(request.startedWriting and request.chunked)  # HEAD, and HTTP/1.0, have no chunks
        and not request.finished
        and not request._disconnected
        and getattr(request, "_encoder", None) is None
    )


def _is_plain(transport: Any) -> bool:
    """Whether bytes may go to the socket as they are, behind all that was written before."""
    return (
        isinstance(transport, _twisted()[0])
        and not getattr(transport, "TLS", False)
        and bool(transport.connected)
        and not transport.disconnecting
        and not transport._writeDisconnected
        and not transport.dataBuffer
        and not transport._tempDataBuffer
    )


@cache
def _twisted() -> tuple[type[Any], type[Any]]:
    """Return Twisted's plain connection and its HTTP/1, which daphne has loaded where this is called."""
    from twisted.internet.tcp import Connection
    from twisted.web.http import HTTPChannel

    return Connection, HTTPChannel


def _send(transport: Any, data: bytes) -> None:
    # It calls `send` on the socket, and returns how many bytes the kernel took.
    sent = transport.writeSomeData(data)
    if not isinstance(sent, int):  # Twisted returns what broke the connection; it will find out by itself
        sent = 0
    if sent < len(data):
        transport.write(data[sent:])


def _head(size: int) -> bytes:
    """Return the head of an unmasked text frame."""
    # RFC 6455 section 5.2: up to 125 the length itself, else 126 and 2 bytes, or 127 and 8 bytes.
    if size < 126:
        return bytes((_TEXT, size))
    if size < 1 << 16:
        return bytes((_TEXT, 126)) + size.to_bytes(2, "big")
    return bytes((_TEXT, 127)) + size.to_bytes(8, "big")


DENIAL = "websocket.http.response"  # ASGI's extension by which an application answers a handshake with an HTTP error

WAITING_BYTES = 64 * 1024  # messages of a WebSocket that the application has not taken; over it no more is read
PART_BYTES = 256 * 1024  # of a body, handed to the application at once


def hook_daphne(rules: BodyRules, headers: AnswerHeaders) -> None:
    """Bound the requests of this process's daphne, if it runs one, and let many connections wait for it."""

    def bound() -> None:
        from responses_app.web.servers.daphne_http import bound_requests  # which imports daphne

        listen_widely()
        if not bound_requests(rules, headers):
            logger.warning("this server's bodies are bounded only when they are complete: put a proxy before it")

    when_daphne_runs(bound)


def _protocol_of(send: object) -> tuple[Any, bool]:
    """Return daphne's object of the connection behind `send`, and whether it is a WebSocket; None for other servers."""
    # daphne gives `partial(self.handle_reply, protocol)`; anything else is another server's.
    if not isinstance(send, partial) or len(send.args) != 1:
        return None, False
    websocket, http = sys.modules.get("daphne.ws_protocol"), sys.modules.get("daphne.http_protocol")
    protocol = send.args[0]
    if websocket is not None and isinstance(protocol, websocket.WebSocketProtocol):
        return protocol, True
    return (protocol if http is not None and isinstance(protocol, http.WebRequest) else None), False


def peer_of(scope: Message, send: object) -> tuple[Sequence[Any] | None, str | None]:
    """Return the address and port that daphne is called from, and the scheme, whatever headers say of them.

    The address is None for a Unix socket; daphne's scopes of WebSockets have no scheme. With another server both are
    those of the scope.
    """
    protocol, is_websocket = _protocol_of(send)
    scheme: str | None = scope.get("scheme")
    if protocol is None:
        return scope.get("client"), scheme
    peer = protocol.transport.getPeer() if is_websocket else protocol.client
    if not is_websocket:
        scheme = "https" if protocol.isSecure() else "http"
    return ((str(peer.host), peer.port) if hasattr(peer, "port") else None), scheme


class DaphneConnection:
    """Flow control of one connection: `paused` while Twisted's buffer is full, `drain()` until it is not."""

    def __init__(self, protocol: Any, *, is_websocket: bool) -> None:
        self._protocol = protocol
        self._is_websocket = is_websocket
        self._over = (protocol.STATE_CLOSING, protocol.STATE_CLOSED) if is_websocket else ()
        self._registered = False
        self._waiter: asyncio.Future[None] | None = None
        self._inbox: _Inbox | None = None
        self._inflow: Inflow | None = None
        self._frames: Frames | None = None
        self._early = b""  # frames that came before the handshake was answered
        self._is_open = not is_websocket
        self._is_reading = True
        self._denial: Message = {}  # the beginning of an answer to a handshake
        self.paused = False

    @classmethod
    def of(
        cls, send: Callable[..., Awaitable[None]], *, max_message_bytes: int, stall_seconds: float
    ) -> "DaphneConnection | None":
        """Return the connection behind daphne's `send`, None for any other server's."""
        protocol, is_websocket = _protocol_of(send)
        if protocol is None:
            return None
        connection = cls(protocol, is_websocket=is_websocket)
        if is_websocket:
            # Above the limit, which `Frames` looks after: it says why, and names the setting.
            protocol.maxMessagePayloadSize = protocol.maxFramePayloadSize = 2 * max_message_bytes
            # Autobahn gives a peer 1 s to answer a close frame. Then it throws away what that has not had yet, such as
            # its response's end.
            protocol.closeHandshakeTimeout = stall_seconds
            connection._register()
        return connection

    def receive_from(self, receive: Receive) -> Receive:
        """Return what the application receives from, in the place of daphne's queue."""
        if self._is_websocket:
            self._inbox = _Inbox(self._protocol.application_queue, receive, self._read_or_not)
            self._protocol.application_queue = self._inbox
            return self._inbox.get
        if getattr(self._protocol, "body", None) is not None:
            return _FiledBody(self._protocol, receive).receive
        return receive

    def count_frames(self, rules: FrameRules) -> Frames:
        """Bound the frames of a WebSocket. Nothing of it is read until it is accepted."""
        protocol = self._protocol
        frames = Frames(
            rules, lambda refusal: protocol.application_queue.put_nowait(refusal), self._end_inflow, self.abort
        )
        parse = partial(type(protocol).dataReceived, protocol)
        self._inflow = Inflow(frames.cut, parse, self._read_or_not, self.abort)
        # Autobahn keeps there what came with the handshake: it is counted as all that comes later.
        self._early, protocol.data = protocol.data, b""
        # On the object: Twisted looks the method up at each call. The class stays as it is.
        protocol.dataReceived = self._take
        self._frames = frames
        protocol.end_inflow = self._end_inflow
        self._read_or_not()
        return frames

    def _take(self, data: bytes) -> None:
        if self._is_open and self._inflow is not None:
            self._inflow.take(data)
        else:
            self._early += data

    def _end_inflow(self) -> None:
        if self._inflow is not None:
            self._inflow.end()
        self._read_or_not()

    def after(self, message: Message) -> None:
        """A message was sent: of a WebSocket that is accepted frames are read."""
        if message["type"] != "websocket.accept":
            return
        self._is_open = True
        early, self._early = self._early, b""
        if early:
            self._take(early)
        self._read_or_not()

    def before(self, message: Message) -> None:
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

    def sends(self, message: Message) -> bool:
        """Do here what a message says, if that is better than daphne's way; return False where daphne is to do it."""
        if self._is_websocket and message["type"].startswith(DENIAL):
            return self._deny(message)
        if self._is_websocket and message["type"] == "websocket.accept":
            return self._accept(message)
        if self._is_websocket:
            return message["type"] == "websocket.close" and self._close(message)
        is_part = message["type"] == "http.response.body" and bool(message.get("more_body"))
        return is_part and not self.paused and write_chunk(self._protocol, message.get("body", b""))

    def _deny(self, message: Message) -> bool:
        """Answer a handshake with an HTTP error, which comes in two messages; daphne itself can only say 403."""
        if message["type"] == f"{DENIAL}.start":
            self._denial = message
            return True
        if self._protocol.state != self._protocol.STATE_CONNECTING:
            return True
        denial = written(self._denial["status"], self._denial.get("headers", ()), message.get("body", b""))
        # daphne's `serverReject` calls this to say 403, and closes then.
        self._protocol.sendHttpErrorResponse = lambda *_: self._protocol.sendData(denial)
        self._protocol.serverReject()
        return True

    def _accept(self, message: Message) -> bool:
        """Accept a WebSocket with headers, which daphne drops, `Date` among them."""
        if self._protocol.state == self._protocol.STATE_CONNECTING and hasattr(self._protocol, "handshake_deferred"):
            lines = [*message.get("headers", ()), (b"date", date())]
            headers = {name.decode("latin1"): value.decode("latin1") for name, value in lines}
            self._protocol.serverAccept((message.get("subprotocol"), headers))
        return True

    def _close(self, message: Message) -> bool:
        """Close an open WebSocket with a reason, which daphne drops, and with any code: Autobahn's `sendClose` refuses
        1012 and its like.
        """
        if self._protocol.state != self._protocol.STATE_OPEN:
            return False
        # The cut may fall into the middle of a character: `ignore` drops its first bytes.
        reason = (message.get("reason") or "").encode()[:REASON_BYTES].decode(errors="ignore").encode()
        self._protocol.sendCloseFrame(code=message.get("code", 1000), reasonUtf8=reason)
        transport = self._protocol.transport
        # Nothing more is read of this peer, not even its close: it is told that all is said.
        if self._inflow is not None and self._inflow.has_ended and hasattr(transport, "loseWriteConnection"):
            transport.loseWriteConnection()
        return True

    def write_frames(self, payloads: Sequence[bytes]) -> bool:
        """Write text messages to a WebSocket's peer at once; return False where they are to go daphne's way."""
        return self._is_websocket and not self.paused and write_text_frames(self._protocol, payloads)

    def ping(self) -> None:
        """Ping a WebSocket's peer, unless it reads nothing."""
        if not self.paused:
            self._protocol.sendPing()  # does nothing on one that is not open

    async def drain(self) -> None:
        """Wait until the peer has taken enough, or is gone."""
        while self.paused:
            if self._waiter is None:
                self._waiter = asyncio.get_running_loop().create_future()
            # Shared by all who wait: one that is cancelled must not cancel the others' future.
            await asyncio.shield(self._waiter)

    def plain_transport(self) -> Any:
        """Return the connection that an answer over HTTP/1 goes out by; None where it is another one."""
        transport = getattr(getattr(self._protocol, "channel", None), "transport", None)
        return transport if isinstance(transport, _twisted()[0]) else None

    def cut(self) -> None:
        """Close an HTTP connection behind what is buffered, in the middle of its answer."""
        from twisted.web.http import HTTPChannel

        self.release()
        channel = getattr(self._protocol, "channel", None)
        if isinstance(channel, HTTPChannel):
            channel.loseConnection()
        elif channel is not None:  # HTTP/2, where that would end the answer as if it were whole
            channel.abortConnection()

    def end_with_answer(self) -> None:
        """Take no further request from an HTTP/1 connection."""
        channel: Any = getattr(self._protocol, "channel", None)
        if hasattr(channel, "persistent"):
            channel.persistent = False

    def abort(self) -> None:
        """Cut the connection without sending what is buffered."""
        transport = self._protocol.transport if self._is_websocket else getattr(self._protocol, "transport", None)
        if transport is not None:
            transport.abortConnection()
        # Whoever waits in `drain` is not to wait for a connection that is gone.
        self.resumeProducing()

    def release(self) -> None:
        """Let go of the transport."""
        if self._frames is not None:
            self._frames.close()
        if self._registered:
            self._registered = False
            owner = self._protocol.transport if self._is_websocket else self._protocol
            # A request that has lost its channel has no transport any more.
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

    def _read_or_not(self) -> None:
        """Read from a WebSocket's peer only while it takes what it is sent, pongs too, and we take what it sends."""
        if not self._is_websocket:
            return
        inflow = self._inflow
        is_busy = self.paused or (self._inbox is not None and self._inbox.is_full)
        if inflow is not None:
            # After its end everything is read and thrown away, so that the peer gets to read why.
            is_busy = not inflow.has_ended and (is_busy or inflow.waits or not self._is_open)
        reads = not is_busy
        transport = self._protocol.transport
        if reads != self._is_reading and transport is not None:
            self._is_reading = reads
            if reads:
                transport.resumeProducing()
            else:
                transport.pauseProducing()

    # The three methods of Twisted's IPushProducer.

    def pauseProducing(self) -> None:
        """Twisted's buffer is full."""
        self.paused = True
        self._read_or_not()

    def resumeProducing(self) -> None:
        """Twisted's buffer has room again."""
        self.paused = False
        self._read_or_not()
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    stopProducing = resumeProducing  # the connection is gone


class _Inbox:
    """What the peer of a WebSocket has sent and the application has not taken, counted; `changed` is told."""

    def __init__(self, queue: Any, receive: Receive, changed: Callable[[], None]) -> None:
        self._queue = queue
        self._receive = receive
        self._changed = changed
        self._size = 0

    @property
    def is_full(self) -> bool:
        """Whether no more should be read."""
        return self._size > WAITING_BYTES

    def put_nowait(self, message: Message) -> None:
        """Take a message from daphne."""
        self._size += _size(message)
        self._queue.put_nowait(message)
        if self.is_full:
            self._changed()

    async def get(self) -> Message:
        """Give the next message to the application."""
        message = await self._receive()
        was_full = self.is_full
        self._size -= _size(message)
        if was_full and not self.is_full:
            self._changed()
        return message


def _size(message: Message) -> int:
    return len(message.get("text") or message.get("bytes") or "")


class _FiledBody:
    """A long body; daphne's queue has an empty one. The API takes its file, to read it on a thread.

    For all else it is read from the file as the application asks for it.
    """

    def __init__(self, request: Any, receive: Receive) -> None:
        self._request = request
        self._receive = receive
        self._left = request.received  # bytes of the file that were not given yet

    async def receive(self) -> Message:
        """Return the next part, or what comes after the body."""
        if self._left == self._request.received:
            await self._receive()  # the empty one
            if (file := self._request.take_body()) is not None:
                size, self._left = self._left, 0
                return {"type": "http.request", "body": b"", "more_body": False, BODY_FILE: file, BODY_SIZE: size}
        if not self._left or self._request.body is None:  # read to its end, or the client is gone
            return await self._receive()
        await asyncio.sleep(0)  # the parts are all there: others have their turn between two
        part = self._request.body.read(PART_BYTES)
        self._left -= len(part)
        return {"type": "http.request", "body": part, "more_body": self._left > 0}
