"""`RetentionWatch`: has a process know within 2 s how long each project keeps what it stores.
`Expiry`: has what is past that removed.

It reads that every second. A worker that stood still for longer reads it before it keeps anything. While the database
is away nobody can change it, and what is known goes on to hold. Before the first answer nothing is known: whoever wants
to keep something waits for that answer, as long as a query may take.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress

from engine.errors import reason_of
from responses_app.kit.duty import attempted, end_tasks, until_look
from responses_app.kit.errors import NotMigrated, StoreClosed, StoreError
from responses_app.kit.retention import NEVER, Retentions

logger = logging.getLogger("respsite.runs")

REFRESH_SECONDS = 1.0
ANSWER_SECONDS = 1.0  # of a database that was heard before: then it counts as away
MAX_AGE_SECONDS = 2.0  # of what is known, while the database answers


class RetentionWatch:
    """Keeps `table` as the database says, which `read` asks; `read` has a time limit."""

    def __init__(self, table: Retentions, read: Callable[[], Awaitable[Mapping[str, int]]]) -> None:
        self.table = table
        self._read = read
        self._read_at = float("-inf")  # when what is known was asked for, on the loop's clock
        self._is_away = False
        self._reading: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None

    @classmethod
    def of_none(cls) -> "RetentionWatch":
        """Return one for which no project has a retention of its own."""

        async def read() -> Mapping[str, int]:
            return {}

        return cls(Retentions(), read)

    async def start(self) -> None:
        """Read it, before anything is served where the database answers soon; then go on reading."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._refreshed()
        self._task = asyncio.create_task(self._keep_fresh(), name="retentions")

    async def aclose(self) -> None:
        """Stop."""
        tasks = [task for task in (self._task, self._reading) if task is not None]
        await end_tasks(tasks)

    async def current(self) -> Retentions:
        """Return what holds now. Raises `StoreError` where the database was never heard."""
        is_old = asyncio.get_running_loop().time() - self._read_at > MAX_AGE_SECONDS
        if not self.table.known or (is_old and not self._is_away):
            await self._refreshed()
        if not self.table.known:
            raise StoreError("it is not known yet which projects keep nothing: the database does not answer")
        return self.table

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(until_look(REFRESH_SECONDS))
            await self._refreshed()

    async def _refreshed(self) -> None:
        """Read it again; those who want it at once wait together."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._refresh(), name="retention")
        await asyncio.shield(self._reading)

    async def _refresh(self) -> None:
        at = asyncio.get_running_loop().time()  # before the query: what it says may be as old as that
        try:
            async with asyncio.timeout(ANSWER_SECONDS if self.table.known else None):
                self.table.learn(await self._read())
        except NotMigrated:  # without the column no project has one; who finds that has told the log
            self.table.learn({})
        except (StoreError, TimeoutError) as problem:
            if not self._is_away and not isinstance(problem, StoreClosed):
                logger.warning("the retention of projects cannot be read (%s)", reason_of(problem))
            self._is_away = True
            return
        except Exception:
            logger.exception("reading the retention of projects broke")
            return
        self._is_away, self._read_at = False, at


EXPIRY_SECONDS = 60.0  # between two removals of what is past its time
AGAIN_SECONDS = 3.0  # behind a change: what workers accepted that had not heard of it yet is there by then
Expire = Callable[..., Awaitable[Collection[str]]]  # `DatabaseRetentions.expire`


class Expiry:
    """Removes what projects keep no longer: every minute, and at once where a retention has changed.

    `expire` removes of the database, `forget` tells the workers of responses that are gone, and `expire_tools` has
    tools remove what they keep of a project that was made until a time. `now` is the store's Unix time.
    """

    def __init__(
        self,
        table: Retentions,
        *,
        expire: Expire,
        forget: Callable[[Collection[str]], Awaitable[None]],
        expire_tools: Callable[[str, float], Awaitable[None]],
        now: Callable[[], float],
    ) -> None:
        self._table = table
        self._expire = expire
        self._forget = forget
        self._expire_tools = expire_tools
        self._now = now
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._keep_expiring(), name="expiry")

    async def aclose(self) -> None:
        """Stop."""
        if self._task is not None:
            await end_tasks([self._task])

    async def run(self) -> None:
        """Remove of all projects what is past its time now. Raises `StoreError`."""
        for project, hours in self._table.bounded.items():
            oldest = self._table.oldest(project, self._now())
            gone = await self._expire(project, oldest, nothing=hours == NEVER)
            if gone:
                logger.info("project %s keeps nothing: %d responses were removed", project, len(gone))
                await self._forget(gone)
            await self._expire_tools(project, oldest)

    async def _keep_expiring(self) -> None:
        clock = asyncio.get_running_loop().time
        known: Mapping[str, int] = {}
        due = clock() + EXPIRY_SECONDS
        while True:
            if (bounded := self._table.bounded) != known or clock() >= due:
                due = clock() + (EXPIRY_SECONDS if bounded == known else AGAIN_SECONDS)
                known = bounded
                await attempted(self.run, what="removing what is past its time", logger=logger)
            await asyncio.sleep(until_look(REFRESH_SECONDS))
