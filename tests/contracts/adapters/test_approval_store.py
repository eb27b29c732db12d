"""Claims of approved calls: the contract in memory, on SQLite and on PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from responses_app.models import ApprovalClaim
from responses_app.stores.database.approvals import KEPT, DatabaseApprovalStore
from tests.contracts.adapters.stores import rows, within
from tests.contracts.approvals import ApprovalsContract
from tests.contracts.files import Hands
from tests.kit.memory_stores import MemoryApprovalStore


class TestInMemory(ApprovalsContract):
    @pytest.fixture
    def claims(self, hands: Hands) -> MemoryApprovalStore:
        return MemoryApprovalStore(now=hands)


class TestInDatabases(ApprovalsContract):
    @pytest.fixture
    async def claims(self, alias: str, hands: Hands) -> AsyncIterator[DatabaseApprovalStore]:
        store = DatabaseApprovalStore(using=alias, now=hands)
        yield store
        await store.aclose()
        await asyncio.to_thread(within, alias, lambda db: ApprovalClaim.objects.using(alias).all().delete())

    async def test_old_ones_go(self, claims: DatabaseApprovalStore, alias: str, hands: Hands) -> None:
        await claims.claim("p", "mcpr_1", "resp_1")
        hands.time += KEPT.total_seconds() + 1
        await claims.claim("p", "mcpr_2", "resp_2")
        left = await asyncio.to_thread(rows, alias, ApprovalClaim)
        assert [row.response_id for row in left] == ["resp_2"]
