"""Pictures and claims of approved calls: the contracts in memory and in databases, and when they go."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from responses_app.models import ApprovalClaim
from responses_app.models.pictures import Picture, PictureUse
from responses_app.stores.approvals import KEPT, ApprovalStore
from responses_app.stores.base import RetentionSettings
from responses_app.stores.database.pictures import UNACCEPTED, DatabasePictureStore, purge_unaccepted
from responses_app.stores.database.responses.removal import purge
from responses_app.stores.database.responses.store import DatabaseResponseStore
from responses_app.stores.database.transfer import erasure
from responses_app.stores.database.transfer.erasure import Subject
from tests.contracts.adapters.stores import rows, within
from tests.contracts.approvals import ApprovalsContract
from tests.contracts.files import Hands
from tests.contracts.pictures import BLUE, BOTH, PROJECT, RED, PictureStoreContract
from tests.contracts.store import Turn, exchange, new_id
from tests.kit.memory_pictures import MemoryPictureStore

Counts = Callable[[], Any]


class TestInMemory(PictureStoreContract):
    @pytest.fixture
    def pictures(self) -> MemoryPictureStore:
        return MemoryPictureStore()


class TestInDatabases(PictureStoreContract):
    @pytest.fixture
    async def pictures(self, alias: str) -> AsyncIterator[DatabasePictureStore]:
        self.now = Hands()
        store = DatabasePictureStore(using=alias, now=self.now)
        yield store
        await store.aclose()
        await asyncio.to_thread(within, alias, lambda _: [m.objects.using(alias).all().delete() for m in _MODELS])

    @pytest.fixture
    def counts(self, alias: str) -> Counts:
        """Count pictures and their uses."""

        def count(_: object) -> tuple[int, int]:
            return Picture.objects.using(alias).count(), PictureUse.objects.using(alias).count()

        return lambda: asyncio.to_thread(within, alias, count)

    async def test_they_go_with_the_last_response_that_shows_them(
        self, pictures: DatabasePictureStore, store: DatabaseResponseStore, counts: Counts
    ) -> None:
        first, other = (Turn(PROJECT).saying(*exchange(number)) for number in range(2))
        for stored, shown in ((first, [RED, BLUE]), (other, [RED])):
            await pictures.keep(PROJECT, stored.response["id"], shown)
            await store.save(stored)
        assert await counts() == (2, 3)
        await store.delete(PROJECT, first.response["id"])
        assert await pictures.known(PROJECT, BOTH) == {RED.digest}
        await store.delete(PROJECT, other.response["id"])
        assert await counts() == (0, 0)

    async def test_they_stay_for_what_continues_their_response(
        self, pictures: DatabasePictureStore, store: DatabaseResponseStore, counts: Counts
    ) -> None:
        first = Turn(PROJECT).saying(*exchange(1))
        await pictures.keep(PROJECT, first.response["id"], [RED])
        await store.save(first)
        second = Turn(PROJECT).after(first).saying(*exchange(2))
        await store.save(second)
        await store.delete(PROJECT, first.response["id"])
        assert await pictures.read(PROJECT, RED.digest) == RED, "the chain of the second one has its part"
        await store.delete(PROJECT, second.response["id"])
        assert await counts() == (0, 0)

    async def test_a_failed_response_has_its_own_too(
        self, pictures: DatabasePictureStore, store: DatabaseResponseStore, counts: Counts, alias: str
    ) -> None:
        failed = Turn(PROJECT).failed()
        await pictures.keep(PROJECT, failed.response["id"], [RED])
        await store.save(failed)
        limits = RetentionSettings(responses_store_ttl=1.0)
        await asyncio.to_thread(within, alias, lambda db: purge(db.alias, limits, now=4e9))
        assert await counts() == (0, 0)

    async def test_what_was_never_accepted_goes_after_a_while(
        self, pictures: DatabasePictureStore, counts: Counts
    ) -> None:
        await pictures.keep(PROJECT, new_id("resp"), [RED])
        assert await pictures.purge() == 0
        self.now.time += UNACCEPTED.total_seconds() + 1
        await pictures.use(PROJECT, new_id("resp"), [RED.digest])
        assert await pictures.purge() == 1
        assert await counts() == (1, 1)

    async def test_a_project_is_erased_and_told_with_its_pictures(
        self, pictures: DatabasePictureStore, store: DatabaseResponseStore, counts: Counts, alias: str
    ) -> None:
        stored = Turn("gone").saying(*exchange(1))
        await pictures.keep("gone", stored.response["id"], [RED])
        await store.save(stored)

        def erase(_: object) -> tuple[list[str], int, int]:
            told = [line for line in erasure.lines(Subject(project="gone"), using=alias) if RED.digest in line]
            before = erasure.count(Subject(project="gone"), using=alias)["pictures"]
            list(erasure.erase(Subject(project="gone"), using=alias))
            return told, before, sum(erasure.count(Subject(project="gone"), using=alias).values())

        told, before, after = await asyncio.to_thread(within, alias, erase)
        assert (len(told), before, after) == (1, 1, 0)
        assert await counts() == (0, 0)

    async def test_what_is_needed_again_while_it_goes_is_there(
        self, pictures: DatabasePictureStore, counts: Counts, alias: str
    ) -> None:
        for number in range(20):
            await pictures.keep(PROJECT, new_id("resp"), [RED])
            late = self.now.time + UNACCEPTED.total_seconds() + 1 + number
            owner = new_id("resp")
            self.now.time = late
            await asyncio.gather(
                asyncio.to_thread(within, alias, lambda db, late=late: purge_unaccepted(db, late)),
                pictures.keep(PROJECT, owner, [RED]),
            )
            assert await pictures.read(PROJECT, RED.digest) == RED
            self.now.time = late + UNACCEPTED.total_seconds() + 1


_MODELS = (PictureUse, Picture)


class TestClaimsInDatabases(ApprovalsContract):
    @pytest.fixture
    async def claims(self, alias: str, hands: Hands) -> AsyncIterator[ApprovalStore]:
        store = ApprovalStore(using=alias, now=hands)
        yield store
        await store.aclose()
        await asyncio.to_thread(within, alias, lambda db: ApprovalClaim.objects.using(alias).all().delete())

    async def test_old_ones_go(self, claims: ApprovalStore, alias: str, hands: Hands) -> None:
        await claims.claim("p", "mcpr_1", "resp_1")
        hands.time += KEPT.total_seconds() + 1
        await claims.claim("p", "mcpr_2", "resp_2")
        left = await asyncio.to_thread(rows, alias, ApprovalClaim)
        assert [row.response_id for row in left] == ["resp_2"]
