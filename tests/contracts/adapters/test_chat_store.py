"""Stored chat completions on SQLite and on PostgreSQL."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from responses_app.stores.base import RetentionSettings
from responses_app.stores.database.responses.chats import DatabaseChatStore
from tests.contracts.adapters.stores import OnBothCase
from tests.contracts.chats import ChatsContract, OpenChats, choices, name, query
from tests.contracts.store import new_id
from tests.contracts.store_life import NOW, OpenStore


class TestInDatabases(OnBothCase, ChatsContract):
    @pytest.fixture
    async def open_chats(self, open_store: OpenStore, alias: str) -> AsyncIterator[OpenChats]:
        opened: list[DatabaseChatStore] = []

        async def open_one(**options: Any) -> tuple[Any, DatabaseChatStore]:
            limits = options.get("settings", RetentionSettings())
            clock = {"now": options["now"]} if "now" in options else {}
            chats = DatabaseChatStore(using=alias, settings=limits, **clock)
            opened.append(chats)
            return await open_store(**options), chats

        yield open_one
        for chats in opened:
            await chats.aclose()

    async def test_what_it_was_asked_counts_for_the_bound_of_bytes_and_goes_with_a_purge(
        self, open_chats: OpenChats
    ) -> None:
        responses, chats = await open_chats(
            settings=RetentionSettings(responses_store_max_bytes=20_000), now=lambda: NOW + 10.0
        )
        project = new_id("proj")
        asked = [{"role": "user", "content": "x" * 9_000}]
        saved = [choices(project, at=NOW + at, messages=asked) for at in range(3)]
        for [each] in saved:
            await responses.save(each)
        while (await responses.purge()).more:
            pass
        found = await chats.listed(project, query(), limit=9)
        assert found is not None
        assert [each.responses[0]["id"] for each in found] == [name(saved[1]), name(saved[2])]
        assert await chats.choices(project, name(saved[0])) == []
