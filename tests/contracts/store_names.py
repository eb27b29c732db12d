"""Public ids in every store: whose they are, what they stand for, and when they are free again."""

import asyncio
from dataclasses import replace

import pytest

from responses_app.protocol.ids import Leg, PublicId
from responses_app.stores.base import AcceptedResponse, BaseResponseStore, NameTaken, ParentGone
from tests.contracts.store import IDS_NOBODY_MADE, Turn, call, exchange, new_id, sampled_text
from tests.contracts.store_life import forget, is_unknown, status


def called(turn: Turn, name: str, leg: int = 1, **fields: object) -> AcceptedResponse:
    """Return a response as it is accepted under a public id."""
    return replace(turn.begun(), public=PublicId(name, leg), **fields)  # type: ignore[arg-type]


def leg_of(accepted: AcceptedResponse) -> Leg:
    assert accepted.public is not None
    return Leg(str(accepted.response["id"]), accepted.public.leg)


class NamesContract:
    """Give a subclass the fixture `store`, a started one."""

    async def test_a_public_id_stands_for_its_newest_leg(self, store: BaseResponseStore) -> None:
        project, name = new_id("proj"), new_id("resp")
        legs = [called(Turn(project), name, number) for number in (1, 2, 10)]
        assert await store.newest_leg(project, name) is None
        for leg in legs:
            await store.accept(leg)
            assert await store.newest_leg(project, name) == leg_of(leg)
        assert await store.newest_leg("another", name) is None
        assert await store.response(project, name) is None, "it is not the response's own id"
        for leg, left in zip(reversed(legs), (legs[1], legs[0], None), strict=True):
            await forget(store, leg)
            assert await store.newest_leg(project, name) == (left and leg_of(left))

    async def test_the_legs_of_a_turn_say_which_of_them_can_be_continued_and_what_that_has_to_answer(
        self, store: BaseResponseStore
    ) -> None:
        first = Turn()
        project, name = first.project, new_id("resp")
        ended = first.saying(*exchange(0), calls=[call("f", "call_1"), call("g", "call_2")])
        second, third = first.after(ended), Turn(project)
        ends = ((first, ended), (second, second.saying(*exchange(1))), (third, third.failed()))
        for number, (turn, end) in enumerate(ends, start=1):
            await store.accept(called(turn, name, number))
            await store.save(replace(end, accepted=True))
        running = Turn(project)
        await store.accept(called(running, name, 4))
        assert [
            (leg.response_id, leg.number, leg.status, leg.awaited if leg.awaited is None else set(leg.awaited))
            for leg in await store.legs(project, name)
        ] == [
            (running.response_id, 4, "in_progress", None),
            (third.response_id, 3, "failed", None),
            (second.response_id, 2, "completed", {"call_1", "call_2"}),
            (first.response_id, 1, "completed", {"call_1", "call_2"}),
        ]
        assert not await store.legs("another", name)
        assert not await store.legs(project, first.response_id), "it is not a public id"

    async def test_a_turn_is_forgotten_with_all_its_legs(self, store: BaseResponseStore) -> None:
        first = Turn()
        project, name = first.project, new_id("resp")
        ended = first.saying(*exchange(0), sampled=[sampled_text("Yes.")])
        await store.accept(called(first, name))
        await store.save(replace(ended, accepted=True))
        running = called(first.after(ended), name, 2, parent=first.response_id)
        beside = called(Turn(project), new_id("resp"))
        for each in (running, beside):
            await store.accept(each)
        assert not await store.delete_legs("another", name)
        assert set(await store.delete_legs(project, name)) == {first.response_id, running.response["id"]}
        assert await is_unknown(store, ended)
        assert await status(store, running) is None
        assert not await store.legs(project, name)
        assert not await store.delete_legs(project, name)
        assert await status(store, beside) == "in_progress"
        with pytest.raises(ParentGone):
            await store.accept(called(first.after(ended), name, 3, parent=first.response_id))
        await store.accept(called(Turn(project), name))

    async def test_who_comes_second_is_refused_and_not_kept(self, store: BaseResponseStore) -> None:
        project, name = new_id("proj"), new_id("name")
        first, second = called(Turn(project), name), called(Turn(project), name)
        await store.accept(first)
        with pytest.raises(NameTaken):
            await store.accept(second)
        assert await status(store, second) is None
        assert await store.newest_leg(project, name) == leg_of(first)
        await store.accept(first)  # its first acceptance may have been committed without our hearing of it
        assert await status(store, first) == "in_progress"
        await store.accept(called(Turn(), name))  # another project's

    async def test_of_many_at_once_one_gets_it(self, store: BaseResponseStore) -> None:
        project, name = new_id("proj"), new_id("name")
        wanted = [called(Turn(project), name) for _ in range(10)]
        others = [Turn(project).begun() for _ in range(10)]
        answers = await asyncio.gather(*map(store.accept, [*wanted, *others]), return_exceptions=True)
        assert [type(answer) for answer in answers if answer is not None] == [NameTaken] * 9
        kept = [each for each in wanted if await status(store, each)]
        assert [leg_of(each) for each in kept] == [await store.newest_leg(project, name)]
        assert [await status(store, each) for each in others] == ["in_progress"] * 10

    async def test_what_is_not_accepted_takes_no_name(self, store: BaseResponseStore) -> None:
        project, name = new_id("proj"), new_id("name")
        with pytest.raises(ParentGone):
            await store.accept(called(Turn(project), name, parent="resp_unknown"))
        await store.accept(called(Turn(project), name))

    async def test_it_stays_with_a_response_that_ends_and_is_free_when_that_is_deleted(
        self, store: BaseResponseStore
    ) -> None:
        turn, name = Turn(), new_id("name")
        accepted = called(turn, name)
        await store.accept(accepted)
        await store.save(replace(turn.saying(*exchange(0)), accepted=True))
        assert await store.newest_leg(turn.project, name) == leg_of(accepted)
        with pytest.raises(NameTaken):
            await store.accept(called(Turn(turn.project), name))
        await forget(store, accepted)
        await store.accept(called(Turn(turn.project), name))

    @pytest.mark.parametrize("name", IDS_NOBODY_MADE)
    async def test_an_id_that_nobody_made_is_nobodys(self, store: BaseResponseStore, name: str) -> None:
        assert await store.newest_leg("project", name) is None
        assert not await store.legs("project", name)
        assert not await store.delete_legs("project", name)
