"""Hosts of containers: the actions that one does for workers, who asks for them, and `HostServer`, which does them.

An action is a method of `Containers`, under its own name, with plain arguments: what JSON knows, and bytes. What it
returns may also be a dataclass, or a sequence of them. Nothing but these names can be asked for. Nothing is asked for
twice by itself: where a host goes while it works, the question fails with `HostGone`. The next one connects again.

A host is asked over a Unix socket that its user alone may open, or over TLS. Whoever connects says hello first: the
version of the protocol, and over TLS the secret. Before that nothing else of theirs is read, and little of that; and
there are few of them, of each address fewer, as a handshake of TLS takes 0.3 MB of memory from its beginning on. With
SIGTERM a host leaves: it begins nothing new, lets what runs end within its time, and saves the files of its containers
on disk.
"""

import asyncio
import contextlib
import hmac
import json
import logging
import socket
import ssl
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any

from responses_app.extensions.containers.sandbox.cells import Answer
from responses_app.extensions.containers.sandbox.channel import (
    MAX_HELLO,
    VERSION,
    ActionFailed,
    Callback,
    ChannelClosed,
    HostChannel,
    HostQuestion,
    MessageError,
    Report,
    packed,
    read_as,
    received,
)
from responses_app.extensions.containers.sandbox.containers import Containers
from responses_app.extensions.containers.sandbox.living import still_wanted
from responses_app.extensions.containers.sandbox.records import (
    CellRun,
    ChainFound,
    CommandsRun,
    ContainerFilePart,
    ContainerFileRecord,
    ContainerNotFound,
    ContainerRecord,
    HostGone,
    HostRoom,
    MemoryRefused,
    NetworkRefused,
    SandboxError,
    TooManyContainers,
)
from responses_app.extensions.containers.sandbox.session import SandboxGone
from responses_app.extensions.containers.sandbox.skills import MountedSkill
from responses_app.observing.logs import OF_STRANGERS

logger = logging.getLogger("respsite.sandbox")

LOOK_SECONDS = 5.0  # to say what a host has: it needs nothing for that
FILE_SECONDS = 60.0  # to start a container, and to write or read a file of it


@dataclass(frozen=True, slots=True)
class HostAction:
    """How an action is asked for."""

    result: Any  # the type of what it returns
    seconds: float | None = FILE_SECONDS  # in which it answers; None where it has its own bound
    needs: bool = False  # its last argument is a callback, by which it has the worker do something while it works
    reports: bool = False  # its last argument is a function that it tells how far it is
    # It is not done twice for one `call`, and goes on where its worker dies: `Containers` keeps what came of it, and
    # is told by its last argument whether the worker is gone.
    is_kept: bool = False

    def last(self, answer: Answer, report: Report, is_dropped: Callable[[], bool]) -> Sequence[Any]:
        """Return the arguments behind those that were sent."""
        if self.needs:
            return [answer]
        if self.reports:
            return [report]
        return [is_dropped] if self.is_kept else []


ACTIONS = {
    "check": HostAction(str),  # the name of the sandbox; it is tried when it is first asked for
    "make": HostAction(ContainerRecord, LOOK_SECONDS),
    "record": HostAction(ContainerRecord, LOOK_SECONDS),
    "records": HostAction(Sequence[ContainerRecord], LOOK_SECONDS),
    "of_chain": HostAction(ChainFound | None, LOOK_SECONDS),
    "join_chain": HostAction(None, LOOK_SECONDS),
    "give_secrets": HostAction(None, LOOK_SECONDS),
    "delete": HostAction(None),
    "run": HostAction(CellRun, None, is_kept=True),
    "run_program": HostAction(CellRun, None, needs=True),
    "run_commands": HostAction(CommandsRun, None, reports=True),
    "put_part": HostAction(None),
    "finish": HostAction(ContainerFileRecord),
    "drop": HostAction(None),
    "put_image": HostAction(ContainerFileRecord),
    "files_of": HostAction(Sequence[ContainerFileRecord]),
    "file": HostAction(ContainerFileRecord),
    "part": HostAction(ContainerFilePart),
    "remove_file": HostAction(None),
    "skills_of": HostAction(Sequence[MountedSkill], LOOK_SECONDS),
    "add_skill": HostAction(None),
}

# What an action may raise: it is raised again at the worker, with its text.
ERRORS: dict[str, type[Exception]] = {
    each.__name__: each
    for each in (
        ContainerNotFound,
        SandboxError,
        SandboxGone,
        TooManyContainers,
        MemoryRefused,
        NetworkRefused,
        HostGone,
    )
}


CONNECT_SECONDS = 20.0  # until a host has said hello: one that is started for it takes a second
AGAIN_SECONDS = 2.0  # a host that could not be reached is not tried again sooner
PING_SECONDS = 2.0
SILENCE_SECONDS = 10.0  # a host that says nothing for so long is gone
_UNREACHED = "the host of the containers cannot be reached"
_LOST = "the host of the container went away while it worked"
_LATE = "the container did not answer in time"


class BaseHost(ABC):
    """Somebody who has containers."""

    address: str  # as SANDBOX_HOSTS has it
    room: HostRoom | None = None  # as it was last heard of; None before, and where it cannot be reached
    is_checked = False  # its sandbox holds

    @abstractmethod
    async def open(self) -> None:
        """Reach it, so that its room is known. Raises `HostGone`."""

    @abstractmethod
    async def ask(
        self, what: str, *arguments: Any, callback: Callback | None = None, report: Report | None = None
    ) -> Any:
        """Have an action done; `report` is told how far it is. Raises as the action does, and `HostGone`."""

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of it."""


class OwnHost(BaseHost):
    """Containers of this process: they end with it."""

    address = "this process"

    def __init__(self, containers: Containers) -> None:
        self.containers = containers
        self.room = containers.room()

    async def open(self) -> None:
        self.room = self.containers.room()

    async def ask(
        self, what: str, *arguments: Any, callback: Callback | None = None, report: Report | None = None
    ) -> Any:
        async def answer(value: dict[str, Any]) -> dict[str, Any]:
            return (await callback(value) if callback is not None else None) or {}

        last = ACTIONS[what].last(answer, report or (lambda _: None), still_wanted)
        return await getattr(self.containers, what)(*arguments, *last)

    async def aclose(self) -> None:
        await self.containers.aclose()


class RemoteHost(BaseHost):
    """The containers of another process: `address` is the path of a Unix socket, or `host:port`, which needs `tls`."""

    def __init__(self, address: str, *, secret: str = "", tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        self.address = address
        self._secret = secret
        self._tls = tls
        self._channel: HostChannel | None = None
        self._living: asyncio.Task[None] | None = None  # reads as long as the connection is there
        self._opening = asyncio.Lock()  # one connection for all who ask at once
        self._failed_at = -AGAIN_SECONDS  # by the loop's clock
        self._why = _UNREACHED

    async def open(self) -> None:
        await self._open()

    async def ask(
        self, what: str, *arguments: Any, callback: Callback | None = None, report: Report | None = None
    ) -> Any:
        action, channel = ACTIONS[what], await self._open()
        try:
            return read_as(
                action.result,
                await channel.ask(what, arguments, callback=callback, report=report, seconds=action.seconds),
            )
        except ActionFailed as problem:
            kind, text = ERRORS.get(problem.name, SandboxError), str(problem)
            raise (kind(text, detail=problem.detail) if issubclass(kind, SandboxError) else kind(text)) from None
        except ChannelClosed:
            raise HostGone(_LOST) from None
        except TimeoutError:
            logger.warning("%s: no answer to %s in its time", self.address, what)
            # It may stand still for a while: asking again helps, as where it is gone.
            raise HostGone(_LATE) from None
        except MessageError as problem:
            raise SandboxError("the container cannot be asked for that", detail=str(problem)) from None

    async def aclose(self) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._living is not None:
            await asyncio.gather(self._living, return_exceptions=True)

    async def _open(self) -> HostChannel:
        """Return the connection. Raises `HostGone`."""
        async with self._opening:
            if self._channel is not None and self._channel.is_open:
                return self._channel
            now = asyncio.get_running_loop().time
            if now() - self._failed_at < AGAIN_SECONDS:
                raise HostGone(self._why)
            self.room, self.is_checked = None, False
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    self._channel = await self._connect()
            except (OSError, TimeoutError, MessageError, asyncio.IncompleteReadError, _Unwelcome) as problem:
                self._failed_at = now()  # not when it began: all who wait for this attempt fail with it
                self._why = f"{_UNREACHED}: {problem}" if isinstance(problem, _Unwelcome) else _UNREACHED
                logger.warning("the host of containers at %s cannot be used: %s", self.address, problem)
                raise HostGone(self._why) from None
            # An empty context: what is logged of it is not about whoever asks first.
            self._living = asyncio.create_task(self._channel.live(), context=Context())
            return self._channel

    async def _connect(self) -> HostChannel:
        if "/" in self.address:
            reader, writer = await asyncio.open_unix_connection(self.address)
        else:
            name, _, port = self.address.rpartition(":")
            tls = self._tls() if self._tls is not None else ssl.create_default_context()
            reader, writer = await asyncio.open_connection(name.strip("[]"), int(port), ssl=tls)
        try:
            writer.write(packed({"hello": VERSION, "secret": self._secret}))
            welcome = await received(reader)
            if welcome.get("problem"):
                raise _Unwelcome(str(welcome["problem"])[:200])
            self._hear(welcome.get("room"))
        except BaseException:
            writer.close()
            raise
        return HostChannel((reader, writer), heard=self._hear, silence=SILENCE_SECONDS, pings=PING_SECONDS)

    def _hear(self, room: object) -> None:
        with contextlib.suppress(MessageError):  # of a newer host, perhaps
            self.room = read_as(HostRoom, room)


class _Unwelcome(Exception):
    """The host lets this worker not in."""


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
class HostListener:
    """Where a host is found, and who may come in."""

    listener: socket.socket
    secret: str = field(default="", repr=False)  # what a worker says; "" where the folder keeps others out
    tls: ssl.SSLContext | None = None


class HostServer:
    """Answers workers. `serve` returns once `leave` was called and all has ended, or `grace` seconds behind that."""

    def __init__(self, containers: Containers, door: HostListener, *, grace: float) -> None:
        self._containers = containers
        self._door = door
        self._grace = grace
        self._leaves = asyncio.Event()
        self._channels: set[HostChannel] = set()
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
                channel = HostChannel(
                    (reader, writer), work=self._work, news=self._containers.room, silence=WORKER_SECONDS
                )
                self._channels.add(channel)
                try:
                    await channel.live()
                finally:
                    self._channels.discard(channel)
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
        secret = str(hello.get("secret", "")).encode(errors="replace")  # half a character is not the secret's
        if not hmac.compare_digest(secret, self._door.secret.encode()):
            return "the secret is wrong (SANDBOX_SECRET)"
        if hello.get("hello") != VERSION:
            return f"it speaks version {json.dumps(hello.get('hello'))[:20]} of the protocol, and this host {VERSION}"
        return ""

    async def _work(self, what: str, arguments: Sequence[Any], question: HostQuestion) -> Any:
        """Do an action for a worker. Raises `ActionFailed`."""
        action = ACTIONS.get(what)
        if action is None:
            raise ActionFailed("SandboxError", f"this host knows no {what[:40]}", "")
        self._busy += 1
        self._idle.clear()
        try:
            if self._leaves.is_set():
                raise HostGone("the host of the container stops now")
            return await getattr(self._containers, what)(
                *arguments, *action.last(question.call, question.tell, lambda: question.is_dropped)
            )
        except (ContainerNotFound, SandboxError) as problem:
            name = next(each.__name__ for each in type(problem).__mro__ if each.__name__ in ERRORS)
            detail = problem.detail if isinstance(problem, SandboxError) else ""
            raise ActionFailed(name, str(problem), detail) from None
        except Exception:
            logger.exception("%s, which a worker asked for, broke", what)
            raise ActionFailed("SandboxError", _BROKEN, "") from None
        finally:
            self._busy -= 1
            if not self._busy:
                self._idle.set()
