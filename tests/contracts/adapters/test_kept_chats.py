"""What a store of kept chats does, on SQLite and on PostgreSQL: they are trees of responses, and conversations."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from responses_app.extensions.playground import chat_store
from responses_app.extensions.playground.chat_store import (
    MAX_PINNED,
    ChatsQuery,
    DatabaseKeptChats,
    KeptChat,
    TooManyPinned,
)
from responses_app.models import Response
from responses_app.models.playground import ChatLabel
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.ids import PublicId
from responses_app.stores.base import AcceptedResponse, BaseResponseStore, RetentionSettings, StoredResponse
from responses_app.stores.database.responses.membership import MADE_IN, PLAYGROUND, VERSION_OF
from responses_app.stores.database.responses.removal import remove
from tests.contracts.adapters.stores import Held, opening, rows, waits_for_a_lock, within
from tests.contracts.store import IDS_NOBODY_MADE, UNTAMED, Turn, exchange, new_id, save_all
from tests.contracts.store_life import NOW, OpenStore
from tests.kit.clock import Clock

OpenKeptChats = Callable[..., Awaitable[tuple[BaseResponseStore, DatabaseKeptChats]]]  # with `settings` and `now`


def said(
    project: str, at: int, text: str = "Hello", *, after: StoredResponse | None = None, key: str = "", answer: str = ""
) -> StoredResponse:
    """Return a response that was asked `text` and has ended."""
    turn = Turn(project, after.link if after else None, created_at=NOW + at).saying(*exchange(at))
    if answer:
        item: JsonObject = {"type": "message", "id": new_id("msg"), "role": "assistant"}
        turn.response["output"] = [{**item, "content": [{"type": "output_text", "text": answer}]}]
    return replace(turn, input_items=asked(text), key_id=key)


def asked(text: str) -> tuple[JsonObject, ...]:
    """Return a user's message."""
    content = [{"type": "input_text", "text": text}]
    return ({"type": "message", "id": new_id("msg"), "role": "user", "content": content},)


def of(stored: AcceptedResponse | StoredResponse) -> str:
    """Return a response's id."""
    return str(stored.response["id"])


def query(**fields: Any) -> ChatsQuery:
    """Return a query for all of nobody's chats."""
    return ChatsQuery(**{"key_id": "", "limit": 50, **fields})


def names(found: Sequence[KeptChat] | None) -> list[str]:
    """Return the ids of chats."""
    assert found is not None
    return [each.id for each in found]


class TestInDatabases:
    @pytest.fixture
    async def open_chats(self, open_store: OpenStore, alias: str) -> AsyncIterator[OpenKeptChats]:
        async with opening(open_store, DatabaseKeptChats, alias) as open_one:
            yield open_one

    @pytest.fixture
    def project(self) -> str:
        return new_id("proj")

    async def test_a_chat_is_a_tree_of_responses(self, open_chats: OpenKeptChats, project: str) -> None:
        responses, chats = await open_chats()
        root = said(project, 0, "  What is\na turtle?  ")
        left = said(project, 1, "Tell more", after=root)
        right = said(project, 2, "Again", after=root)
        other = said(project, 3, "Something else")
        await save_all(responses, (root, left, right, other))
        failed = replace(Turn(project, left.link, created_at=NOW + 4).failed(), input_items=asked("No"))
        await responses.save(failed)
        running = Turn(project, right.link, created_at=NOW + 5).begun(parent=of(right))
        await responses.accept(running)
        listed = await chats.listed(project, query())
        assert names(listed) == [of(root), of(other)]
        assert listed is not None
        assert listed[0] == KeptChat(
            id=of(root), title="What is a turtle?", title_from="words", pinned=False, model="test",
            created_at=NOW, updated_at=NOW + 5, newest=of(running), responses=5, is_own=True,
        )  # fmt: skip
        for name in map(of, (root, left, right, failed, running)):
            assert await chats.get(project, name, key_id="") == listed[0]
        turns = await chats.turns(project, of(root))
        assert [(each.response["id"], each.parent) for each in turns.turns] == [
            (of(root), None), (of(left), of(root)), (of(right), of(root)), (of(failed), of(left)),
            (of(running), of(right)),
        ]  # fmt: skip
        assert turns.turns[1].input_items == list(left.input_items)
        assert turns.turns[4].response["status"] == "in_progress"
        assert not turns.more
        assert set(await chats.responses(project, of(root))) == {*map(of, (root, left, right, failed, running))}
        assert names(await chats.listed("another", query())) == []
        assert await chats.get("another", of(root), key_id="") is None
        assert (await chats.turns("another", of(root))).turns in ([], ())
        assert await chats.responses("another", of(root)) in ([], ())

    async def test_a_chat_keeps_its_name_where_its_root_is_gone(self, open_chats: OpenKeptChats, project: str) -> None:
        responses, chats = await open_chats()
        root = said(project, 0, "first")
        second = said(project, 1, "second", after=root)
        await save_all(responses, (root, second))
        await chats.change(project, of(root), {"pinned": True})
        await responses.delete(project, of(root))
        third = said(project, 2, "third", after=second)
        await responses.save(third)
        [chat] = await chats.listed(project, query()) or ()
        assert (chat.id, chat.title, chat.responses, chat.pinned) == (of(root), "second", 2, True)
        assert await chats.get(project, of(root), key_id="") == chat
        assert [each.parent for each in (await chats.turns(project, of(root))).turns] == [of(root), of(second)]

    async def test_another_version_of_a_first_message_is_in_its_chat(
        self, open_chats: OpenKeptChats, project: str
    ) -> None:
        responses, chats = await open_chats()
        root, edited, elsewhere, odd = (said(project, at, f"{at}") for at in range(4))
        for each, version in ((edited, of(root)), (elsewhere, new_id("resp")), (odd, "resp_\0")):
            each.response["metadata"] = {VERSION_OF: version}
        running = Turn(project, None, created_at=NOW + 4).begun(parent="")
        running.response["metadata"] = {VERSION_OF: of(edited)}
        await save_all(responses, (root, edited, elsewhere, odd))
        await responses.accept(running)
        assert set(names(await chats.listed(project, query()))) == {of(root), of(elsewhere), of(odd)}
        turns = (await chats.turns(project, of(root))).turns
        assert [(each.response["id"], each.parent) for each in turns] == [
            (of(root), None), (of(edited), None), (of(running), None),
        ]  # fmt: skip

    async def test_chats_of_the_playground_are_listed_by_themselves(
        self, open_chats: OpenKeptChats, project: str
    ) -> None:
        responses, chats = await open_chats()
        page = [said(project, at, f"page {at}") for at in (0, 2, 4)]
        api = [said(project, at, f"api {at}") for at in (1, 3, 5)]
        continued = said(project, 6, "by the API", after=page[0])  # does not move it in front of the page's others
        joined = said(project, 7, "by the page", after=api[1])
        for each in (*page, joined):
            each.response["metadata"] = {MADE_IN: PLAYGROUND}
        api[2].response["metadata"] = {MADE_IN: "elsewhere"}
        await save_all(responses, (*page, *api, continued, joined))
        of_page = [of(each) for each in (api[1], page[2], page[1], page[0])]
        assert names(await chats.listed(project, query(only_playground=True))) == of_page
        assert len(await chats.listed(project, query()) or ()) == 6
        await chats.change(project, of(api[0]), {"pinned": True})
        found: list[str] = []
        while some := names(
            await chats.listed(project, query(only_playground=True, limit=2, after=found[-1] if found else None))
        ):
            found += some
        assert found == [of(api[0]), *of_page]
        searched = await chats.listed(project, query(only_playground=True, search="api"))
        assert names(searched) == [of(api[0]), of(api[1]), of(page[0])]

    async def test_a_conversation_is_a_chat(self, open_chats: OpenKeptChats, project: str) -> None:
        responses, chats = await open_chats()
        conversation = new_id("conv")
        first, second = (
            replace(Turn(project, created_at=NOW + at).failed(), input_items=asked(f"{at}")) for at in (0, 1)
        )
        for each in (first, second):
            each.response["conversation"] = {"id": conversation}
            await responses.save(each)
        fork = replace(said(project, 2, "fork"), link=None)
        fork.response["previous_response_id"] = of(second)
        await responses.save(fork)
        edited = said(project, 3, "another first message")
        edited.response["metadata"] = {VERSION_OF: of(first)}
        await responses.save(edited)
        third = replace(Turn(project, created_at=NOW + 4).failed(), input_items=asked("4"))
        third.response["conversation"] = {"id": conversation}
        await responses.save(third)
        [chat] = await chats.listed(project, query()) or ()
        assert (chat.id, chat.title, chat.responses) == (conversation, "0", 5)
        turns = (await chats.turns(project, conversation)).turns
        assert [each.parent for each in turns] == [None, of(first), of(second), None, of(second)]
        assert await chats.get(project, conversation, key_id="") == chat

    async def test_legs_of_a_turn_are_in_its_chat(self, open_chats: OpenKeptChats, project: str) -> None:
        responses, chats = await open_chats()
        name = new_id("resp")
        first = Turn(project, created_at=NOW)
        await responses.accept(first.begun(public=PublicId(name, 1)))
        second = Turn(project, created_at=NOW + 1).begun(public=PublicId(name, 2), parent=first.response_id)
        second.response["previous_response_id"] = name
        await responses.accept(second)
        last = Turn(project, created_at=NOW + 2).begun(parent=of(second))
        last.response["previous_response_id"] = name
        await responses.accept(last)
        [chat] = await chats.listed(project, query()) or ()
        assert (chat.id, chat.responses) == (first.response_id, 3)
        assert await chats.get(project, name, key_id="") == chat
        turns = (await chats.turns(project, chat.id)).turns
        assert [each.parent for each in turns] == [None, first.response_id, of(second)]

    async def test_each_key_has_its_own(self, open_chats: OpenKeptChats, project: str) -> None:
        responses, chats = await open_chats()
        mine, other = said(project, 0, key="key_a"), said(project, 1, key="key_b")
        joined = said(project, 2, after=mine, key="key_b")
        await save_all(responses, (mine, other, joined))
        assert names(await chats.listed(project, query(key_id="key_a"))) == [of(mine)]
        assert names(await chats.listed(project, query(key_id="key_b"))) == [of(mine), of(other)]
        assert names(await chats.listed(project, query(key_id="key_c"))) == []
        assert names(await chats.listed(project, query())) == [of(mine), of(other)]
        found = await chats.get(project, of(other), key_id="key_a")
        assert found is not None
        assert not found.is_own

    async def test_pages_of_the_list(self, open_chats: OpenKeptChats, project: str) -> None:
        responses, chats = await open_chats()
        roots = [said(project, at) for at in (0, 1, 1, 2, 3)]
        await save_all(responses, roots)
        await responses.save(said(project, 9, after=roots[0]))  # the first one has the newest response now
        for each in (roots[3], roots[0]):
            await chats.change(project, of(each), {"pinned": True})
        same = sorted([of(roots[1]), of(roots[2])], reverse=True)
        ordered = [of(roots[0]), of(roots[3]), of(roots[4]), *same]
        assert names(await chats.listed(project, query())) == ordered
        for place, each in enumerate(ordered):
            assert names(await chats.listed(project, query(after=each))) == ordered[place + 1 :]
            assert names(await chats.listed(project, query(after=each, limit=1))) == ordered[place + 1 : place + 2]
        assert names(await chats.listed(project, query(limit=3))) == ordered[:3]

    async def test_what_people_set_goes_with_the_last_response(self, open_chats: OpenKeptChats, project: str) -> None:
        responses, chats = await open_chats()
        root = said(project, 0)
        second = said(project, 1, after=root)
        await save_all(responses, (root, second))
        await chats.change(project, of(root), {"title": "Türtles 🐢 %_", "title_from": "person"})
        await chats.change(project, of(root), {"pinned": True})
        [chat] = await chats.listed(project, query()) or ()
        assert (chat.title, chat.title_from, chat.pinned) == ("Türtles 🐢 %_", "person", True)
        await chats.change(project, of(root), {"title": "", "title_from": ""})
        [chat] = await chats.listed(project, query()) or ()
        assert (chat.title, chat.title_from, chat.pinned) == ("Hello", "words", True)
        for each in (root, second):
            await responses.delete(project, of(each))
        assert names(await chats.listed(project, query())) == []
        await chats.change(project, of(root), {"pinned": True})  # too late, and no error
        assert names(await chats.listed(project, query())) == []

    async def test_as_many_are_pinned_as_may_be(self, open_chats: OpenKeptChats, project: str) -> None:
        responses, chats = await open_chats()
        roots = [said(project, at) for at in range(MAX_PINNED + 1)]
        await save_all(responses, roots)
        for each in roots[1:]:
            await chats.change(project, of(each), {"pinned": True})
        with pytest.raises(TooManyPinned):
            await chats.change(project, of(roots[0]), {"pinned": True})
        await chats.change(project, of(roots[1]), {"pinned": True})  # it is pinned already
        await chats.change(project, of(roots[1]), {"pinned": False})
        await chats.change(project, of(roots[0]), {"pinned": True})
        assert of(roots[1]) == names(await chats.listed(project, query(limit=200)))[-1]

    async def test_what_is_past_its_time_is_not_found(self, open_chats: OpenKeptChats, project: str) -> None:
        clock = Clock(NOW)
        responses, chats = await open_chats(settings=RetentionSettings(responses_store_ttl=60.0), now=clock)
        old = said(project, 0, "old")
        young = said(project, 30, "young", after=old)
        lone = said(project, 1, "lone")
        await save_all(responses, (old, young, lone))
        clock.now = NOW + 70.0
        [chat] = await chats.listed(project, query()) or ()
        assert (chat.id, chat.title, chat.responses, chat.created_at) == (of(old), "young", 1, NOW + 30)
        assert await chats.get(project, of(lone), key_id="") is None
        assert await chats.responses(project, of(old)) == [of(young)]

    async def test_titles_of_all_kinds_of_input(self, open_chats: OpenKeptChats, project: str) -> None:
        responses, chats = await open_chats()
        image: JsonObject = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 200_000}
        words: JsonObject = {"type": "input_text", "text": 'A "big" \n picture: é'}
        kinds: list[tuple[tuple[JsonObject, ...], str]] = [
            (({"type": "message", "role": "user", "content": UNTAMED + "x" * 100},), " ".join(UNTAMED.split())[:40]),
            (({"type": "message", "role": "user", "content": [image]},), ""),
            (({"type": "message", "role": "user", "content": [words, image]},), 'A "big" picture: é'),
            (({"type": "function_call_output", "call_id": "c", "output": "18"},), "function call output"),
            ((), ""),
        ]
        for at, (items, _) in enumerate(kinds):
            await responses.save(replace(said(project, at), input_items=items))
        titles = [each.title for each in await chats.listed(project, query()) or ()][::-1]
        for title, (_, expected) in zip(titles, kinds, strict=True):
            assert title[:40] == expected or (not expected and title in ("", "an image")), title

    async def test_search(self, open_chats: OpenKeptChats, project: str) -> None:
        responses, chats = await open_chats()
        texts = ['100% "sure", C:\\new\nline', "Die Größe der Schildkröte", "ΣΊΣΥΦΟΣ 🐢", "plain_words"]
        made = [said(project, at, text, key="key_a") for at, text in enumerate(texts)]
        await save_all(responses, made)
        answered = said(project, 9, "?", after=made[3], answer="It was the TORTOISE.")
        await responses.save(answered)
        await chats.change(project, of(made[0]), {"title": "Ünique", "title_from": "person"})

        async def found(text: str, **fields: Any) -> list[int]:
            listed = names(await chats.listed(project, query(search=text, **fields)))
            return [list(map(of, made)).index(each) for each in listed]

        for text, expected in [
            ("100%", [0]), ('"SURE"', [0]), ("c:\\new", [0]), ("\nline", [0]), ("GRÖSSE", [1]), ("grosse", []),
            ("größe", [1]), ("GRÖẞE", [1]), ("schildkro\u0308te", [1]), ("σίσυφος", [2]), ("🐢", [2]),
            ("plain_words", [3]), ("plainxwords", []), ("tortoise", [3]), ("ünique", [0]), ("%", [0]), ("_", [3]),
            ("input_text", []), ("e", [3, 1, 0]), ("nothing of that", []), ("\ud800", []), ("\0", []),
        ]:  # fmt: skip
            assert await found(text) == expected, text
        assert await found("e", limit=2) == [3, 1]
        assert await found("e", limit=2, after=of(made[1])) == [0]
        await chats.change(project, of(made[0]), {"pinned": True})
        assert await found("e") == [0, 3, 1]
        assert await found("e", key_id="key_a") == [0, 1], "in what the key has asked for"
        assert await found("e", key_id="key_b") == []

    @pytest.mark.parametrize("name", IDS_NOBODY_MADE)
    async def test_ids_nobody_made(self, open_chats: OpenKeptChats, project: str, name: str) -> None:
        responses, chats = await open_chats()
        await responses.save(said(project, 0))
        assert await chats.get(project, name, key_id="") is None

    @pytest.mark.parametrize(("bound", "most", "read"), [("MAX_TURNS", 2, 2), ("MAX_TURN_BYTES", 1, 1)])
    async def test_of_a_long_chat_the_newest_turns_are_read(
        self,
        open_chats: OpenKeptChats,
        project: str,
        monkeypatch: pytest.MonkeyPatch,
        bound: str,
        most: int,
        read: int,
    ) -> None:
        responses, chats = await open_chats()
        made = [said(project, 0)]
        for at in (1, 2):
            made.append(said(project, at, after=made[-1]))
        await save_all(responses, made)
        assert not (await chats.turns(project, of(made[0]))).more
        monkeypatch.setattr(chat_store, bound, most)
        turns = await chats.turns(project, of(made[0]))
        assert turns.more
        assert [each.response["id"] for each in turns.turns] == [of(each) for each in made[-read:]]

    async def test_what_an_older_version_kept_finds_its_chat(
        self, open_chats: OpenKeptChats, project: str, alias: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        responses, chats = await open_chats()
        gone = said(project, 0, "gone")
        root = said(project, 1, "root", after=gone)
        fork, other = said(project, 2, "fork", after=root), said(project, 3, "other", after=root)
        failed = replace(Turn(project, fork.link, created_at=NOW + 4).failed(), input_items=asked("failed"))
        lone = said(project, 5, "lone")
        talk = replace(said(project, 6, "talk"), link=None)
        talk.response["conversation"] = {"id": new_id("conv")}
        await save_all(responses, (gone, root, fork, other, failed, lone, talk))
        name = new_id("resp")
        leg = Turn(project, created_at=NOW + 7)
        await responses.accept(leg.begun(public=PublicId(name, 1)))
        next_leg = Turn(project, created_at=NOW + 8).begun(parent=leg.response_id)
        next_leg.response["previous_response_id"] = name
        await responses.accept(next_leg)
        await responses.delete(project, of(gone))
        before = await chats.listed(project, query())
        assert names(before) == [leg.response_id, talk.response["conversation"]["id"], of(lone), of(gone)]
        kept = Response.objects.using(alias).filter(project=project)
        await asyncio.to_thread(within, alias, lambda _: kept.update(chat_id=""))
        later = said(project, 9, "later", after=other)  # it comes before the others have found their chats
        await responses.save(later)
        assert names(await chats.listed(project, query())) == [of(gone)]
        monkeypatch.setattr(chat_store, "ADOPTED_AT_ONCE", 3)
        while await chats.adopt():
            pass
        await responses.delete(project, of(later))
        assert await chats.listed(project, query()) == before

    async def test_the_last_two_of_a_chat_are_deleted_at_once(
        self, open_chats: OpenKeptChats, project: str, alias: str, url: str
    ) -> None:
        """Neither transaction sees that the other takes the other response: no title may be left."""
        responses, chats = await open_chats()
        first = said(project, 0)
        second = said(project, 1, after=first)
        await save_all(responses, (first, second))
        await chats.change(project, of(first), {"title": "Nobody is to find this"})
        one = await Held(alias, lambda db: remove(db, [of(first)])).acted()
        other = asyncio.create_task(responses.delete(project, of(second)))
        await waits_for_a_lock(alias, url)
        await one.commit()
        assert await other
        assert await asyncio.to_thread(rows, alias, ChatLabel, project=project) == []

    async def test_a_chat_is_named_while_its_last_response_is_deleted(
        self, open_chats: OpenKeptChats, project: str, alias: str, url: str
    ) -> None:
        responses, chats = await open_chats()
        only = said(project, 0)
        await responses.save(only)
        deleting = await Held(alias, lambda db: remove(db, [of(only)])).acted()
        naming = asyncio.create_task(chats.change(project, of(only), {"title": "Nobody is to find this"}))
        await waits_for_a_lock(alias, url)
        await deleting.commit()
        await naming
        assert await asyncio.to_thread(rows, alias, ChatLabel, project=project) == []
