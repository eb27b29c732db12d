"""Tunnels: connections whose bytes a proxy passes on without reading them, but for the greeting of TLS.

A host of a large network answers for many names on one address. So a tunnel to a port of HTTPS must begin with TLS, and
ask for the name that was checked; else it would lead to names that were not. Where the allowlist names the port, it may
begin with anything; but where that is TLS, it has to ask for that name, too. An encrypted greeting (ECH) is refused,
also one of a browser that only pretends (GREASE): nobody can tell them apart.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

from responses_app.extensions.containers.egress.peers import CHUNK, IDLE_SECONDS, Meter, Streams

GREETING_SECONDS = 10.0
MAX_GREETING = 16 * 1024  # bytes; browsers' greetings have 2 KB
_CHANGE_CIPHER, _HANDSHAKE, _CLIENT_HELLO, _SERVER_NAME = 20, 22, 1, 0
_ENCRYPTED_HELLO = 0xFE0D  # ECH (RFC 9849)
# A fatal alert: unrecognized_name (RFC 6066).
WRONG_NAME = bytes((21, 3, 1, 0, 2, 2, 112))

Begin = Callable[[bytes], Awaitable[tuple[bytes, Any]]]  # the latter is another one of these, or None


class NoGreeting(Exception):
    """The client does not begin with the greeting of TLS, or with one that is too long."""


class WrongName(Exception):
    """The greeting of a TLS client asks for another name than the one that was checked."""


async def greeting(reader: asyncio.StreamReader, begun: bytes = b"") -> tuple[bytes, str | None]:
    """Read the greeting of a TLS client, of which something was read; return it, and the name that it asks for.

    Raises `NoGreeting`.
    """
    raw, message = b"", b""

    async def exactly(size: int) -> bytes:
        nonlocal begun
        taken, begun = begun[:size], begun[size:]
        return taken + await reader.readexactly(size - len(taken))

    try:
        async with asyncio.timeout(GREETING_SECONDS):
            while len(message) < 4 or len(message) < 4 + int.from_bytes(message[1:4], "big"):
                head = await exactly(5)
                size = int.from_bytes(head[3:5], "big")
                if head[0] != _HANDSHAKE or not 0 < size <= MAX_GREETING - len(raw):
                    raise NoGreeting
                part = await exactly(size)
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
        """Return the bytes behind their length, which has `size` bytes."""
        return self.take(self.number(size))


def _name_in(hello: _Bytes) -> str | None:
    """Return the name in a ClientHello (RFC 8446, RFC 6066); None where there is none, "" where it is encrypted.

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
    if _ENCRYPTED_HELLO in extensions:
        return ""
    if _SERVER_NAME not in extensions:
        return None
    names = _Bytes(_Bytes(extensions[_SERVER_NAME]).vector(2))
    kind, name = names.number(1), names.vector(2)
    if kind != 0 or names:  # a host name, and no other one
        raise NoGreeting
    return name.decode("ascii").lower().removesuffix(".")


class Checked:
    """Checks the beginning of a tunnel: where it is TLS, it asks for this host. `may_lack`: or for none.

    A server may ask for a second greeting, which has the name once more; by that one it then goes.
    """

    def __init__(self, reader: asyncio.StreamReader, host: str, *, may_lack: bool = False) -> None:
        self._reader = reader
        self._host = host
        self._may_lack = may_lack

    async def first(self, begun: bytes) -> "tuple[bytes, Begin | None]":
        """Read on behind the first byte. Raises `WrongName`, `NoGreeting`."""
        return (await self._greeting(begun), self.second) if begun[0] == _HANDSHAKE else (begun, None)

    async def second(self, begun: bytes) -> "tuple[bytes, Begin | None]":
        """Read on behind the first byte that follows the greeting. Raises `WrongName`, `NoGreeting`."""
        if begun[0] not in (_HANDSHAKE, _CHANGE_CIPHER):
            return begun, None
        try:
            async with asyncio.timeout(GREETING_SECONDS):
                begun += await self._reader.readexactly(5)  # the rest of a record's head, and a byte of what is in it
        except (asyncio.IncompleteReadError, TimeoutError, OSError):
            raise NoGreeting from None
        size = int.from_bytes(begun[3:5], "big")
        if begun[0] == _CHANGE_CIPHER:
            if size != 1:
                raise NoGreeting
            return begun, self.second
        if size == 0:
            raise NoGreeting
        return (await self._greeting(begun) if begun[5] == _CLIENT_HELLO else begun), None

    async def _greeting(self, begun: bytes) -> bytes:
        raw, name = await greeting(self._reader, begun)
        if name != self._host and not (name is None and self._may_lack):
            raise WrongName
        return raw


async def pass_on(one: Streams, other: Streams, meter: Meter, begin: Begin | None = None) -> None:
    """Pass bytes on from either side, until both have ended, or nothing came for long. Raises `Spent`.

    `begin` is given the first byte of the one, and returns what is to be passed on in its place, and what is given the
    next one; what it raises is raised.
    """
    heard = _Heard()
    there, back = _pump(one[0], other[1], meter, heard, begin), _pump(other[0], one[1], meter, heard)
    both = [asyncio.create_task(there), asyncio.create_task(back)]
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


async def _pump(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    meter: Meter,
    heard: _Heard,
    begin: Begin | None = None,
) -> None:
    while True:
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                content = await reader.read(CHUNK if begin is None else 1)
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
        if begin is not None:
            content, begin = await begin(content)
        meter.count(len(content))
        writer.write(content)
        async with asyncio.timeout(IDLE_SECONDS):
            await writer.drain()
