"""`HostServer`: containers, for whoever may ask: over a Unix socket that this user alone may open, or over TLS.

Whoever connects says hello first: the version of the protocol, and over TLS the secret. Before that nothing else of
theirs is read, and little of that. With SIGTERM a host leaves: it begins nothing new, lets what runs end within its
time, and saves the files of its containers on disk.
"""

import asyncio
import contextlib
import hmac
import json
import logging
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from responses_app.tools.sandbox.actions import ACTIONS, ERRORS, Action
from responses_app.tools.sandbox.base import SandboxError
from responses_app.tools.sandbox.channel import Asked, Channel, Refused
from responses_app.tools.sandbox.containers import Containers
from responses_app.tools.sandbox.messages import MAX_HELLO, VERSION, MessageError, packed, received
from responses_app.tools.sandbox.records import ContainerNotFound, HostGone

logger = logging.getLogger("respsite.sandbox")

HELLO_SECONDS = 5.0  # for whoever connects to say who they are
WORKER_SECONDS = 60.0  # that a worker may say nothing; it pings every two
MAX_CONNECTIONS = 1024  # each worker has one
MAX_STRANGERS = 64  # of them that have not said hello yet
BACKLOG = 1024
_BROKEN = "the container cannot be used"


@dataclass(frozen=True, slots=True)
class Door:
    """Where a host is found, and who may come in."""

    listener: socket.socket
    secret: str = field(default="", repr=False)  # what a worker says; "" where the folder keeps others out
    tls: ssl.SSLContext | None = None


class HostServer:
    """Answers workers. `serve` returns once `leave` was called and all has ended, or `grace` seconds behind that."""

    def __init__(self, containers: Containers, door: Door, *, grace: float) -> None:
        self._containers = containers
        self._door = door
        self._grace = grace
        self._leaves = asyncio.Event()
        self._channels: set[Channel] = set()
        self._connections: set[asyncio.Task[None]] = set()
        self._strangers = 0  # connections without a hello
        self._busy = 0  # actions that work
        self._idle = asyncio.Event()  # none does
        self._idle.set()

    def leave(self) -> None:
        """Begin nothing new, and end."""
        self._containers.is_leaving = True
        self._leaves.set()

    async def serve(self) -> None:
        """Serve until `leave`."""
        server = await asyncio.start_server(
            self._connected,
            sock=self._door.listener,
            ssl=self._door.tls,
            backlog=BACKLOG,
            # A handshake that takes long is a stranger's, too.
            ssl_handshake_timeout=HELLO_SECONDS if self._door.tls is not None else None,
        )
        try:
            await self._leaves.wait()
            server.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._grace):
                    await self._idle.wait()
        finally:
            server.close()
            for channel in list(self._channels):
                channel.close()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)
            await self._containers.aclose()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if await self._is_known(reader, writer):
                await self._live(reader, writer)
        except asyncio.CancelledError:
            pass  # the host ends
        except OSError as problem:
            logger.info("a connection broke: %s", problem)
        finally:
            self._connections.discard(task)
            writer.close()

    async def _is_known(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Hear who it is, and answer; whether it may ask."""
        if self._strangers >= MAX_STRANGERS or len(self._connections) > MAX_CONNECTIONS:
            logger.warning("a connection is refused: %d are there already", len(self._connections) - 1)
            return False
        self._strangers += 1
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                hello = await received(reader, max_json=MAX_HELLO, max_bytes=0)
        except (MessageError, TimeoutError, asyncio.IncompleteReadError):
            logger.warning("a connection is ended: it does not say hello as a worker does")
            return False
        finally:
            self._strangers -= 1
        problem = self._problem(hello)
        answer = {"hello": VERSION, "problem": problem, "room": self._containers.room() if not problem else None}
        writer.write(packed(answer))
        await writer.drain()
        if problem:
            logger.warning("a worker is refused: %s", problem)
        return not problem

    def _problem(self, hello: dict[str, Any]) -> str:
        # In constant time: how long it takes must not tell how much of it was right.
        if not hmac.compare_digest(str(hello.get("secret", "")).encode(), self._door.secret.encode()):
            return "the secret is wrong (SANDBOX_SECRET)"
        if hello.get("hello") != VERSION:
            return f"it speaks version {json.dumps(hello.get('hello'))[:20]} of the protocol, and this host {VERSION}"
        return ""

    async def _live(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel = Channel((reader, writer), work=self._work, news=self._containers.room, silence=WORKER_SECONDS)
        self._channels.add(channel)
        try:
            await channel.live()
        finally:
            self._channels.discard(channel)

    async def _work(self, what: str, arguments: Sequence[Any], asked: Asked) -> Any:
        """Do what a worker asks for. Raises `Refused`."""
        action = ACTIONS.get(what)
        if action is None:
            raise Refused("SandboxError", f"this host knows no {what[:40]}", "")
        self._busy += 1
        self._idle.clear()
        try:
            if self._leaves.is_set():
                raise HostGone("the host of the container stops now")
            return await getattr(self._containers, what)(*arguments, *_last(action, asked))
        except (ContainerNotFound, SandboxError) as problem:
            name = next(each.__name__ for each in type(problem).__mro__ if each.__name__ in ERRORS)
            detail = problem.detail if isinstance(problem, SandboxError) else ""
            raise Refused(name, str(problem), detail) from None
        except Exception:
            logger.exception("%s, which a worker asked for, broke", what)
            raise Refused("SandboxError", _BROKEN, "") from None
        finally:
            self._busy -= 1
            if not self._busy:
                self._idle.set()


def _last(action: Action, asked: Asked) -> Sequence[Any]:
    """Return what an action takes behind its arguments."""
    if action.needs:
        return [asked.call]
    if action.reports:
        return [asked.tell]
    return [lambda: asked.is_dropped] if action.is_kept else []
