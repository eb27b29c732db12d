"""Tunnels: connections whose bytes a proxy passes on without reading them, but for the greeting of TLS.

A host of a large network answers for many names on one address. So a tunnel to a port of HTTPS must begin with TLS, and
ask for the name that was checked; else it would lead to names that were not. An encrypted greeting (ECH) is refused,
also one of a browser that only pretends (GREASE): nobody can tell them apart.
"""

import asyncio
import contextlib
import time

from responses_app.tools.egress.dialling import Streams
from responses_app.tools.egress.peers import CHUNK, IDLE_SECONDS, Meter

GREETING_SECONDS = 10.0
MAX_GREETING = 16 * 1024  # bytes; browsers' greetings have 2 KB
_HANDSHAKE, _CLIENT_HELLO, _SERVER_NAME = 22, 1, 0
_ENCRYPTED_HELLO = 0xFE0D  # ECH (RFC 9849)
# A fatal alert: unrecognized_name (RFC 6066).
WRONG_NAME = bytes((21, 3, 1, 0, 2, 2, 112))


class NoGreeting(Exception):
    """What came is not the greeting of a TLS client, or a part of one that is too long."""


async def greeting(reader: asyncio.StreamReader) -> tuple[bytes, str | None]:
    """Read the greeting of a TLS client; return it, and the name that it asks for. Raises `NoGreeting`."""
    raw, message = b"", b""
    try:
        async with asyncio.timeout(GREETING_SECONDS):
            while len(message) < 4 or len(message) < 4 + int.from_bytes(message[1:4], "big"):
                head = await reader.readexactly(5)
                size = int.from_bytes(head[3:5], "big")
                if head[0] != _HANDSHAKE or not 0 < size <= MAX_GREETING - len(raw):
                    raise NoGreeting
                part = await reader.readexactly(size)
                raw, message = raw + head + part, message + part
                if message[0] != _CLIENT_HELLO:
                    raise NoGreeting
    except (asyncio.IncompleteReadError, TimeoutError, OSError):
        raise NoGreeting from None
    try:
        return raw, _name_in(_Bytes(message[4 : 4 + int.from_bytes(message[1:4], "big")]))
    except (IndexError, UnicodeDecodeError):
        raise NoGreeting from None


class _Bytes:
    """Bytes that are read from their beginning; `IndexError` where there are too few."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __bool__(self) -> bool:
        return bool(self._content)

    def take(self, size: int) -> bytes:
        if size > len(self._content):
            raise IndexError
        taken, self._content = self._content[:size], self._content[size:]
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, size: int) -> bytes:
        """Return what stands behind its length, which has `size` bytes."""
        return self.take(self.number(size))


def _name_in(hello: _Bytes) -> str | None:
    """Return the name in a ClientHello (RFC 8446, RFC 6066); None where there is none, or what counts is encrypted.

    Raises `NoGreeting` where one server may read another name in it than the next.
    """
    hello.take(2 + 32)  # version, random
    hello.vector(1)  # session
    hello.vector(2)  # ciphers
    hello.vector(1)  # compressions
    extensions: dict[int, bytes] = {}
    every = _Bytes(hello.vector(2) if hello else b"")
    while every:
        kind, content = every.number(2), every.vector(2)
        if kind in extensions:
            raise NoGreeting
        extensions[kind] = content
    # With it, the name outside leads to any other one at the same provider.
    if _SERVER_NAME not in extensions or _ENCRYPTED_HELLO in extensions:
        return None
    names = _Bytes(_Bytes(extensions[_SERVER_NAME]).vector(2))
    kind, name = names.number(1), names.vector(2)
    if kind != 0 or names:  # a host name, and no other one
        raise NoGreeting
    return name.decode("ascii").lower().removesuffix(".")


async def pass_on(one: Streams, other: Streams, meter: Meter) -> None:
    """Pass on what comes from either side, until both have ended, or nothing came for long. Raises `Spent`."""
    heard = _Heard()
    both = [asyncio.create_task(_pump(*each, meter, heard)) for each in ((one[0], other[1]), (other[0], one[1]))]
    try:
        await asyncio.gather(*both)
    finally:
        for each in both:
            each.cancel()
        await asyncio.gather(*both, return_exceptions=True)


class _Heard:
    """When something came last, from either side."""

    def __init__(self) -> None:
        self.at = time.monotonic()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, meter: Meter, heard: _Heard) -> None:
    while True:
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                content = await reader.read(CHUNK)
        except TimeoutError:
            # One side may be silent for as long as the other one speaks.
            if time.monotonic() - heard.at >= IDLE_SECONDS:
                raise
            continue
        if not content:
            with contextlib.suppress(OSError):
                if writer.can_write_eof():
                    writer.write_eof()
            return
        heard.at = time.monotonic()
        meter.count(len(content))
        writer.write(content)
        async with asyncio.timeout(IDLE_SECONDS):
            await writer.drain()
