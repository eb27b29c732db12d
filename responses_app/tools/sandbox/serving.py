"""`HostServer`: containers, for whoever may ask: over a Unix socket that this user alone may open, or over TLS.

Whoever connects says hello first: the version of the protocol, and over TLS the secret. Before that nothing else of
theirs is read, and little of that; and there are few of them, of each address fewer, as a handshake of TLS takes 0.3 MB
of memory from its beginning on. With SIGTERM a host leaves: it begins nothing new, lets what runs end within its
time, and saves the files of its containers on disk.
"""

import asyncio
import contextlib
import hmac
import json
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from responses_app.observing.logs import OF_STRANGERS
from responses_app.tools.sandbox.actions import ACTIONS, ERRORS, Action
from responses_app.tools.sandbox.base import SandboxError
from responses_app.tools.sandbox.channel import Asked, Channel, Refused
from responses_app.tools.sandbox.containers import Containers
from responses_app.tools.sandbox.messages import MAX_HELLO, VERSION, MessageError, packed, received
from responses_app.tools.sandbox.records import ContainerNotFound, HostGone

logger = logging.getLogger("respsite.sandbox")

HELLO_SECONDS = 5.0  # for whoever connects to say who they are
GOODBYE_SECONDS = 2.0  # for the other side to end TLS, once this one has; it is cut behind that
WORKER_SECONDS = 60.0  # that a worker may say nothing; it pings every two
MAX_CONNECTIONS = 1024  # each worker has one
MAX_STRANGERS = 256  # of them that have not said hello yet
MAX_STRANGERS_OF_ADDRESS = 64  # over TCP; all workers of a machine may come at once
NO_FILE_SECONDS = 1.0  # where no descriptor is left: until the next connection is accepted
BACKLOG = 1024  # of who waits to be accepted
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
        self._strangers: Counter[str] = Counter()  # connections without a hello, by their addresses
        self._refused = 0  # connections that were not let in since that was logged last
        self._busy = 0  # actions that work
        self._idle = asyncio.Event()  # none does
        self._idle.set()

    def leave(self) -> None:
        """Begin nothing new, and end."""
        self._containers.is_leaving = True
        self._leaves.set()

    async def serve(self) -> None:
        """Serve until `leave`."""
        accepts = asyncio.create_task(self._accept())
        try:
            # What was saved before this start expires in its time, also where nobody asks for anything.
            await self._containers.sweep()
            await self._leaves.wait()
            accepts.cancel()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._grace):
                    await self._idle.wait()
        finally:
            accepts.cancel()
            await asyncio.gather(accepts, return_exceptions=True)
            for channel in list(self._channels):
                channel.close()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)
            await self._containers.aclose()

    async def _accept(self) -> None:
        """Let in who connects. Not `asyncio.start_server`: its strangers are counted behind their handshake."""
        listener, loop = self._door.listener, asyncio.get_running_loop()
        listener.setblocking(False)
        with listener:
            while True:
                try:
                    connection, address = await loop.sock_accept(listener)
                except OSError as problem:
                    logger.error("no connection can be accepted: %s", problem)
                    await asyncio.sleep(NO_FILE_SECONDS)
                    continue
                place = str(address[0]) if isinstance(address, tuple) else ""
                if self._is_crowded(place):
                    connection.close()
                else:
                    self._strangers[place] += 1
                    self._connections.add(asyncio.create_task(self._connected(connection, place)))
                # One that is there already is accepted without a wait: the others have their turn here.
                await asyncio.sleep(0)

    def _is_crowded(self, place: str) -> bool:
        most = MAX_STRANGERS_OF_ADDRESS if place else MAX_STRANGERS
        if (
            self._strangers[place] < most
            and self._strangers.total() < MAX_STRANGERS
            and len(self._connections) < MAX_CONNECTIONS
        ):
            return False
        # Told by the connection that is let in next: a flood of them is not to be a flood of lines.
        self._refused += 1
        return True

    async def _connected(self, connection: socket.socket, place: str) -> None:
        task, writer = asyncio.current_task(), None
        assert task is not None
        try:
            try:
                reader, writer = await self._opened(connection)
                is_known = await self._is_known(reader, writer)
                if not is_known:
                    # Counted until it is gone: whoever leaves its end open keeps memory and a descriptor.
                    writer.close()
                    await writer.wait_closed()
            finally:
                self._strangers[place] -= 1
                self._strangers += Counter()  # nothing is kept of who is gone
            if self._refused:
                logger.warning("%d connections were refused: too many were there", self._refused)
                self._refused = 0
            if is_known:
                await self._live(reader, writer)
        except asyncio.CancelledError:
            pass  # the host ends
        except OSError as problem:
            logger.info("a connection broke: %s", problem, extra=OF_STRANGERS)
        finally:
            self._connections.discard(task)
            if writer is not None:
                writer.close()

    async def _opened(self, connection: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return the streams of a connection, behind its handshake. Raises `OSError`."""
        loop, tls = asyncio.get_running_loop(), self._door.tls
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        begin, end = (HELLO_SECONDS, GOODBYE_SECONDS) if tls is not None else (None, None)
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol, connection, ssl=tls, ssl_handshake_timeout=begin, ssl_shutdown_timeout=end
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    async def _is_known(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Hear who it is, and answer; whether it may ask."""
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                hello = await received(reader, max_json=MAX_HELLO, max_bytes=0)
        except (MessageError, TimeoutError, asyncio.IncompleteReadError):
            logger.warning("a connection is ended: it does not say hello as a worker does", extra=OF_STRANGERS)
            return False
        problem = self._problem(hello)
        answer = {"hello": VERSION, "problem": problem, "room": self._containers.room() if not problem else None}
        writer.write(packed(answer))
        await writer.drain()
        if problem:
            logger.warning("a worker is refused: %s", problem, extra=OF_STRANGERS)
        return not problem

    def _problem(self, hello: dict[str, Any]) -> str:
        # In constant time: how long it takes must not tell how much of it was right.
        said = str(hello.get("secret", "")).encode(errors="replace")  # half a character is not the secret's
        if not hmac.compare_digest(said, self._door.secret.encode()):
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
