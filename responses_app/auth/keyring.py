"""`KeyRing`: the keys in use, as the database last said. So a request costs no query, and a revoked key opens no more.

Every second all keys in use are read again, in one query. So a key that is revoked or expires is out on every worker
within 2 s, and whoever came in by it is told (`watch`). A worker that was stopped for longer reads them before it opens
for anybody.

While the database is away nobody can revoke a key, and those in use go on opening, for up to `MAX_STALE_SECONDS`.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from engine.errors import reason_of
from responses_app.kit.duty import until_look
from responses_app.kit.errors import NotMigrated, StoreClosed, StoreError
from responses_app.protocol.api_keys import KeyRecord, digest_of
from responses_app.protocol.errors import overloaded

if TYPE_CHECKING:
    from responses_app.resources.projects.callers import KeyStore

logger = logging.getLogger("respsite.auth")

REFRESH_SECONDS = 1.0
ANSWER_SECONDS = 1.0  # of the database: then it counts as away
MAX_AGE_SECONDS = 2.0  # of what is known, while the database answers
MAX_STALE_SECONDS = 300.0  # of what is known, while it does not
IDLE_SECONDS = 60.0  # a key that nobody uses is forgotten
NOTED_SECONDS = 60.0  # between two notes of when keys were used
MAX_KEYS = 10_000  # in use; over it the one that is idle longest is read again with its next request
MAX_ASKING = 8  # keys that are read at once: those in use, which are read again every second, wait behind no more
MAX_WAITING = 1_000  # for their turn to be read; over it the answer is a 503
MAX_UNKNOWN = 1_000  # texts that are not keys, kept for a second each: so that a loop of one costs no query a request


@dataclass(slots=True)
class _KnownKey:
    """A key in use."""

    key: KeyRecord  # as the database last said
    used: float  # when it was used last, on the loop's clock
    noted: float | None = None  # the last use that is kept in the database, on the same clock
    # Called once it opens no more, by a number each
    watchers: dict[int, Callable[[], None]] = field(default_factory=dict)


class KeyRing:
    """The keys in use in one process. `now` is Unix seconds."""

    def __init__(self, store: "KeyStore", *, now: Callable[[], float]) -> None:
        self.store = store
        self._now = now
        self._known: OrderedDict[str, _KnownKey] = OrderedDict()  # by digest, in the order of their use
        self._unknown: OrderedDict[str, float] = OrderedDict()  # digests, and when they were asked for
        self._asking: dict[str, asyncio.Task[KeyRecord | None]] = {}  # by digest: keys that are being read
        self._turns = asyncio.Semaphore(MAX_ASKING)
        self._refreshing: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._fresh = 0.0  # when what is known was read
        self._is_away = False
        self._noted = 0.0  # when uses were kept last
        self._watchers = 0  # how many there ever were: the next one's number

    def start(self) -> None:
        """Begin to look after the keys in use."""
        self._fresh = self._noted = asyncio.get_running_loop().time()
        self._task = asyncio.create_task(self._keep_fresh(), name="key ring")

    async def aclose(self) -> None:
        """Stop."""
        tasks = [task for task in (self._task, self._refreshing, *self._asking.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.store.aclose()

    async def find(self, secret: str) -> KeyRecord | None:
        """Return the key that this is, None for one that does not open. Raises `ApiError` (503) where none can tell."""
        loop = asyncio.get_running_loop()
        digest = digest_of(secret)
        # The process stood still for longer than a key may be good after its revocation: first look again.
        if self._known and not self._is_away and loop.time() - self._fresh > MAX_AGE_SECONDS:
            await self._refreshed()
        known = self._known.get(digest)
        # Not in use here: one query, for all who ask for it at once.
        if known is None:
            key = await self._asked(digest)
        else:
            if loop.time() - self._fresh > MAX_STALE_SECONDS:
                raise _away()
            known.used = loop.time()
            self._known.move_to_end(digest)
            key = known.key
        return key if key is not None and key.opens(self._now()) else None

    def latest(self, key: KeyRecord) -> KeyRecord:
        """Return a key, which was found a while ago, as it is now: with other limits, perhaps."""
        known = self._known.get(key.digest)
        return key if known is None else known.key

    def watch(self, key: KeyRecord, lost: Callable[[], None]) -> Callable[[], None]:
        """Call `lost` once when this key, which was just found, opens no more; return what ends the watch."""
        known = self._known.get(key.digest)
        if known is None:  # it is revoked already, or more than MAX_KEYS came at once
            asyncio.get_running_loop().call_soon(lost)
            return no_watch
        self._watchers += 1
        number, watchers = self._watchers, known.watchers
        watchers[number] = lost

        def unwatch() -> None:
            watchers.pop(number, None)

        return unwatch

    async def _asked(self, digest: str) -> KeyRecord | None:
        """Read a key that is not in use; those who ask for the same one wait together."""
        asked_at = self._unknown.get(digest)
        if asked_at is not None and asyncio.get_running_loop().time() - asked_at < REFRESH_SECONDS:
            return None
        asking = self._asking.get(digest)
        if asking is None:
            if len(self._asking) >= MAX_WAITING:
                raise _away()
            asking = self._asking[digest] = asyncio.create_task(self._ask(digest), name="key")
            asking.add_done_callback(lambda _: self._asking.pop(digest, None))
        # Others may wait for it: a request that is cancelled ends only its own wait.
        return await asyncio.shield(asking)

    async def _ask(self, digest: str) -> KeyRecord | None:
        try:
            async with self._turns:
                records = await self.store.find([digest])
        except StoreError as error:
            raise _away(error) from error
        at = asyncio.get_running_loop().time()
        key = records.get(digest)
        if key is None:
            self._unknown[digest] = at
            self._unknown.move_to_end(digest)
            while len(self._unknown) > MAX_UNKNOWN:
                self._unknown.popitem(last=False)
            return None
        # The first key: until now nothing was known that could be old.
        if not self._known:
            self._fresh = at
        self._known[digest] = _KnownKey(key, at)
        self._forget_idle(at)
        return key

    def _forget_idle(self, at: float) -> None:
        """Forget keys that nobody uses, the one idle longest first; connections hold theirs."""
        # In the order of their use, so that the idle ones come first; a hundred a second are enough.
        for digest, known in list(islice(self._known.items(), 100)):
            is_idle = at - known.used > IDLE_SECONDS or len(self._known) > MAX_KEYS
            if is_idle and not known.watchers:
                del self._known[digest]

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(until_look(REFRESH_SECONDS))
            self._forget_idle(asyncio.get_running_loop().time())
            if not self._known and not self._is_away:  # there is nothing to read
                continue
            try:
                await self._refreshed()
                await self._note_use()
            except Exception:
                logger.exception("looking after the API keys broke")

    async def _refreshed(self) -> None:
        """Read all keys in use again; those who want it at once wait together."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh(), name="keys in use")
        await asyncio.shield(self._refreshing)

    async def _refresh(self) -> None:
        digests = list(self._known)
        # The time before the query: what it says may be as old as that.
        at = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                records = await self.store.find(digests) if digests else {}
        except (StoreError, TimeoutError) as problem:
            if not self._is_away and not isinstance(problem, NotMigrated | StoreClosed):
                logger.warning("API keys cannot be read (%s): those in use go on opening", reason_of(problem))
            self._is_away = True
            return
        if self._is_away:
            logger.info("API keys can be read again")
        self._is_away = False
        self._fresh = at
        for digest in digests:
            self._renew(digest, records.get(digest))

    def _renew(self, digest: str, key: KeyRecord | None) -> None:
        known = self._known.get(digest)
        # It was forgotten while the query ran.
        if known is None:
            return
        if key is not None and key.opens(self._now()):
            if key != known.key:  # what was worked out of it stays
                known.key = key
            return
        del self._known[digest]
        watchers: Sequence[Callable[[], None]] = list(known.watchers.values())
        known.watchers.clear()
        for lost in watchers:
            lost()

    async def _note_use(self) -> None:
        """Keep when keys were used, so that an operator sees which ones are not."""
        at = asyncio.get_running_loop().time()
        if at - self._noted < NOTED_SECONDS:
            return
        self._noted = at
        used = [known for known in self._known.values() if known.used != known.noted]
        try:
            await self.store.note_use([known.key.id for known in used], self._now())
        except StoreError as problem:
            logger.warning("when API keys were used cannot be kept: %s", problem)
            return
        for known in used:
            known.noted = known.used


def no_watch() -> None:
    """End a watch that there is none of."""


def _away(error: StoreError | None = None) -> Exception:
    message = str(error) if isinstance(error, NotMigrated) else "API keys cannot be checked now. Try again."
    return overloaded(message, retry_after=2)
