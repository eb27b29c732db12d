"""Kept chats in memory, on SQLite and on PostgreSQL."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from responses_app.stores.base import RetentionSettings
from responses_app.stores.database.responses.kept_chats import DatabaseKeptChats
from tests.contracts.adapters.stores import OnBothCase
from tests.contracts.kept_chats import KeptChatsContract, OpenKeptChats
from tests.contracts.store_life import OpenStore
from tests.kit.memory_kept_chats import MemoryKeptChats
from tests.kit.memory_stores import MemoryResponseStore


class TestInMemory(KeptChatsContract):
    @pytest.fixture
    def open_chats(self) -> OpenKeptChats:
        async def open_one(**options: Any) -> tuple[MemoryResponseStore, MemoryKeptChats]:
            responses = MemoryResponseStore(**options)
            return responses, MemoryKeptChats(responses)

        return open_one


class TestInDatabases(OnBothCase, KeptChatsContract):
    @pytest.fixture
    async def open_chats(self, open_store: OpenStore, alias: str) -> AsyncIterator[OpenKeptChats]:
        opened: list[DatabaseKeptChats] = []

        async def open_one(**options: Any) -> tuple[Any, DatabaseKeptChats]:
            limits = options.get("settings", RetentionSettings())
            clock = {"now": options["now"]} if "now" in options else {}
            chats = DatabaseKeptChats(using=alias, settings=limits, **clock)
            opened.append(chats)
            return await open_store(**options), chats

        yield open_one
        for chats in opened:
            await chats.aclose()
