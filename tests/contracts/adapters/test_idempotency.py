"""What a store of idempotency keys does, on SQLite and on PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator, Collection
from dataclasses import replace

import pytest

from responses_app.protocol.idempotency import AnswerHead, IdempotencyRecord, KeyClaim, KeyState
from responses_app.stores.base import WorkerState
from responses_app.stores.idempotency import IdempotencyStore
from tests.contracts.files import Hands
from tests.contracts.store import new_id, present
from tests.contracts.store_life import OpenStore

ALIVE = "worker_alive"  # that was just seen
DEAD = "worker_dead"  # that nobody has ever seen
AGAIN = 40  # times that each of several claims a key
HEAD = AnswerHead(status=201, headers={"content-type": "application/json"}, streams=False)


class TestInDatabases:
    @pytest.fixture
    async def keys(self, alias: str, open_store: OpenStore, hands: Hands) -> AsyncIterator[IdempotencyStore]:
        await (await open_store()).beat(WorkerState(id=ALIVE, started_at=0.0))
        keys = IdempotencyStore(using=alias, now=hands)
        yield keys
        await keys.aclose()

    async def test_who_comes_first_has_it_and_others_are_told(self, keys: IdempotencyStore) -> None:
        first = claim_of()
        record = await claimed(keys, first)
        assert (record.token, record.epoch, record.is_orphan, record.head) == (first.token, 1, False, None)
        other = replace(first, token="t2", fingerprint="other", object_id="resp_2")
        assert await claimed(keys, other, held=[first.token, "t2"]) == record
        assert await keys.look(first.id, dead_before=1.0) == record
        assert await keys.look(new_id("key"), dead_before=1.0) is None

    async def test_of_many_at_once_one_gets_it(self, keys: IdempotencyStore) -> None:
        claims = [replace(claim, token=f"t{number}") for number, claim in enumerate([claim_of()] * 8)]
        records = await asyncio.gather(*(claimed(keys, each, held=[c.token for c in claims]) for each in claims))
        assert len({record.token for record in records}) == 1

    async def test_claims_come_between_others_that_are_let_go(self, keys: IdempotencyStore) -> None:
        claim = claim_of()

        async def claim_and_let_go(number: int) -> None:
            own = replace(claim, token=f"t{number}")
            for _ in range(AGAIN):
                if (await claimed(keys, own)).token == own.token:
                    await keys.forget(own.id, own.token)

        await asyncio.gather(*map(claim_and_let_go, range(4)))
        assert await keys.look(claim.id, dead_before=1.0) is None

    async def test_that_of_a_dead_worker_is_taken_over_by_the_same_request_alone(self, keys: IdempotencyStore) -> None:
        first = claim_of(worker=DEAD)
        await claimed(keys, first)
        await keys.keep(first.id, first.token, head=HEAD, parts={0: "before"}, state=KeyState.RUNNING)
        strange = replace(first, worker=ALIVE, token="t2", fingerprint="other")
        assert (await claimed(keys, strange)).token == first.token
        found = present(await keys.look(first.id, dead_before=1.0))
        assert found.is_orphan
        heir = replace(first, worker=ALIVE, token="t3", object_id="resp_2")
        record = await claimed(keys, heir)
        assert (record.token, record.epoch, record.is_orphan, record.object_id) == ("t3", 2, False, first.object_id)
        assert not await keys.keep(first.id, first.token, head=HEAD, parts={0: "late"}, state=KeyState.ANSWERED)
        assert await keys.look(first.id, dead_before=1.0) == record
        assert await keys.parts(first.id, 0) == []

    async def test_one_without_a_response_is_cut_where_its_worker_is_dead(self, keys: IdempotencyStore) -> None:
        first = replace(claim_of(worker=DEAD), object_id="")
        await claimed(keys, first)
        for heir in (replace(first, worker=ALIVE, token="t2"), replace(first, worker=ALIVE, token="t3")):
            record = await claimed(keys, heir)
            assert (record.token, record.state, record.is_orphan) == (first.token, KeyState.CUT, False)

    async def test_a_worker_takes_over_its_own_that_it_does_not_hold(self, keys: IdempotencyStore) -> None:
        first = claim_of()
        await claimed(keys, first)
        again = replace(first, token="t2")
        assert (await claimed(keys, again, held=[first.token, "t2"])).token == first.token
        assert (await claimed(keys, again, held=["t2"])).token == "t2"

    async def test_an_answer_is_kept_in_parts(self, keys: IdempotencyStore) -> None:
        claim = claim_of()
        await claimed(keys, claim)
        for _ in range(2):  # an answer of the store's may get lost
            assert await keys.keep(claim.id, claim.token, head=HEAD, parts={0: "one", 1: "two"}, state=KeyState.RUNNING)
        assert await keys.keep(claim.id, claim.token, head=HEAD, parts={2: "three"}, state=KeyState.ANSWERED)
        record = present(await keys.look(claim.id, dead_before=1.0))
        assert (record.state, record.head) == (KeyState.ANSWERED, HEAD)
        # A write of before, which comes late, changes nothing; the last one may be done again.
        assert not await keys.keep(claim.id, claim.token, head=HEAD, parts={0: "late"}, state=KeyState.RUNNING)
        assert await keys.keep(claim.id, claim.token, head=HEAD, parts={2: "three"}, state=KeyState.ANSWERED)
        assert [list(await keys.parts(claim.id, start)) for start in (0, 2, 3)] == [
            ["one", "two", "three"],
            ["three"],
            [],
        ]
        assert await keys.usage(claim.project) == (1, len("onetwothree"))
        later = replace(claim, token="t2")
        assert (await claimed(keys, later)).state is KeyState.ANSWERED

    async def test_a_free_one_is_for_any_request(self, keys: IdempotencyStore) -> None:
        claim = claim_of()
        await claimed(keys, claim)
        await keys.settle(claim.id, "another's", KeyState.CUT)
        await keys.settle(claim.id, claim.token, KeyState.FREE)
        same = replace(claim, token="t2", object_id="resp_2")
        record = await claimed(keys, same)
        assert (record.token, record.epoch, record.object_id, record.is_orphan) == ("t2", 2, claim.object_id, False)
        await keys.rename(claim.id, "t2", "resp_3")
        await keys.settle(claim.id, "t2", KeyState.FREE)
        other = replace(claim, token="t4", fingerprint="other", object_id="resp_4")
        record = await claimed(keys, other)
        assert (record.token, record.fingerprint, record.object_id) == ("t4", "other", "resp_4")
        found = present(await keys.look(claim.id, dead_before=1.0))
        await keys.forget(claim.id, "t3")
        assert await keys.look(claim.id, dead_before=1.0) == found
        await keys.forget(claim.id, "t4")
        assert await keys.look(claim.id, dead_before=1.0) is None

    async def test_what_is_cut_keeps_no_part(self, keys: IdempotencyStore) -> None:
        claim = claim_of()
        await claimed(keys, claim)
        await keys.keep(claim.id, claim.token, head=HEAD, parts={0: "one"}, state=KeyState.RUNNING)
        await keys.settle(claim.id, claim.token, KeyState.CUT)
        assert await keys.parts(claim.id, 0) == []
        assert await keys.usage(claim.project) == (1, 0)
        assert (await claimed(keys, replace(claim, token="t2"))).state is KeyState.CUT

    async def test_they_hold_for_a_day(self, keys: IdempotencyStore, hands: Hands) -> None:
        claim, other = claim_of(), claim_of()
        for each in (claim, other):
            await claimed(keys, each)
            await keys.keep(each.id, each.token, head=HEAD, parts={0: "one"}, state=KeyState.ANSWERED)
        hands.time += 86_399
        assert await keys.look(claim.id, dead_before=1.0) is not None
        hands.time += 1
        assert await keys.look(claim.id, dead_before=1.0) is None
        assert await keys.usage(claim.project) == (0, 0)
        again = replace(claim, token="t2", fingerprint="other")
        assert (await claimed(keys, again)).token == "t2"
        assert await keys.parts(claim.id, 0) == []
        assert await keys.purge() >= 1
        assert await keys.parts(other.id, 0) == []
        assert await keys.look(claim.id, dead_before=1.0) is not None
        assert await keys.purge() == 0


def claim_of(*, worker: str = ALIVE) -> KeyClaim:
    """Return a claim of a new key of a new project."""
    return KeyClaim(
        id=new_id("key"), project=new_id("proj"), fingerprint="f", object_id="resp_1", token=new_id("t"), worker=worker
    )


async def claimed(keys: IdempotencyStore, claim: KeyClaim, *, held: Collection[str] = ()) -> IdempotencyRecord:
    """Claim a key, after a second of which all workers were heard."""
    return await keys.claim(claim, dead_before=1.0, held=held or [claim.token])
