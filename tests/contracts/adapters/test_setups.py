"""Named setups in memory, on SQLite and on PostgreSQL."""

from collections.abc import AsyncIterator

import pytest

from responses_app.stores.database.setups import DatabaseSetups
from tests.contracts.adapters.stores import OnBothCase
from tests.contracts.setups import SetupsContract
from tests.kit.memory_setups import MemorySetups


class TestInMemory(SetupsContract):
    @pytest.fixture
    def setups(self) -> MemorySetups:
        return MemorySetups()


class TestInDatabases(OnBothCase, SetupsContract):
    @pytest.fixture
    async def setups(self, alias: str) -> AsyncIterator[DatabaseSetups]:
        setups = DatabaseSetups(using=alias)
        yield setups
        await setups.aclose()
