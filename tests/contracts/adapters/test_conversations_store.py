"""Conversations in a database: the contract on SQLite and PostgreSQL, and what a response appends to one."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from datetime import UTC, datetime
from typing import Any, TypeVar

import pytest
from django.db import OperationalError, connections, transaction

from responses_app.models import ConversationItem
from responses_app.stores.base import ConversationAppend, StoreError
from responses_app.stores.database.conversations import DatabaseConversationStore, append_response
from responses_app.stores.stores import ConversationFull, ConversationRecord
from tests.contracts.adapters.conftest import OpenDatabase
from tests.contracts.conversations import (
    PROJECT,
    ConversationStoreContract,
    appended,
    created,
    listed,
    said,
)
from tests.contracts.store import new_id

Found = TypeVar("Found")

AT = datetime(2026, 11, 21, tzinfo=UTC)


class DatabaseCase:
    """Stores on a migrated database that a module's tests share; a subclass gives its `url`."""

    @pytest.fixture
    def alias(self, url: str, open_database: OpenDatabase) -> Iterator[str]:
        with open_database(url) as alias:
            yield alias

    @pytest.fixture
    async def conversations(self, alias: str) -> AsyncIterator[DatabaseConversationStore]:
        store = DatabaseConversationStore(using=alias)
        await store.start()
        yield store
        await store.aclose()


class TestOnSqlite(DatabaseCase, ConversationStoreContract):
    @pytest.fixture
    def url(self, sqlite_url: str) -> str:
        return sqlite_url


class TestOnPostgres(DatabaseCase, ConversationStoreContract):
    @pytest.fixture
    def url(self, postgres_url: str) -> str:
        return postgres_url


class TestOnBoth(DatabaseCase):
    @pytest.fixture(params=["sqlite_url", "postgres_url"])
    def url(self, request: pytest.FixtureRequest) -> str:
        return request.getfixturevalue(request.param)

    # What a response appends.

    async def test_a_response_appends_and_becomes_the_head(
        self, conversations: DatabaseConversationStore, alias: str
    ) -> None:
        record = await created(conversations, "1")
        await respond(alias, record, "resp_1", "2", "3")
        assert await listed(conversations, record.id) == ["1", "2", "3"]
        found = await found_again(conversations, record)
        assert (found.head, found.head_position, found.version) == ("resp_1", 3, 1)
        await respond(alias, found, "resp_2", "4")
        found = await found_again(conversations, record)
        assert (found.head, found.head_position, found.version) == ("resp_2", 4, 2)
        assert await asyncio.to_thread(response_ids, alias, record.id) == ["", "resp_1", "resp_1", "resp_2"]

    async def test_what_was_appended_behind_the_head_leaves_it(
        self, conversations: DatabaseConversationStore, alias: str
    ) -> None:
        record = await created(conversations)
        await respond(alias, record, "resp_1", "1", "2")
        entries = await appended(conversations, record.id, said("3"))
        found = await found_again(conversations, record)
        assert (found.head, found.head_position, found.version) == ("resp_1", 2, 2)
        assert await conversations.remove(PROJECT, record.id, str(entries[0].item["id"]))
        found = await found_again(conversations, record)
        assert (found.head, found.head_position, found.version) == ("resp_1", 2, 3)

    async def test_of_two_responses_at_once_none_is_the_head(
        self, conversations: DatabaseConversationStore, alias: str
    ) -> None:
        record = await created(conversations, "1")
        await respond(alias, record, "resp_1", "2")
        await respond(alias, record, "resp_2", "3")
        found = await found_again(conversations, record)
        assert (found.head, found.head_position, found.version) == ("", 0, 2)
        await respond(alias, found, "resp_3", "4")
        found = await found_again(conversations, record)
        assert (found.head, found.head_position) == ("resp_3", 4)

    async def test_the_head_goes_with_an_item_it_covers(
        self, conversations: DatabaseConversationStore, alias: str
    ) -> None:
        for number in (0, 1):
            record = await created(conversations, "1")
            await respond(alias, record, "resp_1", "2")
            entry = (await conversations.entries_since(PROJECT, record.id, 0))[number]
            assert await conversations.remove(PROJECT, record.id, str(entry.item["id"]))
            found = await found_again(conversations, record)
            assert (found.head, found.head_position, found.version) == ("", 0, 2)

    async def test_appending_a_response_twice_adds_nothing(
        self, conversations: DatabaseConversationStore, alias: str
    ) -> None:
        record = await created(conversations)
        item = said("1")
        await appended(conversations, record.id, item)
        append = ConversationAppend(conversation_id=record.id, items=(item, said("2")), read_version=1)
        for _ in range(2):
            await in_transaction(alias, lambda: append_response(alias, PROJECT, append, response_id="resp_1", at=AT))
        assert await listed(conversations, record.id) == ["1", "1", "2"]
        found = await found_again(conversations, record)
        assert (found.head, found.head_position, found.version) == ("resp_1", 3, 2)

    async def test_twice_in_one_transaction_or_all_ids_taken_it_is_the_same(
        self, conversations: DatabaseConversationStore, alias: str
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

    async def test_ids_no_database_takes_are_replaced(
        self, conversations: DatabaseConversationStore, alias: str
    ) -> None:
        record = await created(conversations)
        items = (said("1", "x" * 65), said("2", "msg_\x00"), {"type": "message", "content": [{"text": "3"}]})
        append = ConversationAppend(conversation_id=record.id, items=items, read_version=0)
        await in_transaction(alias, lambda: append_response(alias, PROJECT, append, response_id="resp_1", at=AT))
        entries = await conversations.entries_since(PROJECT, record.id, 0)
        assert [len(str(entry.item["id"])) for entry in entries] == [len("msg_") + 32] * 3
        assert {entry.created_at for entry in entries} == {int(AT.timestamp())}

    async def test_a_conversation_that_is_gone_is_not_an_error(
        self, conversations: DatabaseConversationStore, alias: str
    ) -> None:
        record = await created(conversations)
        append = ConversationAppend(conversation_id=record.id, items=(said("1"),), read_version=0)
        await in_transaction(alias, lambda: append_response(alias, "another", append, response_id="resp_1", at=AT))
        assert await listed(conversations, record.id) == []
        await conversations.delete(PROJECT, record.id)
        await in_transaction(alias, lambda: append_response(alias, PROJECT, append, response_id="resp_1", at=AT))
        assert await asyncio.to_thread(response_ids, alias, record.id) == []

    # Many processes, failures, bounds.

    async def test_two_stores_append_at_once(
        self, conversations: DatabaseConversationStore, alias: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        record = await created(conversations)
        other = DatabaseConversationStore(using=alias)
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
        self, conversations: DatabaseConversationStore, alias: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        records = [await created(conversations) for _ in range(20)]
        other = DatabaseConversationStore(using=alias)
        await other.start()
        forth = [appended(conversations, record.id, said("1")) for record in records]
        back = [appended(other, record.id, said("2")) for record in reversed(records)]
        await asyncio.gather(*forth, *back)
        await other.aclose()
        assert all([len(await listed(conversations, record.id)) == 2 for record in records])
        assert "deadlock" not in caplog.text

    async def test_no_more_than_the_maximum_of_a_project(self, alias: str) -> None:
        stores = [DatabaseConversationStore(using=alias, max_entries=5) for _ in range(2)]
        project = new_id("proj")
        for store in stores:
            await store.start()
        answers = await asyncio.gather(
            *(created(store, project=project) for _ in range(10) for store in stores), return_exceptions=True
        )
        kept = [answer for answer in answers if isinstance(answer, ConversationRecord)]
        assert len(kept) == 5
        assert all(isinstance(answer, ConversationFull) for answer in answers if answer not in kept)
        await created(stores[0], project=new_id("proj"))
        assert await stores[0].delete(project, kept[0].id)
        await created(stores[1], project=project)
        for store in stores:
            await store.aclose()

    async def test_a_lost_answer_to_a_commit_changes_nothing_twice(
        self, conversations: DatabaseConversationStore, alias: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The commit succeeds, but the connection breaks before it is known; the writer does everything again."""
        record = await created(conversations, "0")
        first = (await conversations.entries_since(PROJECT, record.id, 0))[0]
        gone = await created(conversations)
        losing = Losing(conversations, monkeypatch)

        new = ConversationRecord(id=new_id("conv"), created_at=1, metadata={})
        await losing.answers_of(conversations.create(PROJECT, new, [said("new")]))
        assert await listed(conversations, new.id) == ["new"]
        item = {**said("1"), "id": first.item["id"]}
        entries = await losing.answers_of(appended(conversations, record.id, item, said("2")))
        assert [entry.position for entry in entries] == [2, 3]
        assert await listed(conversations, record.id) == ["0", "1", "2"]
        assert await losing.answers_of(conversations.remove(PROJECT, record.id, str(first.item["id"])))
        assert await losing.answers_of(conversations.delete(PROJECT, gone.id))
        changed = await losing.answers_of(conversations.update(PROJECT, record.id, {"title": "x"}))
        assert changed == await conversations.get(PROJECT, record.id)
        assert changed is not None
        assert (changed.version, changed.title) == (2, "x")
        assert losing.lost == 5

    async def test_an_item_that_is_not_json_fails_alone(self, conversations: DatabaseConversationStore) -> None:
        record = await created(conversations)
        good = [conversations.append(PROJECT, record.id, [said(str(number))]) for number in range(5)]
        bad = conversations.append(PROJECT, record.id, [{**said("bad"), "key": object()}])
        answers = await asyncio.gather(*good, bad, return_exceptions=True)
        assert isinstance(answers[-1], StoreError)
        assert sorted(await listed(conversations, record.id)) == list("01234")
        assert [entry.position for entry in await conversations.entries_since(PROJECT, record.id, 0)] == [1, 2, 3, 4, 5]

    async def test_what_was_kept_survives_the_store(self, conversations: DatabaseConversationStore, alias: str) -> None:
        record = await created(conversations, "1")
        await conversations.aclose()
        another = DatabaseConversationStore(using=alias)
        await another.start()
        assert await another.get(PROJECT, record.id) == record
        assert await listed(another, record.id) == ["1"]
        await another.aclose()

    async def test_deleting_leaves_no_rows(self, conversations: DatabaseConversationStore, alias: str) -> None:
        record = await created(conversations, "1", "2")
        await conversations.delete(PROJECT, record.id)
        assert await asyncio.to_thread(response_ids, alias, record.id) == []

    async def test_closed_it_refuses(self, conversations: DatabaseConversationStore) -> None:
        record = await created(conversations)
        await conversations.aclose()
        with pytest.raises(StoreError):
            await conversations.append(PROJECT, record.id, [said("1")])
        with pytest.raises(StoreError):
            await conversations.get(PROJECT, record.id)


class Losing:
    """Lets a store's writer commit, and then believe that it could not."""

    def __init__(self, store: DatabaseConversationStore, monkeypatch: pytest.MonkeyPatch) -> None:
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
        self._monkeypatch.setattr("responses_app.stores.database.threads.RETRY_PAUSES", (0.0,))
        try:
            return await change
        finally:
            self._monkeypatch.setattr(writer, "_commit", commit)


async def found_again(store: DatabaseConversationStore, record: ConversationRecord) -> ConversationRecord:
    found = await store.get(PROJECT, record.id)
    assert found is not None
    return found


async def respond(alias: str, read: ConversationRecord, response_id: str, *texts: str) -> None:
    """Append what a response would that read the conversation as it was then."""
    append = ConversationAppend(
        conversation_id=read.id, items=tuple(said(text) for text in texts), read_version=read.version
    )
    await in_transaction(alias, lambda: append_response(alias, PROJECT, append, response_id=response_id, at=AT))


async def in_transaction(alias: str, act: Callable[[], None]) -> None:
    def run() -> None:
        try:
            with transaction.atomic(using=alias):
                act()
        finally:
            connections[alias].close()

    await asyncio.to_thread(run)


def response_ids(alias: str, conversation_id: str) -> list[str]:
    try:
        rows = ConversationItem.objects.using(alias).filter(conversation_id=conversation_id).order_by("position")
        return list(rows.values_list("response_id", flat=True))
    finally:
        connections[alias].close()
