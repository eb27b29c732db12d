"""What a store of named setups does, on SQLite and on PostgreSQL."""

from collections.abc import AsyncIterator

import pytest

from responses_app.extensions.playground.setups import (
    MAX_SETUPS,
    MAX_TOGETHER,
    PlaygroundPrompt,
    Setups,
    TooManySetups,
    shown,
)
from responses_app.kit.errors import StoreError
from responses_app.kit.threads import DatabaseReaders
from responses_app.protocol.errors import JsonObject
from responses_app.stores.engines import EngineStore
from tests.contracts.store import IDS_NOBODY_MADE, UNTAMED, new_id

SETUP: JsonObject = {"model": "m", "instructions": UNTAMED, "tools": [{"type": "function", "name": "f"}]}


async def put(setups: Setups, project: str, name: str, at: int = 5, setup: JsonObject = SETUP) -> PlaygroundPrompt:
    """Keep a setup; return it as clients see it."""
    return shown(await setups.put(project, name, setup, new_id=new_id("pmpt"), at=at))


async def listed(setups: Setups, project: str) -> list[PlaygroundPrompt]:
    """Return all setups of a project as clients see them."""
    return [shown(row) for row in await setups.all_of(project)]


class TestInDatabases:
    @pytest.fixture
    async def setups(self, alias: str) -> AsyncIterator[Setups]:
        setups = Setups(using=alias)
        yield setups
        await setups.aclose()

    async def test_they_are_kept_replaced_and_forgotten(self, setups: Setups) -> None:
        project = new_id("proj")
        first, other = await put(setups, project, "Zebra"), await put(setups, project, "Äpfel 🍎 %_")
        assert (first["name"], first["setup"], first["created_at"], first["updated_at"]) == ("Zebra", SETUP, 5, 5)
        assert await listed(setups, project) == [first, other]
        again = await put(setups, project, "Zebra", 9, {})
        assert again == {**first, "setup": {}, "updated_at": 9}
        assert await listed(setups, project) == [again, other]
        assert await listed(setups, "another") == []
        assert not await setups.delete("another", first["id"])
        assert await setups.delete(project, first["id"])
        assert not await setups.delete(project, first["id"])
        assert await listed(setups, project) == [other]

    async def test_a_project_has_as_many_as_it_may_have(self, setups: Setups) -> None:
        project = new_id("proj")
        for number in range(MAX_SETUPS):
            last = await put(setups, project, str(number), setup={})
        with pytest.raises(TooManySetups):
            await put(setups, project, "one more")
        await put(setups, project, "0")
        await put(setups, new_id("proj"), "one more")
        assert await setups.delete(project, last["id"])
        await put(setups, project, "one more")

    async def test_they_are_bounded_together(self, setups: Setups) -> None:
        project, half = new_id("proj"), {"instructions": "x" * (MAX_TOGETHER // 2)}
        await put(setups, project, "one", setup=half)
        await put(setups, project, "one", setup=half)
        with pytest.raises(TooManySetups):
            await put(setups, project, "other", setup=half)
        await put(setups, project, "other", setup={})

    @pytest.mark.parametrize("name", IDS_NOBODY_MADE)
    async def test_ids_nobody_made(self, setups: Setups, name: str) -> None:
        assert not await setups.delete(new_id("proj"), name)


class TestSharedReaders:
    """Stores that are asked seldom share threads, and so connections."""

    async def test_the_last_store_that_closes_ends_them(self, alias: str) -> None:
        shared = DatabaseReaders(alias)
        one, other = Setups(shared=shared), EngineStore(shared=shared)
        try:
            assert await one.all_of("nobody") == []
        finally:
            await one.aclose()
            await one.aclose()  # twice by one store is once
        assert await other.numbers() == {}
        await other.aclose()
        with pytest.raises(StoreError, match="closed"):
            await other.numbers()
