"""The worker's side: `RemoteHost` asks a host over a socket, `OwnHost` has its containers in this process.

Nothing is asked for twice by itself: where a host goes while it works, the question fails with `HostGone`. The next one
connects again.
"""

import asyncio
import contextlib
import logging
import ssl
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import Any

from responses_app.tools.sandbox.actions import ACTIONS, ERRORS, Action
from responses_app.tools.sandbox.base import SandboxError
from responses_app.tools.sandbox.channel import Callback, Channel, ChannelClosed, Refused, Report
from responses_app.tools.sandbox.containers import Containers
from responses_app.tools.sandbox.messages import VERSION as OUR_VERSION
from responses_app.tools.sandbox.messages import MessageError, packed, read_as, received
from responses_app.tools.sandbox.records import HostGone, Room

logger = logging.getLogger("respsite.sandbox")

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
    room: Room | None = None  # as it was last heard of; None before, and where it cannot be reached
    is_checked = False  # its sandbox holds

    @abstractmethod
    async def open(self) -> None:
        """Reach it, so that its room is known. Raises `HostGone`."""

    @abstractmethod
    async def ask(
        self, what: str, *arguments: Any, callback: Callback | None = None, report: Report | None = None
    ) -> Any:
        """Have an action done; `report` is told how far it is. Raises what it raises, and `HostGone`."""

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
        return await getattr(self.containers, what)(*arguments, *_last(ACTIONS[what], callback, report))

    async def aclose(self) -> None:
        await self.containers.aclose()


def _last(action: Action, callback: Callback | None, report: Report | None) -> Sequence[Any]:
    if action.needs:
        return [_answered(callback)]
    return [report or _unheard] if action.reports else ()


def _unheard(fields: dict[str, Any]) -> None:
    """Hear how far something is, where nobody asks for that."""


def _answered(callback: Callback | None) -> Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]:
    async def call(value: dict[str, Any]) -> dict[str, Any]:
        return (await callback(value) if callback is not None else None) or {}

    return call


class RemoteHost(BaseHost):
    """The containers of another process: `address` is the path of a Unix socket, or `host:port`, which needs `tls`."""

    def __init__(self, address: str, *, secret: str = "", tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        self.address = address
        self._secret = secret
        self._tls = tls
        self._channel: Channel | None = None
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
        except Refused as problem:
            raise _error(problem) from None
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

    async def _open(self) -> Channel:
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

    async def _connect(self) -> Channel:
        if "/" in self.address:
            reader, writer = await asyncio.open_unix_connection(self.address)
        else:
            name, _, port = self.address.rpartition(":")
            tls = self._tls() if self._tls is not None else ssl.create_default_context()
            reader, writer = await asyncio.open_connection(name.strip("[]"), int(port), ssl=tls)
        try:
            writer.write(packed({"hello": OUR_VERSION, "secret": self._secret}))
            welcome = await received(reader)
            if welcome.get("problem"):
                raise _Unwelcome(str(welcome["problem"])[:200])
            self._hear(welcome.get("room"))
        except BaseException:
            writer.close()
            raise
        return Channel((reader, writer), heard=self._hear, silence=SILENCE_SECONDS, pings=PING_SECONDS)

    def _hear(self, room: object) -> None:
        with contextlib.suppress(MessageError):  # of a newer host, perhaps
            self.room = read_as(Room, room)


class _Unwelcome(Exception):
    """The host lets this worker not in."""


def _error(problem: Refused) -> Exception:
    kind = ERRORS.get(problem.name, SandboxError)
    return kind(str(problem), detail=problem.detail) if issubclass(kind, SandboxError) else kind(str(problem))
