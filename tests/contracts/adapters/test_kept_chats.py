"""Kept chats on SQLite and on PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from responses_app.models import Response
from responses_app.models.chats import ChatLabel
from responses_app.protocol.ids import PublicId
from responses_app.stores.base import RetentionSettings
from responses_app.stores.database.responses import kept_chats
from responses_app.stores.database.responses.kept_chats import DatabaseKeptChats
from responses_app.stores.database.responses.removal import remove
from tests.contracts.adapters.stores import Held, OnBothCase, rows, waits_for_a_lock, within
from tests.contracts.kept_chats import KeptChatsContract, OpenKeptChats, asked, names, of, query, said
from tests.contracts.store import Turn, new_id
from tests.contracts.store_life import NOW, OpenStore


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
        for each in made:
            await responses.save(each)
        assert not (await chats.turns(project, of(made[0]))).more
        monkeypatch.setattr(kept_chats, bound, most)
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
        for each in (gone, root, fork, other, failed, lone, talk):
            await responses.save(each)
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
        monkeypatch.setattr(kept_chats, "ADOPTED_AT_ONCE", 3)
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
        for each in (first, second):
            await responses.save(each)
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
