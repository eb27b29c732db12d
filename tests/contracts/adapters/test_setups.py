"""What a store of named setups does, on SQLite and on PostgreSQL."""

from collections.abc import AsyncIterator

import pytest

from responses_app.kit.errors import StoreError
from responses_app.kit.threads import DatabaseReaders
from responses_app.protocol.errors import JsonObject
from responses_app.stores.database.engines import DatabaseEngines
from responses_app.stores.database.setups import DatabaseSetups
from responses_app.stores.setups import MAX_SETUPS, MAX_TOGETHER, SetupRecord, TooManySetups
from tests.contracts.store import IDS_NOBODY_MADE, UNTAMED, new_id

SETUP: JsonObject = {"model": "m", "instructions": UNTAMED, "tools": [{"type": "function", "name": "f"}]}


def record(name: str, at: int = 5, setup: JsonObject = SETUP) -> SetupRecord:
    """Return a new setup."""
    return SetupRecord(id=new_id("pmpt"), name=name, setup=setup, created_at=at, updated_at=at)


class TestInDatabases:
    @pytest.fixture
    async def setups(self, alias: str) -> AsyncIterator[DatabaseSetups]:
        setups = DatabaseSetups(using=alias)
        yield setups
        await setups.aclose()

    async def test_they_are_kept_replaced_and_forgotten(self, setups: DatabaseSetups) -> None:
        project = new_id("proj")
        first, other = record("Zebra"), record("Äpfel 🍎 %_")
        for each in (first, other):
            assert await setups.put(project, each) == each
        assert await setups.listed(project) == [first, other]
        again = await setups.put(project, record("Zebra", 9, {}))
        assert again == SetupRecord(id=first.id, name="Zebra", setup={}, created_at=5, updated_at=9)
        assert await setups.listed(project) == [again, other]
        assert await setups.listed("another") == []
        assert not await setups.delete("another", first.id)
        assert await setups.delete(project, first.id)
        assert not await setups.delete(project, first.id)
        assert await setups.listed(project) == [other]

    async def test_a_project_has_as_many_as_it_may_have(self, setups: DatabaseSetups) -> None:
        project = new_id("proj")
        for number in range(MAX_SETUPS):
            last = await setups.put(project, record(str(number), setup={}))
        with pytest.raises(TooManySetups):
            await setups.put(project, record("one more"))
        await setups.put(project, record("0"))
        await setups.put(new_id("proj"), record("one more"))
        assert await setups.delete(project, last.id)
        await setups.put(project, record("one more"))

    async def test_they_are_bounded_together(self, setups: DatabaseSetups) -> None:
        project, half = new_id("proj"), {"instructions": "x" * (MAX_TOGETHER // 2)}
        await setups.put(project, record("one", setup=half))
        await setups.put(project, record("one", setup=half))
        with pytest.raises(TooManySetups):
            await setups.put(project, record("other", setup=half))
        await setups.put(project, record("other", setup={}))

    @pytest.mark.parametrize("name", IDS_NOBODY_MADE)
    async def test_ids_nobody_made(self, setups: DatabaseSetups, name: str) -> None:
        assert not await setups.delete(new_id("proj"), name)


class TestSharedReaders:
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
