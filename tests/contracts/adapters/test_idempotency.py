"""Idempotency keys on SQLite and on PostgreSQL."""

from collections.abc import AsyncIterator

import pytest

from responses_app.stores.base import WorkerState
from responses_app.stores.database.idempotency import DatabaseIdempotencyStore
from tests.contracts.adapters.stores import OnBothCase
from tests.contracts.files import Hands
from tests.contracts.idempotency import ALIVE, IdempotencyContract
from tests.contracts.store_life import OpenStore


class TestInDatabases(OnBothCase, IdempotencyContract):
    @pytest.fixture
    async def keys(self, alias: str, open_store: OpenStore, hands: Hands) -> AsyncIterator[DatabaseIdempotencyStore]:
        await (await open_store()).beat(WorkerState(id=ALIVE, started_at=0.0))
        keys = DatabaseIdempotencyStore(using=alias, now=hands)
        yield keys
        await keys.aclose()
