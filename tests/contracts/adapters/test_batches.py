"""Batches on SQLite and on PostgreSQL."""

from collections.abc import AsyncIterator

import pytest

from responses_app.protocol.files.batches import BatchSettings
from responses_app.stores.database.batches.store import DatabaseBatches
from tests.contracts.adapters.stores import OnBothCase
from tests.contracts.batches import MAX_OPEN, BatchesContract


class TestInDatabases(OnBothCase, BatchesContract):
    @pytest.fixture
    async def batches(self, alias: str) -> AsyncIterator[DatabaseBatches]:
        batches = DatabaseBatches(using=alias, settings=BatchSettings(batches_max_open=MAX_OPEN))
        yield batches
        await batches.aclose()
