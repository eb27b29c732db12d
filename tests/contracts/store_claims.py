"""Who may write of a response, in every store: the worker that claimed it last, until it has ended."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from responses_app.limits.suspects import Stage
from responses_app.stores.base import BaseResponseStore, Claim, ClaimLost, WorkerState
from tests.contracts.store import GONE, Turn, exchange, new_id, same_chain, sampled_text
from tests.contracts.store_life import LEASE, NOW, OpenStore, reclaimed, seen, status
from tests.contracts.store_logs import piece
from tests.kit.clock import Clock


def every_step(store: BaseResponseStore, turn: Turn, claim: Claim = GONE) -> list[Callable[[], Awaitable[None]]]:
    """Return all that the first worker may want to write of a response."""
    stored = replace(turn.saying(*exchange(7), sampled=[sampled_text("Never.")]), claim=claim)
    return [
        lambda: store.accept(turn.begun(claim=claim)),
        lambda: store.accept(turn.begun("queued", again=True, claim=claim)),
        lambda: store.begin(turn.project, turn.response_id, claim),
        lambda: store.give_back(turn.begun("queued", again=True, claim=claim)),
        lambda: store.save(replace(stored, accepted=True)),
        lambda: store.save(stored),
    ]


class ClaimsContract:
    """Give a subclass the fixtures `store`, a started one, and `open_store`, which opens one with options."""

    @pytest.mark.parametrize("state", ["queued", "in_progress"])
    async def test_a_worker_that_was_taken_for_dead_changes_nothing(self, store: BaseResponseStore, state: str) -> None:
        turn = Turn()
        await store.accept(turn.begun(state))
        await reclaimed(store, "worker_heir", turn.project)
        decided = await store.response(turn.project, turn.response_id)
        assert decided is not None
        assert decided["status"] == ("queued" if state == "queued" else "failed")
        for step in every_step(store, turn):
            with pytest.raises(ClaimLost):
                await step()
        assert await store.response(turn.project, turn.response_id) == decided
        assert await store.chain(turn.project, turn.response_id) is None
        assert await store.lost({turn.response_id: GONE, "resp_unknown": GONE}) == [turn.response_id]
        assert await store.lost({turn.response_id: Claim("worker_heir", 2)}) == []

    async def test_its_first_worker_changes_nothing_by_its_first_claim_when_it_has_claimed_it_again(
        self, store: BaseResponseStore
    ) -> None:
        turn, first = Turn(), Claim(new_id("worker"))
        await store.accept(turn.begun("queued", claim=first))
        (taken,), _ = await reclaimed(store, "worker_heir", turn.project)
        await store.give_back(taken)
        (again,), _ = await reclaimed(store, first.worker, turn.project)
        assert again.claim == Claim(first.worker, 3)
        for step in every_step(store, turn, first):
            with pytest.raises(ClaimLost):
                await step()
        assert (await store.append([piece(turn, 0, b"Never.", first)])).lost == {turn.response_id}
        assert await status(store, turn.begun()) == "queued"

    async def test_one_that_was_lost_fails_none_of_those_beside_it(self, store: BaseResponseStore) -> None:
        turns = [Turn() for _ in range(5)]
        for turn in turns:
            await store.accept(turn.begun("queued"))
        await reclaimed(store, "worker_heir", turns[2].project)  # it takes them all
        mine = [Turn() for _ in range(5)]
        for turn in mine:
            await store.accept(turn.begun("queued"))
        both = [turn for pair in zip(turns, mine, strict=True) for turn in pair]
        begun = [store.begin(turn.project, turn.response_id, GONE) for turn in both]
        saved = [store.save(replace(turn.saying(*exchange(1)), accepted=True)) for turn in both]
        done = await asyncio.gather(*begun, *saved, return_exceptions=True)
        assert [isinstance(each, ClaimLost) for each in done] == [True, False] * 10
        assert [await status(store, turn.begun()) for turn in both] == ["queued", "completed"] * 5

    async def test_what_heirs_have_ended_stays_as_it_is(self, store: BaseResponseStore) -> None:
        turn = Turn()
        await store.accept(turn.begun("queued"))
        (taken,), _ = await reclaimed(store, "worker_heir", turn.project)
        stored = replace(turn.saying(*exchange(1)), accepted=True, claim=taken.claim)
        await store.save(stored)
        for step in every_step(store, turn):
            with pytest.raises(ClaimLost):
                await step()
        assert await seen(store, stored) == stored.response
        assert await same_chain(store, stored)

    async def test_its_own_worker_ends_it_once(self, store: BaseResponseStore) -> None:
        """Once more is not an error: the answer to a commit may have been lost."""
        turn = Turn()
        await store.accept(turn.begun())
        first = replace(turn.saying(*exchange(1)), accepted=True)
        for stored in (first, replace(turn.failed(), accepted=True), turn.failed()):
            await store.save(stored)
            assert await seen(store, first) == first.response
        assert await same_chain(store, first)

    async def test_one_that_was_given_back_is_anybodys(self, store: BaseResponseStore) -> None:
        turn = Turn()
        await store.accept(turn.begun("queued"))
        for epoch in (2, 3, 4):
            (taken,), _ = await reclaimed(store, f"worker_{epoch}", turn.project)
            assert taken.claim == Claim(f"worker_{epoch}", epoch)
            await store.give_back(taken)

    async def test_a_claim_leaves_out_a_response_given_back_meanwhile(self, store: BaseResponseStore) -> None:
        turn = Turn()
        await store.accept(turn.begun("queued"))
        (taken,), _ = await reclaimed(store, "worker_stops", turn.project)
        await store.give_back(taken)
        assert (await reclaimed(store, "worker_stops", turn.project, turn.response_id))[0] == []
        ((again,), _) = await reclaimed(store, "worker_heir", turn.project)
        assert again.claim == Claim("worker_heir", 3)

    async def test_what_was_taken_over_and_got_lost_on_the_way_is_given_again(self, store: BaseResponseStore) -> None:
        turn = Turn()
        await store.accept(turn.begun("queued"))
        (taken,), _ = await reclaimed(store, "worker_heir", turn.project)
        for known, given in (((), [taken]), ([turn.response_id], [])):
            orphans = await store.reclaim("worker_heir", dead_before=0.0, known=known)
            assert [each for each in orphans.claimed if each.project == turn.project] == given

    @pytest.mark.parametrize(
        ("before", "then"),
        [
            (None, Stage.INNOCENT),
            (Stage.INNOCENT, Stage.SUSPECT),
            (Stage.SUSPECT, Stage.SUSPECT),
            (Stage.PASSED, Stage.CONDEMNED),
            (Stage.ON_TRIAL, Stage.CONDEMNED),
            (Stage.CONDEMNED, Stage.CONDEMNED),
        ],
        ids=["only waited", "ran", "waited for its trial", "passed", "on trial", "condemned"],
    )
    async def test_what_is_thought_of_one_whose_worker_died(
        self, store: BaseResponseStore, before: Stage | None, then: Stage
    ) -> None:
        turn, claim = Turn(), Claim(new_id("worker"))
        await store.accept(turn.begun("queued", claim=claim, request_name="ab" * 16))
        if before is not None:
            await store.begin(turn.project, turn.response_id, claim)
            await store.suspect(turn.project, turn.response_id, claim, before)
        (taken,), _ = await reclaimed(store, new_id("worker"), turn.project)
        assert (taken.suspicion, taken.request_name) == (then, "ab" * 16)
        await store.give_back(taken)
        (again,), _ = await reclaimed(store, new_id("worker"), turn.project)
        assert again.suspicion is then, "one that stops takes nobody with it"

    async def test_one_on_trial_takes_the_blame_for_those_beside_it_alone(self, store: BaseResponseStore) -> None:
        project, claim = new_id("proj"), Claim(new_id("worker"))
        stages = (Stage.ON_TRIAL, Stage.PASSED, Stage.INNOCENT, Stage.SUSPECT)
        left = [(Turn(project), claim, stage) for stage in stages]
        left.append((Turn(project), Claim(new_id("worker")), Stage.PASSED))  # another worker's death is another
        for turn, owner, stage in left:
            await store.accept(turn.begun("queued", claim=owner))
            await store.begin(project, turn.response_id, owner)
            await store.suspect(project, turn.response_id, owner, stage)
        taken, _ = await reclaimed(store, new_id("worker"), project)
        found = {str(each.response["id"]): each.suspicion for each in taken}
        assert [found[turn.response_id] for turn, _, _ in left] == [
            *(Stage.CONDEMNED, Stage.SUSPECT, Stage.SUSPECT, Stage.SUSPECT, Stage.CONDEMNED)
        ]

    async def test_nothing_is_thought_of_one_by_who_has_lost_it(self, store: BaseResponseStore) -> None:
        turn = Turn()
        await store.accept(turn.begun("queued"))
        await reclaimed(store, "worker_heir", turn.project)
        with pytest.raises(ClaimLost):
            await store.suspect(turn.project, turn.response_id, GONE, Stage.ON_TRIAL)

    # --- clocks ---

    async def test_a_worker_whose_clock_was_ahead_is_dead_a_lease_later(self, open_store: OpenStore) -> None:
        clock = Clock(NOW)
        store = await open_store(now=clock)
        project, dead, heir = (new_id(prefix) for prefix in ("proj", "worker", "worker"))
        clock.now = NOW + 1e6
        await store.beat(WorkerState(id=dead, started_at=NOW))
        await store.accept(Turn(project).begun("queued", claim=Claim(dead)))
        clock.now = NOW
        assert (await reclaimed(store, heir, project))[0] == []
        clock.now = NOW + LEASE - 1
        assert (await reclaimed(store, heir, project))[0] == []
        clock.now = NOW + LEASE
        assert len((await reclaimed(store, heir, project))[0]) == 1

    async def test_the_time_of_a_beat_is_now(self, store: BaseResponseStore) -> None:
        before = time.time()
        heard = await store.beat(WorkerState(id=new_id("worker"), started_at=NOW))
        assert before - 0.1 <= heard <= time.time() + 0.1
