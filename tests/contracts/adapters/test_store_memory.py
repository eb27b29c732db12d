"""The store that forgets with the process."""

from typing import Any

import pytest

from tests.contracts.store import StoreContract, Turn, exchange, sampled_text
from tests.contracts.store_claims import ClaimsContract
from tests.contracts.store_life import LifeContract, OpenStore
from tests.contracts.store_logs import LogsContract
from tests.contracts.store_names import NamesContract
from tests.contracts.store_parents import ParentContract
from tests.kit.memory_stores import MemoryResponseStore


class TestMemoryResponseStore(StoreContract, LifeContract, ParentContract, ClaimsContract, LogsContract, NamesContract):
    @pytest.fixture
    def store(self) -> MemoryResponseStore:
        return MemoryResponseStore()

    @pytest.fixture
    def open_store(self) -> OpenStore:
        async def open_one(**options: Any) -> MemoryResponseStore:
            return MemoryResponseStore(**options)

        return open_one


async def test_the_oldest_go_first() -> None:
    store = MemoryResponseStore(max_entries=2)
    item = sampled_text("Answer.")
    turns = [Turn("project") for _ in range(3)]
    for turn in turns:
        await store.save(turn.saying(*exchange(1), sampled=[item] if turn is turns[0] else []))
    known = [await store.chain("project", turn.response_id) is not None for turn in turns]
    assert known == [False, True, True]
    assert await store.sampled_items("project", [item.id]) == {}
