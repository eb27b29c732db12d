"""The logs of responses that run, in every store: who appends to them, who reads on, and what becomes of them."""

import asyncio
import tracemalloc
from dataclasses import replace

import pytest

from responses_app.stores.base import Appended, BaseResponseStore, Claim, LogAppend, LogNews
from tests.contracts.store import GONE, Turn, exchange, present
from tests.contracts.store_life import reclaimed

MIB = 1024 * 1024
LOG = b"The log of a response, as bytes."


def piece(turn: Turn, position: int, data: bytes, claim: Claim = GONE) -> LogAppend:
    """Return what is appended to a turn's log."""
    return LogAppend(response_id=turn.response_id, claim=claim, position=position, data=data)


async def log_of(store: BaseResponseStore, turn: Turn) -> bytes:
    """Return the whole log."""
    stored = present(await store.log(turn.project, turn.response_id))
    return stored.data


class LogsContract:
    """Give a subclass the fixture `store`, a started one."""

    async def test_what_is_appended_is_read_from_any_position(self, store: BaseResponseStore) -> None:
        turn = Turn()
        await store.accept(turn.begun())
        for start in range(0, len(LOG), 5):
            assert await store.append([piece(turn, start, LOG[start : start + 5])]) == Appended()
        assert await log_of(store, turn) == LOG
        for position in range(len(LOG) + 1):
            news = await store.log_since(turn.project, turn.response_id, position)
            assert news == LogNews("in_progress", LOG[position:])
        assert await store.log_since("another", turn.response_id, 0) is None
        assert await store.log_since(turn.project, "resp_unknown", 0) is None

    async def test_a_long_response_is_read_once_and_not_with_each_part_of_its_log(
        self, store: BaseResponseStore
    ) -> None:
        turn, asked = Turn(), "x" * MIB
        begun = turn.begun()
        await store.accept(replace(begun, response={**begun.response, "instructions": asked}))
        await store.append([piece(turn, start, b"x") for start in range(100)])
        tracemalloc.start()
        try:
            stored = await store.log(turn.project, turn.response_id)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert stored is not None
        assert (stored.response["instructions"], stored.data) == (asked, b"x" * 100)
        assert peak < 20 * MIB

    async def test_an_append_whose_answer_got_lost_is_replaced_by_the_next(self, store: BaseResponseStore) -> None:
        turn = Turn()
        await store.accept(turn.begun())
        await store.append([piece(turn, 0, LOG[:8])])
        await store.append([piece(turn, 8, LOG[8:12])])  # was kept, and nobody knows
        await store.append([piece(turn, 8, LOG[8:20])])
        assert await store.append([piece(turn, 8, LOG[8:16])]) == Appended()  # comes late: it had been given up
        assert await log_of(store, turn) == LOG[:20]
        news = await store.log_since(turn.project, turn.response_id, 12)
        assert news == LogNews("in_progress", LOG[12:20])

    async def test_many_at_once(self, store: BaseResponseStore) -> None:
        turns = [Turn() for _ in range(30)]
        for turn in turns:
            await store.accept(turn.begun())
        for start in (0, 10, 20):
            assert await store.append([piece(turn, start, LOG[start : start + 10]) for turn in turns]) == Appended()
        assert [await log_of(store, turn) for turn in turns] == [LOG[:30]] * 30

    async def test_what_is_lost_or_gone_is_told_and_the_others_are_kept(self, store: BaseResponseStore) -> None:
        lost, gone, ended, mine = (Turn() for _ in range(4))
        await store.accept(lost.begun("queued"))
        await store.append([piece(lost, 0, LOG[:4])])
        (taken,), _ = await reclaimed(store, "worker_heir", lost.project)
        for turn in (gone, ended, mine):
            await store.accept(turn.begun())
        assert await store.delete(gone.project, gone.response_id)
        end = replace(ended.saying(*exchange(1)), accepted=True, log=b"whole")
        await store.save(end)
        appended = await store.append(
            [piece(turn, 4, b"never") for turn in (lost, gone, ended)] + [piece(mine, 0, LOG)]
        )
        assert appended.lost == {lost.response_id}
        assert appended.gone == {gone.response_id}
        assert [await log_of(store, turn) for turn in (lost, ended, mine)] == [LOG[:4], b"whole", LOG]
        assert await store.append([piece(lost, 4, LOG[4:], taken.claim)]) == Appended()
        assert await log_of(store, lost) == LOG

    async def test_an_append_of_nothing_tells_whose_a_response_is(self, store: BaseResponseStore) -> None:
        mine, lost, gone = (Turn() for _ in range(3))
        await store.accept(lost.begun("queued"))
        await store.append([piece(lost, 0, LOG)])
        await reclaimed(store, "worker_heir", lost.project)
        for turn in (mine, gone):
            await store.accept(turn.begun())
        await store.append([piece(mine, 0, LOG[:10])])
        assert await store.delete(gone.project, gone.response_id)
        appended = await store.append([piece(mine, 10, b""), piece(lost, len(LOG), b""), piece(gone, 0, b"")])
        assert (appended.lost, appended.gone) == ({lost.response_id}, {gone.response_id})
        assert await store.append([piece(mine, 10, b"")]) == Appended(), "twice is not an error"
        assert await store.append([piece(mine, 10, LOG[10:])]) == Appended()
        assert [await log_of(store, turn) for turn in (mine, lost)] == [LOG, LOG]

    async def test_the_end_brings_the_whole_log(self, store: BaseResponseStore) -> None:
        turn = Turn()
        await store.accept(turn.begun())
        await store.append([piece(turn, 0, LOG[:10])])
        await store.append([piece(turn, 10, LOG[10:20])])
        await store.save(replace(turn.saying(*exchange(1)), accepted=True, log=LOG))
        assert await log_of(store, turn) == LOG
        assert await store.log_since(turn.project, turn.response_id, 20) == LogNews("completed", LOG[20:])
        assert await store.delete(turn.project, turn.response_id)
        assert await store.log(turn.project, turn.response_id) is None

    async def test_appends_and_the_end_at_once_keep_their_order(self, store: BaseResponseStore) -> None:
        turns = [Turn() for _ in range(20)]
        for turn in turns:
            await store.accept(turn.begun())
        done = await asyncio.gather(
            *(store.append([piece(turn, 0, LOG[:5])]) for turn in turns),
            *(store.save(replace(turn.saying(*exchange(1)), accepted=True, log=LOG)) for turn in turns),
        )
        assert done[:20] == [Appended()] * 20
        assert [await log_of(store, turn) for turn in turns] == [LOG] * 20

    @pytest.mark.parametrize("status", ["queued", "in_progress"])
    async def test_who_claims_it_gets_its_log(self, store: BaseResponseStore, status: str) -> None:
        turn = Turn()
        begun = turn.begun("queued")
        await store.accept(begun)
        if status == "in_progress":
            await store.begin(turn.project, turn.response_id, GONE)
        await store.append([piece(turn, 0, LOG[:7])])
        await store.append([piece(turn, 7, LOG[7:])])
        (taken,), _ = await reclaimed(store, "worker_heir", turn.project)
        assert (taken.log, taken.request, taken.response["status"]) == (LOG, begun.request, status)

    async def test_a_foreground_response_with_a_log_is_claimed_to_be_ended_behind_it(
        self, store: BaseResponseStore
    ) -> None:
        with_log, without = Turn(), Turn()
        for turn in (with_log, without):
            await store.accept(turn.begun())
        await store.append([piece(with_log, 0, LOG)])
        (taken,), _ = await reclaimed(store, "worker_heir", with_log.project)
        assert (taken.log, taken.request) == (LOG, None)
        response = present(await store.response(without.project, without.response_id))
        assert response["status"] == "failed"

    async def test_given_back_it_keeps_its_log_as_it_is(self, store: BaseResponseStore) -> None:
        turn = Turn()
        await store.accept(turn.begun("queued"))
        await store.append([piece(turn, 0, LOG)])
        await store.give_back(turn.begun("queued", again=True))
        await store.append([piece(turn, len(LOG), b"Never.")])  # by the claim that was given back
        await store.begin(turn.project, turn.response_id, GONE)
        (taken,), _ = await reclaimed(store, "worker_heir", turn.project)
        assert (taken.log, taken.response["status"]) == (LOG, "queued")

    async def test_orphans_are_seen_before_they_are_claimed(self, store: BaseResponseStore) -> None:
        heir = "worker_who_looks"
        await reclaimed(store, heir, "")  # whatever other tests left
        turn = Turn()
        await store.accept(turn.begun("queued"))
        assert await store.has_orphans(heir, dead_before=0.0)
        await reclaimed(store, heir, turn.project)
        assert not await store.has_orphans(heir, dead_before=0.0)
