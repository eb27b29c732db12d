"""Frames between the host, the warden and the kernel: a JSON header and bytes behind it, each with its length before.

Standard library only, and no name of this server's: the sandbox's own Python imports it, whatever version that is.
"""

import json
import socket
import struct
from typing import Any, NamedTuple, Optional

LENGTHS = struct.Struct(">II")  # of the header, and of what is behind it; big-endian, 32 bits each
MAX_HEADER = 1024 * 1024  # bytes
MAX_PAYLOAD = 512 * 1024 * 1024  # bytes: a file is sent in one frame
MAX_CALL = 1024 * 1024  # bytes of what a program calls at once


class Frame(NamedTuple):
    """A message: what it says, and the bytes that it carries."""

    header: dict[str, Any]  # JSON
    payload: bytes = b""


class FrameError(Exception):
    """What came is not a frame, or too long a one."""


def packed(header: dict[str, Any], payload: bytes = b"") -> bytes:
    """Return a frame as it is sent."""
    text = json.dumps(header).encode()
    return b"".join((LENGTHS.pack(len(text), len(payload)), text, payload))


def lengths(head: bytes, max_payload: int = MAX_PAYLOAD) -> tuple[int, int]:
    """Return how long the parts of a frame are. Raises `FrameError` for too long ones."""
    header, payload = LENGTHS.unpack(head)
    # Checked before anything of it is read: the sender may be code that nobody has looked at.
    if header > MAX_HEADER or payload > max_payload:
        raise FrameError("a frame is too long")
    return header, payload


def header_of(text: bytes) -> dict[str, Any]:
    """Return what a header says. Raises `FrameError` for what is not a JSON object."""
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise FrameError("a header is not JSON") from None
    if not isinstance(header, dict):
        raise FrameError("a header is not an object")
    return header


def read_frame(channel: socket.socket) -> Optional[Frame]:  # noqa: UP045  # older Pythons read this, too
    """Wait for a frame; None where the other side is gone."""
    head = _read(channel, LENGTHS.size)
    if len(head) < LENGTHS.size:
        return None
    header, payload = lengths(head)
    text, rest = _read(channel, header), _read(channel, payload)
    if len(text) < header or len(rest) < payload:
        return None
    return Frame(header_of(text), rest)


def _read(channel: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        # At most a megabyte at once: a buffer of the whole length would be made first, and so much may never come.
        part = channel.recv(min(size, 1024 * 1024))
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
