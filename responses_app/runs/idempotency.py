"""`IdempotencyKeys`: requests that are carried out once, however often they are sent.

A request that comes with an `Idempotency-Key` claims the key first. Whoever has the claim carries the request out;
all others with the same key get its answer, on any worker:

    the request makes a stored response    its id is decided with the claim, before it is accepted, so the row of the
                                           response says whether it was; its stream is read from its log
    any other                              its answer is kept here as it was sent, sealed, in parts (`Recording`)

A worker may die at any moment. The claim of a dead worker is taken over by the next request with the key:

    before the response was accepted       there is no row: the request is carried out, with the same id. Should the
                                           dead one be only slow, one of the two acceptances finds the other's row, by
                                           the epoch of the claim
    behind that                            there is a row: nothing is carried out again, the response is what there is
    no stored response                     nobody knows how far it came: it is not carried out again, and the key says
                                           so from then on

An error lets go of the key: nothing was made, and the same request may be sent again.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from responses_app.kit.duty import end_tasks, until_kept
from responses_app.kit.errors import StoreError
from responses_app.protocol.idempotency import (
    AnswerHead,
    IdempotencyRecord,
    IdempotencySettings,
    KeyClaim,
    KeyState,
    too_many_keys,
)
from responses_app.protocol.sealing import Sealer
from responses_app.runs.plan.plan import DecidedResponse

if TYPE_CHECKING:
    from responses_app.stores.idempotency import IdempotencyStore

logger = logging.getLogger("respsite.idempotency")

Result = TypeVar("Result")

FLUSH_SECONDS = 1.0  # between writes of an answer that streams: so far behind are those who follow it
PIECE_BYTES = 1 << 20  # of an answer, that are sealed together
USAGE_SECONDS = 30.0  # how long a count of a project's keys is taken for the present one
RETRY_SECONDS = 1.0  # after the store has failed
LAST_SECONDS = 3.0  # how long a stop waits for what is still to be written
# How far the epochs of a response's claims are apart where its key was claimed anew. A response that is taken over
# counts its claims up by one, and never gets as far.
EPOCHS_APART = 1_000_000
_EPOCHS = 2_000  # claims of one key; behind that epochs begin anew


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldKey:
    """A key whose request this process carries out."""

    id: str  # of the key
    project: str
    secret: str  # the key itself: what is kept for it cannot be read without it
    token: str  # of the claim
    object_id: str  # of the stored response that the request makes; "" for none
    epoch: int  # how many have claimed the key

    @property
    def decided(self) -> DecidedResponse | None:
        """The response that the request makes."""
        if not self.object_id:
            return None
        return DecidedResponse(self.object_id, 1 + (self.epoch - 1) % _EPOCHS * EPOCHS_APART)


@dataclass(slots=True)
class _Usage:
    """How much a project has, as far as this process knows."""

    keys: int
    bytes: int
    counted_at: float = field(default_factory=time.monotonic)


class IdempotencyKeys:
    """The keys of all projects, as one process knows them.

    `dead_before` says since when a worker must have been seen to be alive, by the store's clock.
    """

    def __init__(
        self,
        store: "IdempotencyStore",
        settings: IdempotencySettings,
        *,
        sealer: Sealer,
        worker: str,
        dead_before: Callable[[], float],
    ) -> None:
        self._store = store
        self._settings = settings
        self._sealer = sealer
        self._worker = worker
        self._dead_before = dead_before
        self._held: set[str] = set()  # tokens of claims whose requests are carried out here
        self._usage: dict[str, _Usage] = {}
        self._tasks: set[asyncio.Task[Any]] = set()  # that write what nobody waits for, and that carry requests out

    async def claim(
        self, project: str, secret: str, fingerprint: str, *, object_id: str
    ) -> tuple[HeldKey | None, IdempotencyRecord]:
        """Claim a key; return it if its request is to be carried out here, and as it stands.

        Raises `ApiError` (429) where the project has too many, and `StoreError`.
        """
        key_id = key_id_of(project, secret)
        await self._check_room(project, key_id)
        token = uuid4().hex
        claim = KeyClaim(
            id=key_id,
            project=project,
            fingerprint=fingerprint,
            object_id=object_id,
            token=token,
            worker=self._worker,
        )
        held = HeldKey(id=key_id, project=project, secret=secret, token=token, object_id=object_id, epoch=1)
        # Before the store is asked: a second request must not take it for a claim that nobody knows of.
        self._held.add(token)
        claiming = self.carry_out(self._claimed(claim), name="idempotency claim")
        try:
            record = await asyncio.shield(claiming)
        except BaseException:  # its client may leave, too; it may be claimed all the same, and not yet
            self.soon(held, lambda: self._free(claim, claiming))
            raise
        if record.token != token:
            self._held.discard(token)
            return None, record
        return replace(held, object_id=record.object_id, epoch=record.epoch), record

    async def look(self, project: str, secret: str) -> IdempotencyRecord | None:
        """Return a key as it stands; None where nobody has it. Raises `StoreError`."""
        return await self._store.look(key_id_of(project, secret), dead_before=self._dead_before())

    async def rename(self, held: HeldKey, object_id: str) -> HeldKey:
        """Return a key whose request makes another response than it was to make. Raises `StoreError`."""
        await self._store.rename(held.id, held.token, object_id)
        return replace(held, object_id=object_id)

    def settle(self, held: HeldKey, state: KeyState) -> None:
        """Note soon what has become of a key's request, whose answer is not kept here."""
        self.soon(held, lambda: self._store.settle(held.id, held.token, state))

    async def let_go(self, held: HeldKey, *, unchanged: bool) -> None:
        """Let go of a key before its client is told the error: the next request may come at once.

        `unchanged` says that the request has changed nothing.
        """

        async def act() -> None:
            if unchanged:
                await self._store.forget(held.id, held.token)
            else:
                await self._store.settle(held.id, held.token, KeyState.FREE)

        try:
            await act()
        except StoreError:
            self.soon(held, act)
        else:
            self._held.discard(held.token)

    async def piece(self, project: str, secret: str, start: int) -> list[bytes]:
        """Return parts of an answer from a position on: some of them, none where there are no more (yet).

        Raises `StoreError`, and `SealBroken`.
        """
        parts = await self._store.parts(key_id_of(project, secret), start)
        return await asyncio.to_thread(self._opened, project, secret, parts) if parts else []

    def carry_out(self, work: Coroutine[Any, Any, Result], *, name: str) -> "asyncio.Task[Result]":
        """Do some work as a task that outlives whoever asked for it, and is waited for when the process stops."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def soon(self, held: HeldKey, act: Callable[[], Awaitable[None]]) -> None:
        """Do the last thing about a key whose request was carried out here, again and again while the store fails."""

        async def until_done() -> None:
            try:
                await until_kept(act, seconds=RETRY_SECONDS, what="what became of an idempotency key", logger=logger)
            finally:
                # Not before it is written: until then a request that finds the claim waits for what is written.
                self._held.discard(held.token)

        self.carry_out(until_done(), name="idempotency key")

    async def purge(self) -> int:
        """Remove keys whose time is over; return how many. Raises `StoreError`."""
        return await self._store.purge()

    async def aclose(self) -> None:
        """Wait for what is to be written, but not for long."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LAST_SECONDS)
        await end_tasks(list(self._tasks))

    async def keep(self, held: HeldKey, head: AnswerHead, first: int, pieces: list[bytes], state: KeyState) -> bool:
        """Keep parts of an answer from a position on; return whether the claim holds. Raises `StoreError`."""
        sealed = await asyncio.to_thread(self._sealed, held, pieces)
        parts = dict(enumerate(sealed, start=first))
        holds = await self._store.keep(held.id, held.token, head=head, parts=parts, state=state)
        if not holds or state is not KeyState.RUNNING:
            self._held.discard(held.token)
        usage = self._usage.get(held.project)
        if usage is not None and holds:
            usage.bytes += sum(map(len, sealed))  # until it is counted again
        return holds

    @property
    def max_answer_bytes(self) -> int:
        """How long an answer may be that is kept."""
        return self._settings.idempotency_max_answer_bytes

    async def _check_room(self, project: str, key_id: str) -> None:
        usage = self._usage.get(project)
        if usage is None or time.monotonic() - usage.counted_at > USAGE_SECONDS:
            self._usage[project] = usage = _Usage(*await self._store.usage(project))
        settings = self._settings
        full = ""
        if usage.keys >= settings.idempotency_max_keys:
            full = "IDEMPOTENCY_MAX_KEYS"
        elif usage.bytes >= settings.idempotency_max_bytes:
            full = "IDEMPOTENCY_MAX_BYTES"
        # One that holds already takes no more room.
        if full and await self._store.look(key_id, dead_before=self._dead_before()) is None:
            raise too_many_keys(full)
        usage.keys += 1

    async def _claimed(self, claim: KeyClaim) -> IdempotencyRecord:
        return await self._store.claim(claim, dead_before=self._dead_before(), held=self._held)

    async def _free(self, claim: KeyClaim, claiming: "asyncio.Task[IdempotencyRecord]") -> None:
        """Let go of a key whose claim nobody waits for any more."""
        await asyncio.wait({claiming})
        if claiming.cancelled() or claiming.exception() is not None:
            # It may be written yet, so it is claimed again: that waits for what is under way.
            record = await self._claimed(claim)
        else:
            record = claiming.result()
        if record.epoch == 1:  # nobody else had it
            await self._store.forget(claim.id, claim.token)
        else:
            await self._store.settle(claim.id, claim.token, KeyState.FREE)

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits for it has it

    def _sealed(self, held: HeldKey, pieces: list[bytes]) -> list[str]:
        purpose = _purpose(held.secret)
        return [self._sealer.seal(purpose, held.project, piece) for piece in pieces]

    def _opened(self, project: str, secret: str, parts: Sequence[str]) -> list[bytes]:
        return [self._sealer.open(_purpose(secret), project, part) for part in parts]


def key_id_of(project: str, secret: str) -> str:
    """Return the id of a project's key, which does not tell the key."""
    return blake2b(f"{project}\0{secret}".encode(), digest_size=32).hexdigest()


def _purpose(secret: str) -> str:
    return f"answer for the idempotency key {secret}"


class Recording:
    """An answer that is kept while it streams. `add` takes what was sent; `end` must be called."""

    def __init__(self, keys: IdempotencyKeys, held: HeldKey, head: AnswerHead) -> None:
        self._keys = keys
        self._held = held
        self._head = head
        self._unkept: list[bytes] = []
        self._position = 0  # of the next part
        self._size = 0  # bytes of all that was added
        self._over = False  # nothing is kept any more
        self._ended = asyncio.Event()
        self._flusher = asyncio.create_task(self._keep_flushing(), name="idempotency flush")

    def add(self, chunk: bytes) -> None:
        """Take what comes next."""
        self._size += len(chunk)
        if self._over:
            return
        if self._size > self._keys.max_answer_bytes:
            self._over = True
            self._unkept.clear()
            self._keys.settle(self._held, KeyState.TOO_LONG)
        else:
            self._unkept.append(chunk)

    async def end(self, *, whole: bool) -> None:
        """Keep what is left; an answer that is not whole is not given again. Raises nothing."""
        # Not cancelled: a write that is under way would come behind the last one.
        self._ended.set()
        await self._flusher
        if self._over:
            return
        if not whole:
            self._keys.settle(self._held, KeyState.CUT)
            return
        try:
            await self._keep(KeyState.ANSWERED)
        except StoreError as problem:
            logger.warning("the answer for an idempotency key cannot be kept now: %s", problem)
            self._keys.soon(self._held, lambda: self._keep(KeyState.ANSWERED))

    async def _keep_flushing(self) -> None:
        while not self._ended.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS):
                    await self._ended.wait()
            if self._unkept and not self._ended.is_set():
                try:
                    await self._keep(KeyState.RUNNING)
                except StoreError as problem:
                    logger.warning("the answer for an idempotency key cannot be kept now: %s", problem)

    async def _keep(self, state: KeyState) -> None:
        count = len(self._unkept)
        pieces = in_pieces(b"".join(self._unkept[:count]))
        if not await self._keys.keep(self._held, self._head, self._position, pieces, state):
            self._over = True  # another worker has the key
            return
        self._position += len(pieces)
        del self._unkept[:count]


def in_pieces(content: bytes) -> list[bytes]:
    """Divide an answer into parts that can be sealed."""
    return [content[start : start + PIECE_BYTES] for start in range(0, len(content), PIECE_BYTES)]
