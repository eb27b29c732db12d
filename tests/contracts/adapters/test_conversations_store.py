"""Conversations in a database, on SQLite and on PostgreSQL, and what a response appends to one."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import pytest
from django.db import OperationalError, connections

from responses_app.kit.clock import utc
from responses_app.kit.errors import StoreError, UnknownCursor
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.requests.pages import ListQuery
from responses_app.resources.conversations.appending import append_response
from responses_app.resources.conversations.fields import ConversationAppend, ConversationSettings
from responses_app.resources.conversations.model import Conversation, ConversationItem
from responses_app.resources.conversations.store import Conversations, ConversationsFull
from tests.contracts.adapters.stores import rows, within
from tests.contracts.store import IDS_NOBODY_MADE, UNTAMED, new_id, present

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
    store: Conversations, *texts: str, project: str = PROJECT, metadata: dict[str, str] | None = None
) -> Conversation:
    """Keep a new conversation with these messages."""
    row = Conversation(id=new_id("conv"), project=project, created_at=utc(CREATED_AT), metadata=metadata or {})
    await store.create(row, [said(text) for text in texts])
    return row


def values(*rows: Conversation | ConversationItem) -> list[JsonObject]:
    """Return all columns of rows: Django compares only their keys."""
    return [{field.attname: getattr(row, field.attname) for field in row._meta.concrete_fields} for row in rows]


async def appended(store: Conversations, conversation_id: str, *items: JsonObject) -> list[ConversationItem]:
    """Add items to a conversation that exists."""
    entries = present(await store.append(PROJECT, conversation_id, items))
    return list(entries)


async def listed(
    store: Conversations,
    conversation_id: str,
    *,
    after: str | None = None,
    descending: bool = False,
    limit: int = 1000,
) -> list[str]:
    """Return what is said in a conversation."""
    page = ListQuery(after=after, descending=descending, limit=limit)
    return texts(present(await store.items(PROJECT, conversation_id, page))[:limit])


def texts(entries: Sequence[ConversationItem]) -> list[str]:
    """Return what entries say."""
    return [entry.item["content"][0]["text"] for entry in entries]  # type: ignore[index]


Found = TypeVar("Found")

AT = datetime(2026, 11, 21, tzinfo=UTC)


class TestInDatabases:
    @pytest.fixture
    async def conversations(self, alias: str) -> AsyncIterator[Conversations]:
        store = Conversations(using=alias)
        await store.start()
        yield store
        await store.aclose()

    # What a response appends.

    async def test_gives_back_what_was_created(self, conversations: Conversations) -> None:
        record = Conversation(
            id=new_id("conv"),
            project=PROJECT,
            created_at=utc(CREATED_AT),
            metadata={"b": UNTAMED, "a": ""},
            title="A title, 漢字",
            status="open",
        )
        await conversations.create(record, [])
        assert values(present(await conversations.get(PROJECT, record.id))) == values(record)
        assert await conversations.items_since(PROJECT, record.id, 0) == []

    async def test_items_stand_in_the_order_they_came(self, conversations: Conversations) -> None:
        record = await created(conversations, "1", "2")
        added = await appended(conversations, record.id, said("3"), said("4"))
        assert texts(added) == ["3", "4"]
        entries = await conversations.items_since(PROJECT, record.id, 0)
        assert texts(entries) == ["1", "2", "3", "4"]
        assert [entry.position for entry in entries] == [1, 2, 3, 4]
        assert [entry.created_at for entry in entries[:2]] == [utc(CREATED_AT)] * 2
        assert values(*entries[2:]) == values(*added)
        assert texts(await conversations.items_since(PROJECT, record.id, 3)) == ["4"]
        assert await conversations.items_since(PROJECT, record.id, 4) == []

    async def test_items_come_back_as_they_were(self, conversations: Conversations) -> None:
        record = await created(conversations)
        item = {**said(UNTAMED), "z": [1.0, None, {}], "a": {UNTAMED: 2**100}}
        await appended(conversations, record.id, item)
        found = present(await conversations.item(PROJECT, record.id, str(item["id"])))
        assert found.item == item

    async def test_pages(self, conversations: Conversations) -> None:
        record = await created(conversations, *"abcde")
        ids = [str(entry.item["id"]) for entry in await conversations.items_since(PROJECT, record.id, 0)]
        assert await listed(conversations, record.id, limit=2) == ["a", "b"]
        assert await listed(conversations, record.id, limit=2, after=ids[1]) == ["c", "d"]
        assert await listed(conversations, record.id, limit=2, after=ids[3]) == ["e"]
        assert await listed(conversations, record.id, after=ids[4]) == []
        assert await listed(conversations, record.id, limit=2, descending=True) == ["e", "d"]
        assert await listed(conversations, record.id, descending=True, after=ids[2]) == ["b", "a"]
        assert await listed(conversations, record.id, descending=True, after=ids[0]) == []

    @pytest.mark.parametrize("unknown", IDS_NOBODY_MADE, ids=lambda unknown: ascii(unknown)[:20])
    async def test_knows_nothing_of_ids_it_never_saw(self, conversations: Conversations, unknown: str) -> None:
        record = await created(conversations, "1")
        await nothing_is_known(conversations, PROJECT, unknown, "msg_1")
        assert await conversations.item(PROJECT, record.id, unknown) is None
        assert not await conversations.remove_item(PROJECT, record.id, unknown)
        with pytest.raises(UnknownCursor):
            await conversations.items(PROJECT, record.id, ListQuery(after=unknown))
        assert await listed(conversations, record.id) == ["1"]

    async def test_another_project_sees_and_changes_nothing(self, conversations: Conversations) -> None:
        record = await created(conversations, "1")
        item_id = str((await conversations.items_since(PROJECT, record.id, 0))[0].item["id"])
        await nothing_is_known(conversations, "another", record.id, item_id)
        assert values(present(await conversations.get(PROJECT, record.id))) == values(record)
        assert await listed(conversations, record.id) == ["1"]

    async def test_changes(self, conversations: Conversations) -> None:
        record = await created(conversations, metadata={"a": "1"})
        changed = await conversations.update(PROJECT, record.id, {"metadata": {"b": "2"}, "title": "New"})
        assert changed is not None
        assert values(changed) == values(present(await conversations.get(PROJECT, record.id)))
        assert (changed.metadata, changed.title, changed.status) == ({"b": "2"}, "New", "")
        again = present(await conversations.update(PROJECT, record.id, {"status": "closed", "title": ""}))
        assert (again.metadata, again.title, again.status) == ({"b": "2"}, "", "closed")
        assert again.version == record.version, "what is said did not change"

    async def test_deleted_it_is_gone_with_its_items(self, conversations: Conversations) -> None:
        record = await created(conversations, "1")
        item_id = str((await conversations.items_since(PROJECT, record.id, 0))[0].item["id"])
        other = await created(conversations, "2")
        assert await conversations.delete(PROJECT, record.id)
        await nothing_is_known(conversations, PROJECT, record.id, item_id)
        assert await listed(conversations, other.id) == ["2"]

    async def test_a_removed_item_is_gone_alone(self, conversations: Conversations) -> None:
        record = await created(conversations, *"abc")
        ids = [str(entry.item["id"]) for entry in await conversations.items_since(PROJECT, record.id, 0)]
        assert await conversations.remove_item(PROJECT, record.id, ids[1])
        assert not await conversations.remove_item(PROJECT, record.id, ids[1])
        assert await conversations.item(PROJECT, record.id, ids[1]) is None
        assert await listed(conversations, record.id, after=ids[1]) == ["c"], "behind where it stood"
        added = await appended(conversations, record.id, said("d"))
        assert added[0].position == 4, "a position is never given twice"
        assert await listed(conversations, record.id) == ["a", "c", "d"]

    async def test_every_change_of_the_items_is_a_version(self, conversations: Conversations) -> None:
        record = await created(conversations, "1")
        entries = await appended(conversations, record.id, said("2"))
        await conversations.remove_item(PROJECT, record.id, str(entries[0].item["id"]))
        await appended(conversations, record.id)
        found = present(await conversations.get(PROJECT, record.id))
        assert (record.version, found.version) == (0, 2)

    async def test_an_id_that_is_there_already_gets_another(self, conversations: Conversations) -> None:
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
            found = present(await conversations.item(PROJECT, record.id, str(entry.item["id"])))
            assert values(found) == values(entry)

    async def test_an_id_belongs_to_one_conversation_only(self, conversations: Conversations) -> None:
        one, other = await created(conversations), await created(conversations)
        item = said("1")
        for record in (one, other):
            assert (await appended(conversations, record.id, item))[0].item == item
        assert await conversations.remove_item(PROJECT, one.id, str(item["id"]))
        assert await listed(conversations, other.id) == ["1"]

    async def test_many_items_at_once(self, conversations: Conversations) -> None:
        record = await created(conversations)
        items = [said(str(number)) for number in range(1200)]
        await appended(conversations, record.id, *items)
        again = await appended(conversations, record.id, *items)
        assert len({entry.item["id"] for entry in again} | {item["id"] for item in items}) == 2400
        assert await listed(conversations, record.id, limit=3000) == [str(number) for number in range(1200)] * 2

    async def test_many_at_once_stay_whole_and_in_order(self, conversations: Conversations) -> None:
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

    async def test_closing_twice(self, conversations: Conversations) -> None:
        await created(conversations)
        await conversations.aclose()
        await conversations.aclose()

    async def test_a_response_appends_and_becomes_the_head(self, conversations: Conversations, alias: str) -> None:
        record = await created(conversations, "1")
        await respond(alias, record, "resp_1", "2", "3")
        assert await listed(conversations, record.id) == ["1", "2", "3"]
        assert await head_of(conversations, record) == ("resp_1", 3, 1)
        await respond(alias, present(await conversations.get(PROJECT, record.id)), "resp_2", "4")
        assert await head_of(conversations, record) == ("resp_2", 4, 2)
        assert await asyncio.to_thread(response_ids, alias, record.id) == ["", "resp_1", "resp_1", "resp_2"]

    async def test_what_was_appended_behind_the_head_leaves_it(self, conversations: Conversations, alias: str) -> None:
        record = await created(conversations)
        await respond(alias, record, "resp_1", "1", "2")
        entries = await appended(conversations, record.id, said("3"))
        assert await head_of(conversations, record) == ("resp_1", 2, 2)
        assert await conversations.remove_item(PROJECT, record.id, str(entries[0].item["id"]))
        assert await head_of(conversations, record) == ("resp_1", 2, 3)

    async def test_of_two_responses_at_once_none_is_the_head(self, conversations: Conversations, alias: str) -> None:
        record = await created(conversations, "1")
        await respond(alias, record, "resp_1", "2")
        await respond(alias, record, "resp_2", "3")
        assert await head_of(conversations, record) == ("", 0, 2)
        await respond(alias, present(await conversations.get(PROJECT, record.id)), "resp_3", "4")
        assert await head_of(conversations, record) == ("resp_3", 4, 3)

    async def test_the_head_goes_with_an_item_it_covers(self, conversations: Conversations, alias: str) -> None:
        for number in (0, 1):
            record = await created(conversations, "1")
            await respond(alias, record, "resp_1", "2")
            entry = (await conversations.items_since(PROJECT, record.id, 0))[number]
            assert await conversations.remove_item(PROJECT, record.id, str(entry.item["id"]))
            assert await head_of(conversations, record) == ("", 0, 2)

    async def test_appending_a_response_twice_adds_nothing(self, conversations: Conversations, alias: str) -> None:
        record = await created(conversations)
        item = said("1")
        await appended(conversations, record.id, item)
        append = ConversationAppend(conversation_id=record.id, items=(item, said("2")), read_version=1)
        for _ in range(2):
            await in_transaction(alias, lambda: append_response(alias, PROJECT, append, response_id="resp_1", at=AT))
        assert await listed(conversations, record.id) == ["1", "1", "2"]
        assert await head_of(conversations, record) == ("resp_1", 3, 2)

    async def test_twice_in_one_transaction_or_all_ids_taken_it_is_the_same(
        self, conversations: Conversations, alias: str
    ) -> None:
        record = await created(conversations)
        items = [said(str(number)) for number in range(700)]
        await appended(conversations, record.id, *items)
        append = ConversationAppend(conversation_id=record.id, items=tuple(items), read_version=1)

        def twice() -> None:
            for _ in range(2):
                append_response(alias, PROJECT, append, response_id="resp_1", at=AT)

        await in_transaction(alias, twice)
        assert len(await listed(conversations, record.id, limit=5000)) == 1400

    async def test_ids_no_database_takes_are_replaced(self, conversations: Conversations, alias: str) -> None:
        record = await created(conversations)
        items = (said("1", "x" * 65), said("2", "msg_\x00"), {"type": "message", "content": [{"text": "3"}]})
        append = ConversationAppend(conversation_id=record.id, items=items, read_version=0)
        await in_transaction(alias, lambda: append_response(alias, PROJECT, append, response_id="resp_1", at=AT))
        entries = await conversations.items_since(PROJECT, record.id, 0)
        assert [len(str(entry.item["id"])) for entry in entries] == [len("msg_") + 32] * 3
        assert {entry.created_at for entry in entries} == {AT}

    async def test_a_conversation_that_is_gone_is_not_an_error(self, conversations: Conversations, alias: str) -> None:
        record = await created(conversations)
        append = ConversationAppend(conversation_id=record.id, items=(said("1"),), read_version=0)
        await in_transaction(alias, lambda: append_response(alias, "another", append, response_id="resp_1", at=AT))
        assert await listed(conversations, record.id) == []
        await conversations.delete(PROJECT, record.id)
        await in_transaction(alias, lambda: append_response(alias, PROJECT, append, response_id="resp_1", at=AT))
        assert await asyncio.to_thread(response_ids, alias, record.id) == []

    # Many processes, failures, bounds.

    async def test_two_stores_append_at_once(
        self, conversations: Conversations, alias: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        record = await created(conversations)
        other = Conversations(using=alias)
        await other.start()
        answers = await asyncio.gather(
            *(
                appended(store, record.id, *(said(f"{store is other}{number}.{part}") for part in range(20)))
                for number in range(25)
                for store in (conversations, other)
            )
        )
        await other.aclose()
        for entries in answers:
            start = entries[0].position
            assert [entry.position for entry in entries] == list(range(start, start + 20))
        assert sorted(entry.position for entries in answers for entry in entries) == list(range(1, 1001))
        assert caplog.text == "", "each waited for its turn; none failed and was tried again"

    async def test_two_stores_change_many_conversations_at_once(
        self, conversations: Conversations, alias: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        records = [await created(conversations) for _ in range(20)]
        other = Conversations(using=alias)
        await other.start()
        forth = [appended(conversations, record.id, said("1")) for record in records]
        back = [appended(other, record.id, said("2")) for record in reversed(records)]
        await asyncio.gather(*forth, *back)
        await other.aclose()
        assert all([len(await listed(conversations, record.id)) == 2 for record in records])
        assert "deadlock" not in caplog.text

    async def test_no_more_than_the_maximum_of_a_project(self, alias: str) -> None:
        stores = [
            Conversations(using=alias, settings=ConversationSettings(conversations_max_entries=5)) for _ in range(2)
        ]
        project = new_id("proj")
        for store in stores:
            await store.start()
        answers = await asyncio.gather(
            *(created(store, project=project) for _ in range(10) for store in stores), return_exceptions=True
        )
        kept = [answer for answer in answers if isinstance(answer, Conversation)]
        assert len(kept) == 5
        assert all(isinstance(answer, ConversationsFull) for answer in answers if answer not in kept)
        await created(stores[0], project=new_id("proj"))
        assert await stores[0].delete(project, kept[0].id)
        await created(stores[1], project=project)
        for store in stores:
            await store.aclose()

    async def test_a_lost_answer_to_a_commit_changes_nothing_twice(
        self, conversations: Conversations, alias: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The commit succeeds, but the connection breaks before it is known; the writer does everything again."""
        record = await created(conversations, "0")
        first = (await conversations.items_since(PROJECT, record.id, 0))[0]
        gone = await created(conversations)
        losing = Losing(conversations, monkeypatch)

        new = Conversation(id=new_id("conv"), project=PROJECT, created_at=utc(1))
        await losing.answers_of(conversations.create(new, [said("new")]))
        assert await listed(conversations, new.id) == ["new"]
        item = {**said("1"), "id": first.item["id"]}
        entries = await losing.answers_of(appended(conversations, record.id, item, said("2")))
        assert [entry.position for entry in entries] == [2, 3]
        assert await listed(conversations, record.id) == ["0", "1", "2"]
        assert await losing.answers_of(conversations.remove_item(PROJECT, record.id, str(first.item["id"])))
        assert await losing.answers_of(conversations.delete(PROJECT, gone.id))
        changed = await losing.answers_of(conversations.update(PROJECT, record.id, {"title": "x"}))
        assert changed is not None
        assert values(changed) == values(present(await conversations.get(PROJECT, record.id)))
        assert (changed.version, changed.title) == (2, "x")
        assert losing.lost == 5

    async def test_an_item_that_is_not_json_fails_alone(self, conversations: Conversations) -> None:
        record = await created(conversations)
        good = [conversations.append(PROJECT, record.id, [said(str(number))]) for number in range(5)]
        bad = conversations.append(PROJECT, record.id, [{**said("bad"), "key": object()}])
        answers = await asyncio.gather(*good, bad, return_exceptions=True)
        assert isinstance(answers[-1], StoreError)
        assert sorted(await listed(conversations, record.id)) == list("01234")
        assert [entry.position for entry in await conversations.items_since(PROJECT, record.id, 0)] == [1, 2, 3, 4, 5]

    async def test_what_was_kept_survives_the_store(self, conversations: Conversations, alias: str) -> None:
        record = await created(conversations, "1")
        await conversations.aclose()
        another = Conversations(using=alias)
        await another.start()
        assert values(present(await another.get(PROJECT, record.id))) == values(record)
        assert await listed(another, record.id) == ["1"]
        await another.aclose()

    async def test_deleting_leaves_no_rows(self, conversations: Conversations, alias: str) -> None:
        record = await created(conversations, "1", "2")
        await conversations.delete(PROJECT, record.id)
        assert await asyncio.to_thread(response_ids, alias, record.id) == []

    async def test_closed_it_refuses(self, conversations: Conversations) -> None:
        record = await created(conversations)
        await conversations.aclose()
        with pytest.raises(StoreError):
            await conversations.append(PROJECT, record.id, [said("1")])
        with pytest.raises(StoreError):
            await conversations.get(PROJECT, record.id)


class Losing:
    """Lets a store's writer commit, and then believe that it could not."""

    def __init__(self, store: Conversations, monkeypatch: pytest.MonkeyPatch) -> None:
        self._store = store
        self._monkeypatch = monkeypatch
        self.lost = 0

    async def answers_of(self, change: Coroutine[Any, Any, Found]) -> Found:
        """Make a change, its first commit's answer lost."""
        writer = self._store._writer
        commit, lost = writer._commit, False

        def committing(batch: object) -> None:
            nonlocal lost
            commit(batch)  # type: ignore[arg-type]
            if not lost:
                lost = True
                self.lost += 1
                connections[self._store._using].connection.commit()
                raise OperationalError("server closed the connection unexpectedly")

        self._monkeypatch.setattr(writer, "_commit", committing)
        self._monkeypatch.setattr("responses_app.kit.writer.RETRY_PAUSES", (0.0,))
        try:
            return await change
        finally:
            self._monkeypatch.setattr(writer, "_commit", commit)


async def head_of(store: Conversations, record: Conversation) -> tuple[str, int, int]:
    """Return its head, how far that reaches, and its version."""
    found = present(await store.get(PROJECT, record.id))
    return found.head, found.head_position, found.version


async def respond(alias: str, read: Conversation, response_id: str, *texts: str) -> None:
    """Append what a response would that read the conversation as it was then."""
    append = ConversationAppend(
        conversation_id=read.id, items=tuple(said(text) for text in texts), read_version=read.version
    )
    await in_transaction(alias, lambda: append_response(alias, PROJECT, append, response_id=response_id, at=AT))


async def in_transaction(alias: str, act: Callable[[], None]) -> None:
    await asyncio.to_thread(within, alias, lambda _: act())


def response_ids(alias: str, conversation_id: str) -> list[str]:
    items = rows(alias, ConversationItem, conversation_id=conversation_id)
    return [item.response_id for item in sorted(items, key=lambda item: item.position)]


async def nothing_is_known(store: Conversations, project: str, conversation_id: str, item_id: str) -> None:
    """Ask for a conversation that is not there in every way."""
    assert await store.get(project, conversation_id) is None
    assert await store.update(project, conversation_id, {"title": "x"}) is None
    assert await store.append(project, conversation_id, [said("x")]) is None
    assert await store.items(project, conversation_id, ListQuery()) is None
    assert await store.items_since(project, conversation_id, 0) == []
    assert await store.item(project, conversation_id, item_id) is None
    assert not await store.remove_item(project, conversation_id, item_id)
    assert not await store.delete(project, conversation_id)
