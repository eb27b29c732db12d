"""Named setups on SQLite and on PostgreSQL."""

from collections.abc import AsyncIterator

import pytest

from responses_app.stores.base import StoreError
from responses_app.stores.database.engines import DatabaseEngines
from responses_app.stores.database.setups import DatabaseSetups
from responses_app.stores.database.threads import DatabaseReaders
from tests.contracts.adapters.stores import OnBothCase
from tests.contracts.setups import SetupsContract


class TestInDatabases(OnBothCase, SetupsContract):
    @pytest.fixture
    async def setups(self, alias: str) -> AsyncIterator[DatabaseSetups]:
        setups = DatabaseSetups(using=alias)
        yield setups
        await setups.aclose()


class TestSharedReaders(OnBothCase):
    """Stores that are asked seldom share threads, and so connections."""

    async def test_the_last_store_that_closes_ends_them(self, alias: str) -> None:
        shared = DatabaseReaders(alias)
        one, other = DatabaseSetups(shared=shared), DatabaseEngines(shared=shared)
        try:
            assert await one.listed("nobody") == []
        finally:
            await one.aclose()
            await one.aclose()  # twice by one store is once
        assert await other.numbers() == {}
        await other.aclose()
        with pytest.raises(StoreError, match="closed"):
            await other.numbers()
