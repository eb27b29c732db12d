"""`Neighbours`: the workers of one machine ask each other for what one of them alone can do, over Unix sockets.

A message is a value as JSON, and the bytes that lie behind it:

    length of the JSON, how many bytes behind it │ JSON │ bytes

Each that has containers listens at `FOLDER/TAG.sock`; the tag stands in the ids of its containers, so whoever is asked
for one knows where it lives. The folder is the server's own user's alone. A question is a connection of its own: where
the asking worker lets go of it, the other one stops its work, and where the asked one dies, the asking one hears it.
Reports of how far the work is come before the answer.
"""

import asyncio
import contextlib
import json
import logging
import os
import re
import secrets
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from responses_app.tools.sandbox.inside.respsite_kernel.frames import MAX_PAYLOAD

MAX_JSON = 64 * 1024 * 1024  # bytes: the files of a container, listed
_HEAD = struct.Struct(">IQ")  # of the JSON and of the bytes; big-endian, 32 and 64 bits
_PLACE = "\0bytes"  # where bytes stand, the JSON has their first and their last place


class MessageError(Exception):
    """What came is not a message, or is too long."""


def packed(value: object) -> bytes:
    """Return a value as it is sent: what JSON knows, bytes, and dataclasses and enumerations, which become plain."""
    parts: list[bytes] = []
    size = 0

    def plain(each: object) -> object:
        nonlocal size
        if isinstance(each, bytes):
            parts.append(each)
            size += len(each)
            # The place among the bytes stands in for them.
            return {_PLACE: [size - len(each), size]}
        if is_dataclass(each):
            return {field.name: getattr(each, field.name) for field in fields(each)}
        if isinstance(each, Enum):
            return each.value
        raise TypeError(f"{type(each).__name__} cannot be sent")

    text = json.dumps(value, default=plain).encode()
    return b"".join((_HEAD.pack(len(text), size), text, *parts))


async def received(reader: asyncio.StreamReader) -> Any:
    """Return the next value. Raises `MessageError`, and `asyncio.IncompleteReadError` where the other side is gone."""
    text, size = _HEAD.unpack(await reader.readexactly(_HEAD.size))
    # Before anything is read: a worker of an older version may say anything.
    if text > MAX_JSON or size > MAX_PAYLOAD:
        raise MessageError("it is too long")
    content = await reader.readexactly(text)
    behind = await reader.readexactly(size)

    def whole(each: dict[str, Any]) -> Any:
        if each.keys() != {_PLACE}:
            return each
        start, end = each[_PLACE]
        return behind[start:end]

    try:
        return json.loads(content, object_hook=whole)
    except (ValueError, TypeError) as problem:
        raise MessageError(str(problem)) from None


logger = logging.getLogger("respsite.sandbox")

Report = Callable[[dict[str, Any]], None]
Answer = Callable[[str, Sequence[Any], Report], Awaitable[Any]]
_REPORT = "report"  # the key of a message that is not the answer yet
TAG_DIGITS = 8  # of a worker's tag, hexadecimal
BACKLOG = 1024  # questions that nobody has looked at yet; one more would not find this worker
# `0123abcd.sock`; a name without the ending is of a worker that does not listen yet.
_SOCKET = re.compile(rf"[0-9a-f]{{{TAG_DIGITS}}}\.sock")


class NeighbourGone(Exception):
    """The worker that was asked is not there, or is no more."""


class Neighbours:
    """This worker and the others of its folder. `answer` does what it is asked for, and raises nothing.

    `tag` is None as long as nothing listens here.
    """

    def __init__(self, folder: Path, answer: Answer) -> None:
        self._folder = folder
        self._answer = answer
        self._server: asyncio.Server | None = None
        self._open = contextlib.ExitStack()  # the folder, as long as the socket is bound
        self._opening = asyncio.Lock()  # so that it is tried once
        self._tried = False
        self._answering: set[asyncio.Task[None]] = set()  # questions of others that are being answered
        self.tag: str | None = None

    async def open(self) -> None:
        """Listen, if it has not been tried yet; where that cannot be, the log says so and `tag` stays None."""
        # Calls at once wait for the one that tries.
        async with self._opening:
            if self._tried:
                return
            self._tried = True
            try:
                await self._listen()
            except OSError as problem:
                logger.warning(
                    "other workers cannot reach the containers of this one: no socket in %s (%s)",
                    self._folder,
                    problem.strerror,
                )

    async def ask(
        self,
        tag: str,
        what: str,
        arguments: Sequence[Any],
        *,
        seconds: float | None = None,
        report: Report | None = None,
    ) -> Any:
        """Return what another worker says; `report` is told what it says before.

        Raises `NeighbourGone`, and `TimeoutError` behind `seconds`.
        """
        async with asyncio.timeout(seconds):
            try:
                with _short(self._folder) as folder:
                    reader, writer = await asyncio.open_unix_connection(f"{folder}/{tag}.sock")
            except OSError as problem:
                # A socket without a listener: its worker is dead, and nobody else would remove it.
                if isinstance(problem, ConnectionRefusedError):  # it was killed
                    self._path(tag).unlink(missing_ok=True)
                raise NeighbourGone(tag) from None
            try:
                writer.write(packed([what, arguments]))
                await writer.drain()
                while isinstance(said := await received(reader), dict) and _REPORT in said:
                    if report is not None:
                        report(said[_REPORT])
                return said
            except (OSError, asyncio.IncompleteReadError, MessageError):
                raise NeighbourGone(tag) from None
            finally:
                writer.close()

    def others(self) -> list[str]:
        """Return the tags of the other workers, of which some may be dead."""
        try:
            names = sorted(os.listdir(self._folder))
        except OSError:  # nobody has listened yet
            return []
        tags = [name.removesuffix(".sock") for name in names if _SOCKET.fullmatch(name)]
        return [tag for tag in tags if tag != self.tag]

    async def aclose(self) -> None:
        """Stop listening, and stop what is done for others."""
        if self._server is None or self.tag is None:
            return
        self._server.close()
        self._open.close()
        self._path(self.tag).unlink(missing_ok=True)
        for task in self._answering:
            task.cancel()
        await asyncio.gather(*self._answering, return_exceptions=True)
        self._server = None

    def _path(self, tag: str) -> Path:
        return self._folder / f"{tag}.sock"

    async def _listen(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        # Only this user's processes may ask.
        self._folder.chmod(0o700)
        tag = secrets.token_hex(TAG_DIGITS // 2)
        folder = self._open.enter_context(_short(self._folder))  # the socket keeps the name that it was bound to
        bound = socket.socket(socket.AF_UNIX)
        try:
            bound.bind(f"{folder}/{tag}")
        except OSError:
            bound.close()
            raise
        # The backlog is the kernel's queue: a worker that is busy answers later.
        self._server = await asyncio.start_unix_server(self._hear, sock=bound, backlog=BACKLOG)
        (self._folder / tag).rename(self._path(tag))  # it is seen when it listens, so one that refuses is dead
        self.tag = tag

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._answering.add(task)
        try:
            what, arguments = await received(reader)
            answer = await _unless_gone(
                self._answer(what, arguments, lambda fields: writer.write(packed({_REPORT: fields}))), reader
            )
            writer.write(packed(answer))
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError) as problem:
            logger.info("another worker has let go of its question: %s", problem)
        except MessageError as problem:
            logger.warning("another worker's question cannot be read: %s", problem)
        except asyncio.CancelledError:
            pass  # nobody waits for it, or the server stops
        finally:
            self._answering.discard(task)
            writer.close()


async def _unless_gone(work: Awaitable[Any], reader: asyncio.StreamReader) -> Any:
    """Do it as long as the other side is there. Raises `CancelledError` when it is not."""
    doing = asyncio.ensure_future(work)
    # Nobody says anything more on it: what can be read is the end.
    leaving = asyncio.create_task(reader.read(1))
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        if not doing.done():
            doing.cancel()
        # Both have ended when this returns, whichever was first.
        await asyncio.gather(doing, leaving, return_exceptions=True)
    return doing.result()


@contextlib.contextmanager
def _short(folder: Path) -> Iterator[str]:
    """Give a folder a short name: the path of a socket has 107 bytes at most. Raises `OSError`."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
