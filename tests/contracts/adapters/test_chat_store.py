"""What a store of chat completions does, on SQLite and on PostgreSQL: they come and go with their responses."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from responses_app.protocol.chat.completion import ChatForm, ChatQuery, StoredChat, StoredChoice
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.requests.pages import ListQuery
from responses_app.stores.base import (
    BaseChatStore,
    BaseResponseStore,
    KeptCompletion,
    RetentionSettings,
    StoredResponse,
)
from responses_app.stores.database.responses.chats import DatabaseChatStore
from tests.contracts.adapters.stores import opening
from tests.contracts.store import IDS_NOBODY_MADE, UNTAMED, Turn, new_id, present, save_all
from tests.contracts.store_life import NOW, OpenStore
from tests.kit.clock import Clock

OpenChats = Callable[..., Awaitable[tuple[BaseResponseStore, BaseChatStore]]]  # with `limits` and `now`
MESSAGES: Sequence[JsonObject] = [
    {"role": "user", "content": UNTAMED},
    {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
]
FORM = ChatForm(stops=("\n", UNTAMED), shows_reasoning=False, old_calls=True, version="1")


def choices(
    project: str,
    count: int = 1,
    *,
    at: int = NOW,
    model: str = "test",
    metadata: dict[str, str] | None = None,
    messages: Sequence[JsonObject] = MESSAGES,
) -> list[StoredResponse]:
    """Return the choices of a completion, as they are saved."""
    chat = StoredChat(messages=messages, metadata=metadata or {}, form=FORM)
    own = StoredChoice(count=count, chat=chat)
    turns = [Turn(project, created_at=at).saying() for _ in range(count)]
    for turn in turns:
        turn.response["model"] = model
    first = str(turns[0].response["id"])
    return [replace(turn, chat=own.beside(first, place) if place else own) for place, turn in enumerate(turns)]


def name(saved: Sequence[StoredResponse]) -> str:
    """Return what a completion is called."""
    return str(saved[0].response["id"])


def names(found: Sequence[KeptCompletion] | None) -> list[str]:
    """Return what completions are called."""
    assert found is not None
    return [str(each.responses[0]["id"]) for each in found]


def query(**fields: Any) -> ChatQuery:
    """Return a query, the oldest first."""
    page = {key: fields.pop(key) for key in ("after", "descending") if key in fields}
    return ChatQuery(page=ListQuery(**{"descending": False, **page}), **fields)


class TestInDatabases:
    @pytest.fixture
    async def open_chats(self, open_store: OpenStore, alias: str) -> AsyncIterator[OpenChats]:
        async with opening(open_store, DatabaseChatStore, alias) as open_one:
            yield open_one

    async def test_a_completion_is_its_choices_in_their_order(self, open_chats: OpenChats) -> None:
        responses, chats = await open_chats()
        project = new_id("proj")
        saved = choices(project, 3, metadata={"a": "b"})
        for each in reversed(saved):
            assert await chats.get(project, name(saved)) is None, "not all of it is there"
            assert names(await chats.listed(project, query(), limit=9)) == []
            assert await chats.messages(project, name(saved)) is None
            await responses.save(each)
        kept = KeptCompletion(responses=[each.response for each in saved], form=FORM, metadata={"a": "b"})
        found = present(await chats.get(project, name(saved)))
        assert found == kept
        assert await chats.messages(project, name(saved)) == MESSAGES
        assert await chats.choices(project, name(saved)) == [each.response["id"] for each in saved]
        assert names(await chats.listed(project, query(), limit=9)) == [name(saved)]
        for other in ("another", new_id("proj")):
            assert await chats.get(other, name(saved)) is None
            assert await chats.messages(other, name(saved)) is None
            assert await chats.choices(other, name(saved)) in ([], ())
            assert names(await chats.listed(other, query(after=name(saved)), limit=9)) == []
        assert await chats.get(project, str(saved[1].response["id"])) is None, "it is named by its first choice"

    async def test_it_goes_with_any_of_its_responses(self, open_chats: OpenChats) -> None:
        responses, chats = await open_chats()
        project = new_id("proj")
        saved = choices(project, 2)
        await save_all(responses, saved)
        await responses.save(Turn(project).saying())  # a response that is no chat
        await responses.delete(project, str(saved[1].response["id"]))
        assert await chats.get(project, name(saved)) is None
        assert await chats.choices(project, name(saved)) == [name(saved)]
        await responses.delete(project, name(saved))
        assert await chats.choices(project, name(saved)) == []

    async def test_lists(self, open_chats: OpenChats) -> None:
        responses, chats = await open_chats()
        project = new_id("proj")
        tricky = ['"', "\\", 'a,"k', "}", UNTAMED.replace("\ud800", "")]
        saved = [choices(project, at=NOW + at, metadata={"n": str(at), "é": "ü"}) for at in (0, 1, 1, 2)]
        saved += [
            choices(project, at=NOW + 3 + at, model="other", metadata={key: key}) for at, key in enumerate(tricky)
        ]
        for [each] in reversed(saved):
            await responses.save(each)
        ordered = [name(saved[0]), *sorted([name(saved[1]), name(saved[2])]), *map(name, saved[3:])]
        assert names(await chats.listed(project, query(), limit=99)) == ordered
        assert names(await chats.listed(project, query(), limit=2)) == ordered[:2]
        for place, each in enumerate(ordered):
            assert names(await chats.listed(project, query(after=each), limit=99)) == ordered[place + 1 :]
            before = await chats.listed(project, query(after=each, descending=True), limit=99)
            assert names(before) == ordered[:place][::-1]
        assert names(await chats.listed(project, query(model="other"), limit=99)) == ordered[4:]
        assert names(await chats.listed(project, query(model="oth\0er"), limit=99)) == []
        assert names(await chats.listed(project, query(metadata={"n": "1", "é": "ü"}), limit=99)) == ordered[1:3]
        assert names(await chats.listed(project, query(metadata={"n": "1", "é": "u"}), limit=99)) == []
        for [each] in saved[4:]:
            chat = present(each.chat and each.chat.chat)
            found = await chats.listed(project, query(metadata=chat.metadata), limit=99)
            assert names(found) == [each.response["id"]]
        assert names(await chats.listed(project, query(metadata={"k": 'a,"k'}), limit=99)) == []

    async def test_metadata_is_changed(self, open_chats: OpenChats) -> None:
        responses, chats = await open_chats()
        project = new_id("proj")
        saved = choices(project, 2, metadata={"a": "b"})
        await save_all(responses, saved)
        await chats.change("another", name(saved), {"a": "c"})
        assert names(await chats.listed(project, query(metadata={"a": "b"}), limit=9)) == [name(saved)]
        await chats.change(project, name(saved), {"a": UNTAMED})
        found = present(await chats.get(project, name(saved)))
        assert found.metadata == {"a": UNTAMED}
        assert names(await chats.listed(project, query(metadata={"a": "b"}), limit=9)) == []

    async def test_one_that_is_past_its_time_is_not_found(self, open_chats: OpenChats) -> None:
        clock = Clock(NOW)
        responses, chats = await open_chats(settings=RetentionSettings(responses_store_ttl=60.0), now=clock)
        project = new_id("proj")
        [saved] = choices(project)
        await responses.save(saved)
        clock.now = NOW + 59.0
        assert await chats.get(project, name([saved])) is not None
        clock.now = NOW + 60.0
        assert await chats.get(project, name([saved])) is None
        assert await chats.messages(project, name([saved])) is None
        assert names(await chats.listed(project, query(), limit=9)) == []
        assert names(await chats.listed(project, query(after=name([saved])), limit=9)) == []

    async def test_an_id_that_nobody_made_is_nobodys(self, open_chats: OpenChats) -> None:
        _, chats = await open_chats()
        for each in IDS_NOBODY_MADE:
            assert await chats.get("project", each) is None
            assert await chats.messages("project", each) is None
            assert not await chats.choices("project", each)
            await chats.change("project", each, {"a": "b"})

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
        found = present(await chats.listed(project, query(), limit=9))
        assert [each.responses[0]["id"] for each in found] == [name(saved[1]), name(saved[2])]
        assert await chats.choices(project, name(saved[0])) == []
