"""What the dashboard says is stored, on SQLite and on PostgreSQL."""

import asyncio

import pytest

from responses_app.extensions.console.admin import panels
from responses_app.resources.conversations.model import Conversation
from tests.contracts.adapters.stores import within


class TestStores:
    async def test_what_is_stored_is_counted(self, alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def made(_: object) -> None:
            for number in range(5):
                Conversation.objects.using(alias).create(pk=f"conv_{number}", created_at="2026-01-01T00:00:00Z")

        await asyncio.to_thread(within, alias, made)
        kept, whole = await asyncio.to_thread(within, alias, panels.stores)
        assert [each.name for each in kept] == list(panels.STORES)
        assert whole.endswith("iB")
        conversations = next(each for each in kept if each.name == "conversations")
        if conversations.bytes:  # PostgreSQL estimates
            assert conversations.rows == "few" or conversations.rows.startswith("about")
            return
        assert conversations.rows == "5"
        monkeypatch.setattr(panels, "MAX_ROWS", 3)
        kept, _ = await asyncio.to_thread(within, alias, panels.stores)
        assert "more than 3" in {each.rows for each in kept}
