"""How responses come and go in every store: accepted, begun, saved, read, deleted, expired, reclaimed, purged."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from itertools import count

import pytest

from responses_app.protocol.errors import SERVER_STOPPED, JsonObject
from responses_app.protocol.items.items import SampledMessage
from responses_app.stores.base import (
    AcceptedResponse,
    BaseResponseStore,
    Claim,
    ClaimLost,
    Orphans,
    Purged,
    RetentionSettings,
    StoredResponse,
    WorkerState,
)
from tests.contracts.store import (
    GONE,
    IDS_NOBODY_MADE,
    INPUT,
    Turn,
    as_output,
    exchange,
    new_id,
    same_chain,
    sampled_text,
    save_all,
)
from tests.kit.clock import Clock

OpenStore = Callable[..., Awaitable[BaseResponseStore]]  # with `limits` and `now`; closed after the test

NOW = 1_800_000_000
LEASE = 15.0


async def seen(store: BaseResponseStore, step: AcceptedResponse | StoredResponse) -> JsonObject | None:
    """Return how clients see a response."""
    return await store.response(step.project, str(step.response["id"]))


async def status(store: BaseResponseStore, step: AcceptedResponse | StoredResponse) -> object:
    """Return a response's status, None for one that is unknown."""
    response = await seen(store, step)
    return response and response["status"]


async def forget(store: BaseResponseStore, step: AcceptedResponse | StoredResponse) -> bool:
    """Delete a response."""
    return await store.delete(step.project, str(step.response["id"]))


async def is_unknown(store: BaseResponseStore, stored: StoredResponse) -> bool:
    """Whether nothing can be found of a response, whatever is asked for."""
    project, response_id = stored.project, str(stored.response["id"])
    item_ids = [item.id for item in stored.sampled]
    found = [
        await store.response(project, response_id),
        await store.input_items(project, response_id),
        await store.chain(project, response_id),
        *(await store.items(project, item_ids)).values(),
        *(await store.sampled_items(project, item_ids)).values(),
    ]
    assert all(each is None for each in found) or all(each is not None for each in found[:3]), "all or nothing"
    return found == [None, None, None]


async def reclaimed(
    store: BaseResponseStore, worker: str, project: str, *known: str
) -> tuple[list[AcceptedResponse], Orphans]:
    """Let a worker reclaim, which has been heard just now; return what it got of this test's project, and all."""
    heard = await store.beat(WorkerState(id=worker, started_at=NOW))
    orphans = await store.reclaim(worker, dead_before=heard - LEASE, known=known)
    return [accepted for accepted in orphans.claimed if accepted.project == project], orphans


class LifeContract:
    """Give a subclass the fixtures `store`, a started one, and `open_store`, which opens one with options."""

    async def test_an_accepted_response_is_known(self, store: BaseResponseStore) -> None:
        begun = Turn().begun()
        await store.accept(begun)
        assert await seen(store, begun) == begun.response
        assert await store.input_items(begun.project, str(begun.response["id"])) == list(INPUT)
        assert await store.chain(begun.project, str(begun.response["id"])) is None
        assert await store.response("another", str(begun.response["id"])) is None

    async def test_it_begins_and_ends(self, store: BaseResponseStore) -> None:
        turn = Turn()
        stored = replace(turn.saying(*exchange(1)), accepted=True)
        await store.accept(turn.begun("queued"))
        assert await status(store, stored) == "queued"
        await store.begin(turn.project, turn.response_id, GONE)
        assert await status(store, stored) == "in_progress"
        await store.save(stored)
        assert await seen(store, stored) == stored.response
        assert await store.input_items(turn.project, turn.response_id) == list(INPUT)
        assert await same_chain(store, stored)

    async def test_all_steps_at_once_keep_their_order(self, store: BaseResponseStore) -> None:
        turns = [Turn() for _ in range(20)]
        stored = [replace(turn.saying(*exchange(1)), accepted=True) for turn in turns]
        await asyncio.gather(
            *(store.accept(turn.begun("queued")) for turn in turns),
            *(store.begin(turn.project, turn.response_id, GONE) for turn in turns[:10]),
            *(store.save(each) for each in stored),
            *(store.begin(turn.project, turn.response_id, GONE) for turn in turns),
        )
        for each in stored:
            assert await seen(store, each) == each.response
            assert await same_chain(store, each)

    async def test_only_what_is_queued_begins(self, store: BaseResponseStore) -> None:
        turn = Turn()
        await store.begin(turn.project, turn.response_id, GONE)
        assert await store.response(turn.project, turn.response_id) is None
        await store.accept(turn.begun("queued"))
        await store.begin("another", turn.response_id, GONE)
        assert await status(store, turn.begun()) == "queued"
        await store.save(turn.failed())
        await store.begin(turn.project, turn.response_id, GONE)
        assert await status(store, turn.failed()) == "failed"

    async def test_it_goes_back_to_the_queue(self, store: BaseResponseStore) -> None:
        turn = Turn()
        await store.accept(turn.begun("queued", request=None))
        await asyncio.gather(
            store.begin(turn.project, turn.response_id, GONE),
            store.give_back(turn.begun("queued", again=True)),
        )
        assert await status(store, turn.begun()) == "queued"
        queued, _ = await reclaimed(store, "worker_heir", turn.project)
        assert [accepted.request for accepted in queued] == [{"input": "Hello"}]

    async def test_what_has_ended_is_not_accepted(self, store: BaseResponseStore) -> None:
        turn = Turn()
        await store.save(turn.failed())
        await store.accept(turn.begun())
        with pytest.raises(ClaimLost):
            await store.accept(turn.begun(again=True))
        assert await status(store, turn.failed()) == "failed"

    async def test_deleted_it_stays_deleted(self, store: BaseResponseStore) -> None:
        turn = Turn()
        stored = replace(turn.saying(*exchange(1), sampled=[sampled_text("Answer.")]), accepted=True)
        await store.accept(turn.begun())
        assert await forget(store, stored)
        await store.save(stored)
        assert await is_unknown(store, stored)
        with pytest.raises(ClaimLost):
            await store.accept(turn.begun("queued", again=True))
        assert await is_unknown(store, stored)

    async def test_output_items_are_found_by_id(self, store: BaseResponseStore) -> None:
        items = [sampled_text(f"Item {number}.") for number in range(4)]
        turn = Turn()
        await store.save(turn.saying(*exchange(1), sampled=items[:2]))
        await store.save(Turn(turn.project).failed(sampled=items[2:]))
        wanted = [items[0].id, items[1].id, items[3].id, *IDS_NOBODY_MADE]
        assert await store.items(turn.project, wanted) == {
            item.id: as_output(item) for item in (items[0], items[1], items[3])
        }
        assert await store.items(turn.project, []) == {}
        assert await store.items("another", wanted) == {}

    # --- deleting ---

    async def test_deleting(self, store: BaseResponseStore) -> None:
        stored = Turn().saying(*exchange(1), sampled=[sampled_text("Answer.")])
        await store.save(stored)
        assert not await store.delete("another", str(stored.response["id"]))
        assert not await is_unknown(store, stored)
        assert await forget(store, stored)
        assert await is_unknown(store, stored)
        assert not await forget(store, stored)

    @pytest.mark.parametrize("unknown", IDS_NOBODY_MADE, ids=ascii)
    async def test_what_nobody_made_is_unknown(self, store: BaseResponseStore, unknown: str) -> None:
        turn = Turn()
        await store.save(turn.saying(*exchange(1)))
        assert await store.response(turn.project, unknown) is None
        assert await store.input_items(turn.project, unknown) is None
        assert await store.items(turn.project, [unknown]) == {}
        assert not await store.delete(turn.project, unknown)

    @pytest.mark.parametrize("gone", [0, 1, 2, 3])
    async def test_what_continues_a_deleted_response_goes_on(self, store: BaseResponseStore, gone: int) -> None:
        trunk = [Turn().saying(*exchange(0))]
        trunk += [Turn().after(trunk[0]).saying(*exchange(1))]
        chain = [*trunk, *(Turn().after(trunk[1]).saying(*exchange(number)) for number in (2, 3))]  # a fork
        await save_all(store, chain)
        await forget(store, chain[gone])
        for number, stored in enumerate(chain):
            assert await is_unknown(store, stored) if number == gone else await same_chain(store, stored)

    async def test_a_connection_goes_on_after_what_it_remembers_was_deleted(self, store: BaseResponseStore) -> None:
        """Deleted at any time: what is continued is stored with what continues it."""
        saved: list[StoredResponse] = []
        last: StoredResponse | None = None
        for number in range(4):
            turn = Turn().after(last) if last else Turn()
            await store.accept(turn.begun())
            last = replace(turn.saying(*exchange(number)), accepted=True)
            await store.save(last)
            saved.append(last)
            for earlier in saved[:-1]:
                await forget(store, earlier)
            assert await same_chain(store, last)

    # --- time to live ---

    async def test_expired_it_is_unknown(self, open_store: OpenStore) -> None:
        clock = Clock(NOW)
        store = await open_store(settings=RetentionSettings(responses_store_ttl=60.0), now=clock)
        turn = Turn(created_at=NOW)
        stored = turn.saying(*exchange(1), sampled=[sampled_text("Answer.")])
        await store.save(stored)
        clock.now = NOW + 59.9
        assert not await is_unknown(store, stored)
        clock.now = NOW + 60.0
        assert await is_unknown(store, stored)
        assert not await forget(store, stored)

    # --- workers ---

    async def test_what_a_dead_worker_left_is_taken_over(self, open_store: OpenStore) -> None:
        clock = Clock(NOW)
        store = await open_store(now=clock)
        project, dead, heir = (new_id(prefix) for prefix in ("proj", "worker", "worker"))
        queued, running = Turn(project).begun("queued", claim=Claim(dead)), Turn(project).begun(claim=Claim(dead))
        unknown = Turn(project).begun("queued", claim=Claim(dead), request=None)
        await store.beat(WorkerState(id=dead, started_at=NOW))
        for accepted in (queued, running, unknown):
            await store.accept(accepted)
        clock.now = NOW + LEASE - 1
        assert (await reclaimed(store, heir, project))[0] == []
        assert await status(store, running) == "in_progress"
        clock.now = NOW + LEASE
        taken, orphans = await reclaimed(store, heir, project)
        assert taken == [replace(queued, claim=Claim(heir, 2), again=True)]
        assert orphans.failed >= 2
        for lost in (running, unknown):
            assert await seen(store, lost) == {**lost.response, "status": "failed", "error": SERVER_STOPPED}
        assert await seen(store, queued) == queued.response
        known = [str(each.response["id"]) for each in orphans.claimed]
        assert await reclaimed(store, heir, project, *known) == ([], Orphans())

    async def test_what_a_living_worker_runs_is_left_alone(self, open_store: OpenStore) -> None:
        clock = Clock(NOW)
        store = await open_store(now=clock)
        project, alive, heir = (new_id(prefix) for prefix in ("proj", "worker", "worker"))
        begun = [Turn(project).begun(state, claim=Claim(alive)) for state in ("queued", "in_progress")]
        for accepted in begun:
            await store.accept(accepted)
        for clock.now in (NOW, NOW + LEASE - 1, NOW + 2 * LEASE - 2):
            await store.beat(WorkerState(id=alive, started_at=NOW, connections=3, in_flight=2))
            assert (await reclaimed(store, heir, project))[0] == []
        assert [await status(store, accepted) for accepted in begun] == ["queued", "in_progress"]

    async def test_one_that_never_said_it_lives_is_dead_and_nobody_inherits_from_itself(
        self, store: BaseResponseStore
    ) -> None:
        worker = new_id("worker")
        queued = Turn().begun("queued", claim=Claim(worker))
        await store.accept(queued)
        orphans = await store.reclaim(worker, dead_before=NOW)
        assert [each for each in orphans.claimed if each.project == queued.project] == []
        assert len((await reclaimed(store, "worker_heir", queued.project))[0]) == 1

    async def test_what_was_taken_over_runs_to_its_end(self, store: BaseResponseStore) -> None:
        turn = Turn()
        await store.accept(turn.begun("queued"))
        (taken,), _ = await reclaimed(store, "worker_heir", turn.project)
        await store.accept(taken)
        await store.begin(turn.project, turn.response_id, taken.claim)
        stored = replace(turn.saying(*exchange(1)), accepted=True, claim=taken.claim)
        await store.save(stored)
        assert (await reclaimed(store, "worker_other", turn.project))[0] == []
        assert await seen(store, stored) == stored.response

    async def test_without_limits_nothing_goes(self, store: BaseResponseStore) -> None:
        stored = Turn(created_at=1).saying(*exchange(1))
        await store.save(stored)
        assert await store.purge() == Purged()
        assert await same_chain(store, stored)


def responses(number: int, project: str | None = None) -> Iterator[StoredResponse]:
    """Yield ended responses of one project, a second apart."""
    project = project or new_id("proj")
    for created_at in count(NOW):
        if created_at == NOW + number:
            return
        item: SampledMessage = sampled_text("Answer.")
        yield Turn(project, created_at=created_at).saying(*exchange(1), sampled=[item])
