"""Text frames of a WebSocket and parts of an HTTP stream under daphne, written at one system call for many.

daphne hands what is to be sent to autobahn or to Twisted's HTTP, and that to Twisted's transport, whose `write` arms
the selector, waits a turn of the loop, sends, and disarms: three system calls an event. Where nothing is buffered the
bytes can be sent at once instead. They are the same bytes: a server's frame needs no mask, so it is a head of 2 to 10
bytes (RFC 6455 section 5.2) before the payload; a part of a stream is a chunk (RFC 9112 section 7.1). What the peer
does not take at once goes to Twisted's buffer, and so counts as before for a slow reader.

Wherever something is not as expected here (TLS, compression, HTTP/2, data that waits, a message over daphne's limit,
another transport), nothing is written, and the caller goes daphne's way.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

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
    sent = transport.writeSomeData(data)
    if not isinstance(sent, int):  # Twisted returns what broke the connection; it will find out by itself
        sent = 0
    if sent < len(data):
        transport.write(data[sent:])


def _head(size: int) -> bytes:
    """Return the head of an unmasked text frame."""
    if size < 126:
        return bytes((_TEXT, size))
    if size < 1 << 16:
        return bytes((_TEXT, 126)) + size.to_bytes(2, "big")
    return bytes((_TEXT, 127)) + size.to_bytes(8, "big")
