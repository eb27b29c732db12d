"""`Connections`: one kept client for each server and credentials. A fresh one a call would take 100 ms, a kept one 3.

A client is entered and left by a task of its own, as its library wants it. Where its connection breaks, that task ends,
and whoever calls next gets a new one.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from responses_app.protocol.errors import JsonObject

logger = logging.getLogger("respsite.tools")

MAX_CONNECTIONS = 256  # clients that are kept; the one unused for longest makes room
IDLE_SECONDS = 300.0  # after which an unused one is closed
SWEEP_SECONDS = 30.0  # between two looks for those that are unused
CLOSE_SECONDS = 5.0  # for one to close, and for all of them in a stop

OpenClient = Callable[["McpConnection"], AbstractAsyncContextManager[Any]]


@dataclass
class Listing:
    """The tools that a server has listed."""

    tools: Sequence[JsonObject]  # as `mcp_list_tools` items show them
    until: float  # when they are to be asked for again, by the monotonic clock
    is_cut: bool = False  # the server has more


class McpConnection:
    """A kept client. `listing` has the tools that its server listed last; `problem` is why it has ended, if it has."""

    def __init__(self, open_client: OpenClient) -> None:
        self.listing: Listing | None = None  # what its server has listed last; None: it is to be asked
        self.problem: BaseException | None = None  # why it has ended; None while it lives
        self.users = 0  # calls that use it now
        self.last_used = time.monotonic()  # by the monotonic clock
        self._open = open_client
        self._leave = asyncio.Event()  # set when it is to end
        # Set once its server has answered; has the error where that failed.
        self._client: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        # The one task that enters and leaves the client.
        self._task = asyncio.create_task(self._keep(), name="MCP connection")

    @property
    def has_ended(self) -> bool:
        """Whether it can no longer be used."""
        return self._task.done() or self._leave.is_set()

    @property
    def is_over(self) -> bool:
        """Whether it has ended, with all that it kept open."""
        return self._task.done()

    @property
    def is_connected(self) -> bool:
        """Whether its server has answered before."""
        return self._client.done()

    async def client(self) -> Any:
        """Return the client, once it is connected. Raises what its opening raised."""
        # `shield`: a caller that is cancelled must not cancel what others wait for.
        return await asyncio.shield(self._client)

    async def ended_by(self) -> BaseException | None:
        """Return why it ended, if a call has failed since it did; None where it lives."""
        for _ in range(3):  # the library fails the call first, and then ends
            await asyncio.sleep(0)
        if self.problem is None and not self._task.done():
            await asyncio.wait([self._task], timeout=0.05)
        return self.problem

    def close(self) -> None:
        """Let it end: it takes its leave, if its server has answered before."""
        self._leave.set()
        # Nobody to take leave of: the opening is cut off.
        if not self.is_connected:
            self._task.cancel()

    def hung_up(self) -> None:
        """End, because the server has hung up; before it has answered once, its opening fails and says why."""
        if self.is_connected:
            self.close()

    async def closed(self, seconds: float | None = None) -> None:
        """Return when it has ended, or after this time."""
        await asyncio.wait([self._task], timeout=seconds)

    def cancel(self) -> None:
        """End it now."""
        self._task.cancel()

    async def _keep(self) -> None:
        try:
            async with self._open(self) as client:
                self._client.set_result(client)
                await self._leave.wait()
        except asyncio.CancelledError:
            self.problem = ConnectionError("it was closed")
            raise
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - whatever it is, callers are told
            self.problem = cause_of(error)
            logger.debug("an MCP connection ended: %s: %s", type(self.problem).__name__, self.problem)  # calls tell it
        finally:
            # Whoever waits for the client must be woken, however it ended.
            if not self._client.done():
                problem = self.problem if isinstance(self.problem, Exception) else ConnectionError("it was closed")
                self._client.set_exception(problem)
                self._client.exception()  # marks it as seen: perhaps nobody waits for it


@dataclass
class Connections:
    """The kept clients of a process."""

    _kept: dict[Hashable, McpConnection] = field(default_factory=dict)  # by server, credentials and project
    # Those that nobody gets any more, and that have not ended yet.
    _leaving: list[McpConnection] = field(default_factory=list)
    _sweeper: asyncio.Task[None] | None = None  # runs while any are kept
    has_closed: bool = False  # nothing is opened any more

    @asynccontextmanager
    async def use(self, key: Hashable, open_client: OpenClient) -> AsyncIterator[McpConnection]:
        """Yield the connection of a key, which is opened where there is none that lives."""
        connection = self._kept.get(key)
        if connection is None or connection.has_ended:
            connection = self._open(key, open_client)
        # Counted before anything is awaited: the sweeper leaves used ones alone.
        connection.users += 1
        try:
            yield connection
        finally:
            connection.users -= 1
            connection.last_used = time.monotonic()

    async def aclose(self) -> None:
        """Close all of them."""
        self.has_closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        for key in list(self._kept):
            self._let_go(key)
        every, self._leaving = self._leaving, []
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await asyncio.gather(*(connection.closed() for connection in every))
        except TimeoutError:
            late = [connection for connection in every if not connection.is_over]
            for connection in late:
                connection.cancel()
            # A second time with a bound: a library may not end when it is cancelled.
            await asyncio.gather(*(connection.closed(CLOSE_SECONDS) for connection in late))
            if stuck := sum(not connection.is_over for connection in late):
                logger.warning("%d connections to MCP servers do not end, and are left as they are", stuck)

    def _open(self, key: Hashable, open_client: OpenClient) -> McpConnection:
        self._sweep(room_for=1)
        connection = self._kept[key] = McpConnection(open_client)
        if self._sweeper is None or self._sweeper.done():
            self._sweeper = asyncio.create_task(self._sweep_on(), name="MCP connections")
        return connection

    async def _sweep_on(self) -> None:
        while self._kept:
            await asyncio.sleep(SWEEP_SECONDS)
            self._sweep()

    def _sweep(self, *, room_for: int = 0) -> None:
        now = time.monotonic()
        for key, connection in list(self._kept.items()):
            is_idle = not connection.users and now - connection.last_used > IDLE_SECONDS
            if is_idle or connection.has_ended:
                self._let_go(key)
        unused = sorted((c.last_used, key) for key, c in self._kept.items() if not c.users)
        for _, key in unused[: max(0, len(self._kept) + room_for - MAX_CONNECTIONS)]:
            self._let_go(key)

    def _let_go(self, key: Hashable) -> None:
        """Have a connection end; its server may leave the farewell unanswered, so then it is cut."""
        connection = self._kept.pop(key)
        connection.close()
        asyncio.get_running_loop().call_later(CLOSE_SECONDS, connection.cancel)
        self._leaving = [each for each in (*self._leaving, connection) if not each.is_over]


def cause_of(error: BaseException) -> BaseException:
    """Return the first cause of an error: task groups wrap it, however often."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error
