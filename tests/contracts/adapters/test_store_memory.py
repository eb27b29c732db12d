"""The store that forgets with the process."""

from typing import Any

import pytest

from tests.contracts.store import StoreContract
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
