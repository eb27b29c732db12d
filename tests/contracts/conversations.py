"""What every store of conversations does."""

import asyncio
from collections.abc import Sequence

import pytest

from responses_app.protocol.errors import JsonObject
from responses_app.stores.stores import BaseConversationStore, ConversationEntry, ConversationRecord
from tests.contracts.store import IDS_NOBODY_MADE, UNTAMED, new_id

PROJECT = "default"
CREATED_AT = 1_796_000_000


def said(text: str, item_id: str = "") -> JsonObject:
    """Return a message's item."""
    return {
        "type": "message",
        "id": item_id or new_id("msg"),
        "role": "user",
        "status": "completed",
        "content": [{"type": "input_text", "text": text}],
    }


async def created(
    store: BaseConversationStore, *texts: str, project: str = PROJECT, metadata: dict[str, str] | None = None
) -> ConversationRecord:
    """Keep a new conversation with these messages."""
    record = ConversationRecord(id=new_id("conv"), created_at=CREATED_AT, metadata=metadata or {})
    await store.create(project, record, [said(text) for text in texts])
    return record


async def appended(store: BaseConversationStore, conversation_id: str, *items: JsonObject) -> list[ConversationEntry]:
    """Add items to a conversation that exists."""
    entries = await store.append(PROJECT, conversation_id, items)
    assert entries is not None
    return list(entries)


async def listed(
    store: BaseConversationStore,
    conversation_id: str,
    *,
    after: str | None = None,
    descending: bool = False,
    limit: int = 1000,
) -> list[str]:
    """Return what is said in a conversation."""
    entries = await store.entries(PROJECT, conversation_id, after=after, descending=descending, limit=limit)
    assert entries is not None
    return texts(entries)


def texts(entries: Sequence[ConversationEntry]) -> list[str]:
    """Return what entries say."""
    return [entry.item["content"][0]["text"] for entry in entries]  # type: ignore[index]


class ConversationStoreContract:
    """Give a subclass the fixture `conversations`: a started store, closed at the end."""

    async def test_gives_back_what_was_created(self, conversations: BaseConversationStore) -> None:
        record = ConversationRecord(
            id=new_id("conv"),
            created_at=CREATED_AT,
            metadata={"b": UNTAMED, "a": ""},
            title="A title, 漢字",
            status="open",
        )
        await conversations.create(PROJECT, record, [])
        assert await conversations.get(PROJECT, record.id) == record
        assert await conversations.entries_since(PROJECT, record.id, 0) == []

    async def test_items_stand_in_the_order_they_came(self, conversations: BaseConversationStore) -> None:
        record = await created(conversations, "1", "2")
        added = await appended(conversations, record.id, said("3"), said("4"))
        assert texts(added) == ["3", "4"]
        entries = await conversations.entries_since(PROJECT, record.id, 0)
        assert texts(entries) == ["1", "2", "3", "4"]
        assert [entry.position for entry in entries] == [1, 2, 3, 4]
        assert [entry.created_at for entry in entries[:2]] == [CREATED_AT] * 2
        assert list(entries[2:]) == added
        assert texts(await conversations.entries_since(PROJECT, record.id, 3)) == ["4"]
        assert await conversations.entries_since(PROJECT, record.id, 4) == []

    async def test_items_come_back_as_they_were(self, conversations: BaseConversationStore) -> None:
        record = await created(conversations)
        item = {**said(UNTAMED), "z": [1.0, None, {}], "a": {UNTAMED: 2**100}}
        await appended(conversations, record.id, item)
        found = await conversations.entry(PROJECT, record.id, str(item["id"]))
        assert found is not None
        assert found.item == item

    async def test_pages(self, conversations: BaseConversationStore) -> None:
        record = await created(conversations, *"abcde")
        ids = [str(entry.item["id"]) for entry in await conversations.entries_since(PROJECT, record.id, 0)]
        assert await listed(conversations, record.id, limit=2) == ["a", "b"]
        assert await listed(conversations, record.id, limit=2, after=ids[1]) == ["c", "d"]
        assert await listed(conversations, record.id, limit=2, after=ids[3]) == ["e"]
        assert await listed(conversations, record.id, after=ids[4]) == []
        assert await listed(conversations, record.id, limit=2, descending=True) == ["e", "d"]
        assert await listed(conversations, record.id, descending=True, after=ids[2]) == ["b", "a"]
        assert await listed(conversations, record.id, descending=True, after=ids[0]) == []

    @pytest.mark.parametrize("unknown", IDS_NOBODY_MADE, ids=lambda unknown: ascii(unknown)[:20])
    async def test_knows_nothing_of_ids_it_never_saw(self, conversations: BaseConversationStore, unknown: str) -> None:
        record = await created(conversations, "1")
        await nothing_is_known(conversations, PROJECT, unknown, "msg_1")
        assert await conversations.entry(PROJECT, record.id, unknown) is None
        assert not await conversations.remove(PROJECT, record.id, unknown)
        page = conversations.entries(PROJECT, record.id, after=unknown, descending=False, limit=1)
        assert await page is None
        assert await listed(conversations, record.id) == ["1"]

    async def test_another_project_sees_and_changes_nothing(self, conversations: BaseConversationStore) -> None:
        record = await created(conversations, "1")
        item_id = str((await conversations.entries_since(PROJECT, record.id, 0))[0].item["id"])
        await nothing_is_known(conversations, "another", record.id, item_id)
        assert await conversations.get(PROJECT, record.id) == record
        assert await listed(conversations, record.id) == ["1"]

    async def test_changes(self, conversations: BaseConversationStore) -> None:
        record = await created(conversations, metadata={"a": "1"})
        changed = await conversations.update(PROJECT, record.id, {"metadata": {"b": "2"}, "title": "New"})
        assert changed == await conversations.get(PROJECT, record.id)
        assert changed is not None
        assert (changed.metadata, changed.title, changed.status) == ({"b": "2"}, "New", "")
        again = await conversations.update(PROJECT, record.id, {"status": "closed", "title": ""})
        assert again is not None
        assert (again.metadata, again.title, again.status) == ({"b": "2"}, "", "closed")
        assert again.version == record.version, "what is said did not change"

    async def test_deleted_it_is_gone_with_its_items(self, conversations: BaseConversationStore) -> None:
        record = await created(conversations, "1")
        item_id = str((await conversations.entries_since(PROJECT, record.id, 0))[0].item["id"])
        other = await created(conversations, "2")
        assert await conversations.delete(PROJECT, record.id)
        await nothing_is_known(conversations, PROJECT, record.id, item_id)
        assert await listed(conversations, other.id) == ["2"]

    async def test_a_removed_item_is_gone_alone(self, conversations: BaseConversationStore) -> None:
        record = await created(conversations, *"abc")
        ids = [str(entry.item["id"]) for entry in await conversations.entries_since(PROJECT, record.id, 0)]
        assert await conversations.remove(PROJECT, record.id, ids[1])
        assert not await conversations.remove(PROJECT, record.id, ids[1])
        assert await conversations.entry(PROJECT, record.id, ids[1]) is None
        page = conversations.entries(PROJECT, record.id, after=ids[1], descending=False, limit=1)
        assert await page is None
        added = await appended(conversations, record.id, said("d"))
        assert added[0].position == 4, "a position is never given twice"
        assert await listed(conversations, record.id) == ["a", "c", "d"]

    async def test_every_change_of_the_items_is_a_version(self, conversations: BaseConversationStore) -> None:
        record = await created(conversations, "1")
        entries = await appended(conversations, record.id, said("2"))
        await conversations.remove(PROJECT, record.id, str(entries[0].item["id"]))
        await appended(conversations, record.id)
        found = await conversations.get(PROJECT, record.id)
        assert found is not None
        assert (record.version, found.version) == (0, 2)

    async def test_an_id_that_is_there_already_gets_another(self, conversations: BaseConversationStore) -> None:
        record = await created(conversations)
        first = said("1")
        both = await appended(conversations, record.id, first, {**first})
        again = await appended(conversations, record.id, first, {"type": "reasoning", "id": first["id"]})
        ids = [str(entry.item["id"]) for entry in (*both, *again)]
        assert ids[0] == first["id"]
        assert len(set(ids)) == 4
        assert all(item_id.startswith("msg_") for item_id in ids[:3])
        assert ids[3].startswith("rs_")
        for entry in (*both, *again):
            assert await conversations.entry(PROJECT, record.id, str(entry.item["id"])) == entry

    async def test_an_id_belongs_to_one_conversation_only(self, conversations: BaseConversationStore) -> None:
        one, other = await created(conversations), await created(conversations)
        item = said("1")
        for record in (one, other):
            assert (await appended(conversations, record.id, item))[0].item == item
        assert await conversations.remove(PROJECT, one.id, str(item["id"]))
        assert await listed(conversations, other.id) == ["1"]

    async def test_many_items_at_once(self, conversations: BaseConversationStore) -> None:
        record = await created(conversations)
        items = [said(str(number)) for number in range(1200)]
        await appended(conversations, record.id, *items)
        again = await appended(conversations, record.id, *items)
        assert len({entry.item["id"] for entry in again} | {item["id"] for item in items}) == 2400
        assert await listed(conversations, record.id, limit=3000) == [str(number) for number in range(1200)] * 2

    async def test_many_at_once_stay_whole_and_in_order(self, conversations: BaseConversationStore) -> None:
        record = await created(conversations)
        answers = await asyncio.gather(
            *(
                appended(conversations, record.id, *(said(f"{number}.{part}") for part in range(3)))
                for number in range(50)
            )
        )
        for number, entries in enumerate(answers):
            assert texts(entries) == [f"{number}.{part}" for part in range(3)]
            assert entries[2].position - entries[0].position == 2
        assert sorted(entry.position for entries in answers for entry in entries) == list(range(1, 151))

    async def test_closing_twice(self, conversations: BaseConversationStore) -> None:
        await created(conversations)
        await conversations.aclose()
        await conversations.aclose()


async def nothing_is_known(store: BaseConversationStore, project: str, conversation_id: str, item_id: str) -> None:
    """Ask for a conversation that is not there in every way."""
    assert await store.get(project, conversation_id) is None
    assert await store.update(project, conversation_id, {"title": "x"}) is None
    assert await store.append(project, conversation_id, [said("x")]) is None
    assert await store.entries(project, conversation_id, after=None, descending=False, limit=1) is None
    assert await store.entries_since(project, conversation_id, 0) == []
    assert await store.entry(project, conversation_id, item_id) is None
    assert not await store.remove(project, conversation_id, item_id)
    assert not await store.delete(project, conversation_id)
