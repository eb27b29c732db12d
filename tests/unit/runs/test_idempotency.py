"""Claims of idempotency keys that come to nothing, and answers while the store is away."""

import asyncio
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

from responses_app.kit.errors import StoreError
from responses_app.protocol.idempotency import AnswerHead, IdempotencyRecord, IdempotencySettings, KeyClaim, KeyState
from responses_app.protocol.sealing import SealBroken, Sealer
from responses_app.runs import idempotency
from responses_app.runs.idempotency import EPOCHS_APART, HeldKey, IdempotencyKeys, Recording
from tests.kit.waiting import eventually
from tests.unit.runs.readers import refused

HEAD = AnswerHead(status=200, headers={}, streams=True)


class OneKey:
    """Has one key, that of the last claim; `away` fails calls, `hangs` holds a claim, as a slow database does."""

    def __init__(self) -> None:
        self.state: KeyState | None = None
        self.token = ""
        self.asked = False  # for a claim
        self.held: frozenset[str] = frozenset()  # as the last claim told it
        self.kept: dict[int, str] = {}
        self.away = False
        self.hangs: asyncio.Event | None = None
        self.used = (0, 0)

    async def claim(self, claim: KeyClaim, *, dead_before: float, held: Collection[str]) -> IdempotencyRecord:
        self.asked, self.held = True, frozenset(held)
        return await asyncio.shield(asyncio.ensure_future(self._claim(claim)))  # a thread is not cancelled

    async def _claim(self, claim: KeyClaim) -> IdempotencyRecord:
        if self.hangs is not None:
            await self.hangs.wait()
        self.state, self.token = KeyState.RUNNING, claim.token
        self._check()
        return IdempotencyRecord(
            fingerprint="f",
            object_id=claim.object_id,
            state=self.state,
            epoch=1,
            token=claim.token,
            is_orphan=False,
        )

    async def look(self, key_id: str, *, dead_before: float) -> None:
        """It is not there."""

    async def keep(
        self, key_id: str, token: str, *, head: AnswerHead, parts: Mapping[int, str], state: KeyState
    ) -> bool:
        self._check()
        self.kept.update(parts)
        self.state = state
        return token == self.token

    async def settle(self, key_id: str, token: str, state: KeyState) -> None:
        self._check()
        if token == self.token:
            self.state = state

    async def forget(self, key_id: str, token: str) -> None:
        self._check()
        self.state = None

    async def parts(self, key_id: str, start: int) -> Sequence[str]:
        return [self.kept[position] for position in sorted(self.kept) if position >= start]

    async def usage(self, project: str) -> tuple[int, int]:
        return self.used

    def _check(self) -> None:
        if self.away:
            raise StoreError("away")


@pytest.fixture
def store() -> Any:
    return OneKey()


@pytest.fixture
def keys(store: OneKey, monkeypatch: pytest.MonkeyPatch) -> IdempotencyKeys:
    for name in ("FLUSH_SECONDS", "RETRY_SECONDS"):
        monkeypatch.setattr(idempotency, name, 0.01)
    settings = IdempotencySettings(idempotency_max_keys=5, idempotency_max_answer_bytes=1024)
    sealer = Sealer(["a secret of these tests"], random_bytes=os.urandom)
    return IdempotencyKeys(store, settings, sealer=sealer, worker="w", dead_before=lambda: 0.0)


async def held_by(keys: IdempotencyKeys) -> HeldKey:
    held, _ = await keys.claim("p", "key", "f", object_id="")
    assert held is not None
    return held


async def test_a_claim_whose_client_leaves_is_free_again(keys: IdempotencyKeys, store: OneKey) -> None:
    store.hangs = asyncio.Event()
    claiming = asyncio.create_task(held_by(keys))
    await eventually(lambda: store.asked)
    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    await asyncio.sleep(0)
    store.hangs.set()
    await keys.aclose()
    assert store.state is None


async def test_a_claim_that_is_not_answered_is_free_once_the_store_is_back(
    keys: IdempotencyKeys, store: OneKey
) -> None:
    store.away = True
    with pytest.raises(StoreError):
        await held_by(keys)
    assert store.state is KeyState.RUNNING
    await asyncio.sleep(0.03)
    store.away = False
    await keys.aclose()
    assert store.state is None


async def test_a_claim_that_is_written_late_is_let_go_too(keys: IdempotencyKeys, store: OneKey) -> None:
    store.hangs = asyncio.Event()
    store.away = True
    claiming = asyncio.create_task(held_by(keys))
    await eventually(lambda: store.asked)
    store.hangs.set()
    with pytest.raises(StoreError):
        await claiming
    store.hangs, store.state, store.token = asyncio.Event(), None, ""  # not there yet, as it seems
    await asyncio.sleep(0.03)
    store.away = False
    store.hangs.set()
    await keys.aclose()
    assert store.state is None


async def test_claims_that_fail_again_and_again_leave_the_key_free(keys: IdempotencyKeys, store: OneKey) -> None:
    for _ in range(3):
        store.away = True
        with pytest.raises(StoreError):
            await held_by(keys)
        store.away = False
        await eventually(lambda: store.state is None)
    await held_by(keys)
    await keys.aclose()


async def test_an_answer_is_kept_once_the_store_is_back(keys: IdempotencyKeys, store: OneKey) -> None:
    recording = Recording(keys, await held_by(keys), HEAD)
    recording.add(b"one")
    store.away = True
    await recording.end(whole=True)
    assert store.state is KeyState.RUNNING
    store.away = False
    await keys.aclose()
    assert store.state is KeyState.ANSWERED
    assert await keys.piece("p", "key", 0) == [b"one"]


@pytest.mark.parametrize("unchanged", [True, False])
async def test_a_key_is_free_before_its_error_is_told(keys: IdempotencyKeys, store: OneKey, unchanged: bool) -> None:
    held = await held_by(keys)
    await keys.let_go(held, unchanged=unchanged)
    assert store.state is (None if unchanged else KeyState.FREE)
    held = await held_by(keys)
    store.away = True
    await keys.let_go(held, unchanged=unchanged)
    assert store.state is KeyState.RUNNING
    store.away = False
    await keys.aclose()
    assert store.state is (None if unchanged else KeyState.FREE)


async def test_an_answer_is_kept_as_it_streams_and_opens_for_its_key_alone(
    keys: IdempotencyKeys, store: OneKey
) -> None:
    held = await held_by(keys)
    recording = Recording(keys, held, HEAD)
    recording.add(b"one ")
    await eventually(lambda: bool(store.kept))
    assert store.state is KeyState.RUNNING
    store.away = True
    recording.add(b"two ")
    await asyncio.sleep(0.03)
    store.away = False
    recording.add(b"three")
    await recording.end(whole=True)
    assert store.state is KeyState.ANSWERED
    assert b"".join(await keys.piece("p", "key", 0)) == b"one two three"
    for project, secret in (("p", "another"), ("another", "key")):
        with pytest.raises(SealBroken):
            await keys.piece(project, secret, 0)


@pytest.mark.parametrize(
    ("size", "whole", "state"),
    [(1025, True, KeyState.TOO_LONG), (5, False, KeyState.CUT), (5, True, KeyState.ANSWERED)],
)
async def test_what_is_too_long_or_cut_is_not_given_again_and_no_key_is_held_for_it(
    keys: IdempotencyKeys, store: OneKey, size: int, whole: bool, state: KeyState
) -> None:
    recording = Recording(keys, await held_by(keys), HEAD)
    recording.add(b"x" * size)
    await recording.end(whole=whole)
    await keys.aclose()
    assert store.state is state
    await held_by(keys)
    assert store.held == {store.token}


@pytest.mark.parametrize("used", [(5, 0), (0, IdempotencySettings().idempotency_max_bytes)])
async def test_a_project_that_has_enough_gets_no_more(
    keys: IdempotencyKeys, store: OneKey, used: tuple[int, int]
) -> None:
    store.used = used
    assert ((await refused(held_by(keys))).status, store.state) == (429, None)


async def test_what_was_kept_since_the_last_count_counts(keys: IdempotencyKeys, store: OneKey) -> None:
    store.used = (0, IdempotencySettings().idempotency_max_bytes - 1)
    held = await held_by(keys)
    recording = Recording(keys, held, HEAD)
    recording.add(b"x")
    await recording.end(whole=True)
    assert "IDEMPOTENCY_MAX_BYTES" in (await refused(held_by(keys))).message


def test_a_response_that_is_claimed_anew_has_an_epoch_of_its_own() -> None:
    epochs = []
    for epoch in (1, 2, 3, 2_001):
        held = HeldKey(id="k", project="p", secret="s", token="t", object_id="resp_1", epoch=epoch)
        epochs.append(held.decided.epoch)
    assert epochs == [1, 1 + EPOCHS_APART, 1 + 2 * EPOCHS_APART, 1]
