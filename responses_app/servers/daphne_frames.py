"""Text frames of a WebSocket under daphne, written at one system call for many.

daphne hands each message to autobahn, and that to Twisted, whose `write` arms the selector, waits a turn of the loop,
sends, and disarms: three system calls an event. Where nothing is buffered the bytes can be sent at once instead. They
are the same bytes: a server's frame needs no mask, so it is a head of 2 to 10 bytes (RFC 6455 section 5.2) before the
payload. What the peer does not take at once goes to Twisted's buffer, and so counts as before for a slow reader.

Wherever something is not as expected here (TLS, compression, data that waits, a message over daphne's limit, another
transport), nothing is written, and the caller goes daphne's way.
"""

from collections.abc import Sequence
from typing import Any

_TEXT = 0x81  # a whole text message in one frame


def write_text_frames(protocol: Any, payloads: Sequence[bytes]) -> bool:
    """Write text messages to the peer of daphne's WebSocket `protocol`; return False where that cannot be done here."""
    transport = protocol.transport
    if not _is_plain(protocol, transport) or any(len(each) > protocol.maxMessagePayloadSize for each in payloads):
        return False
    data = b"".join([part for payload in payloads for part in (_head(len(payload)), payload)])
    sent = transport.writeSomeData(data)
    if not isinstance(sent, int):  # Twisted returns what broke the connection; it will find out by itself
        sent = 0
    if sent < len(data):
        transport.write(data[sent:])
    return True


def _is_plain(protocol: Any, transport: Any) -> bool:
    """Whether frames may go to the socket as they are, behind all that was written before."""
    from twisted.internet.tcp import Connection  # daphne has loaded it

    return (
        isinstance(transport, Connection)
        and not getattr(transport, "TLS", False)
        and transport.connected
        and not transport.disconnecting
        and not transport.dataBuffer
        and not transport._tempDataBuffer
        and protocol.state == protocol.STATE_OPEN
        and protocol._perMessageCompress is None
        and not protocol.send_queue
        and not protocol.autoFragmentSize
    )


def _head(size: int) -> bytes:
    """Return the head of an unmasked text frame."""
    if size < 126:
        return bytes((_TEXT, size))
    if size < 1 << 16:
        return bytes((_TEXT, 126)) + size.to_bytes(2, "big")
    return bytes((_TEXT, 127)) + size.to_bytes(8, "big")
