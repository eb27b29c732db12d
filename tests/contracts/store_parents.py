"""What continues a stored response is accepted as long as that is known, in every store."""

import asyncio
from dataclasses import replace

import pytest

from responses_app.stores.base import BaseResponseStore, ParentGone, RetentionSettings
from tests.contracts.store import IDS_NOBODY_MADE, Turn, exchange
from tests.contracts.store_life import NOW, OpenStore, forget, status
from tests.kit.clock import Clock


class ParentContract:
    """Give a subclass the fixtures `store`, a started one, and `open_store`, which opens one with options."""

    async def test_what_continues_a_response_is_accepted_while_that_is_there(self, store: BaseResponseStore) -> None:
        parent = Turn().saying(*exchange(0))
        await store.save(parent)
        named = {"parent": str(parent.response["id"])}
        early, late, again = (replace(Turn().after(parent).begun(), **named) for _ in range(3))
        await store.accept(early)
        await store.accept(again)
        await forget(store, parent)
        await store.accept(again)  # its first acceptance may have been committed without our hearing of it
        assert await status(store, again) == "in_progress"
        alone = Turn(parent.project).begun()
        refused, _ = await asyncio.gather(store.accept(late), store.accept(alone), return_exceptions=True)
        assert isinstance(refused, ParentGone)
        assert await status(store, late) is None
        assert await status(store, alone) == "in_progress", "its neighbour is kept"
        other = replace(Turn().begun(), parent=str(early.response["id"]))
        with pytest.raises(ParentGone):
            await store.accept(other)  # of another project

    async def test_it_says_whether_there_is_a_response(self, store: BaseResponseStore) -> None:
        begun = Turn().begun()
        response_id = str(begun.response["id"])
        assert not await store.knows(begun.project, response_id)
        await store.accept(begun)
        assert await store.knows(begun.project, response_id)
        assert not await store.knows("another", response_id)
        assert not await store.knows(begun.project, IDS_NOBODY_MADE[0])
        await forget(store, begun)
        assert not await store.knows(begun.project, response_id)

    async def test_an_expired_response_is_not_continued(self, open_store: OpenStore) -> None:
        clock = Clock(NOW)
        store = await open_store(settings=RetentionSettings(responses_store_ttl=60.0), now=clock)
        parent = Turn(created_at=NOW).saying(*exchange(0))
        await store.save(parent)
        for seconds in (59.9, 60.0):
            clock.now = NOW + seconds
            child = replace(Turn(parent.project, parent.link, created_at=NOW).begun(), parent=parent.response["id"])
            assert await store.knows(parent.project, str(parent.response["id"])) is (seconds < 60.0)
            if seconds < 60.0:
                await store.accept(child)
            else:
                with pytest.raises(ParentGone):
                    await store.accept(child)
