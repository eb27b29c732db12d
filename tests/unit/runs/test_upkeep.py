"""The upkeep: what it takes over runs, waits or fails, and nothing is lost; and whether the store can be used."""

import asyncio
import time
from collections.abc import Collection
from dataclasses import replace

import pytest

from engine.errors import EngineUnavailable
from responses_app.kit.errors import StoreError
from responses_app.limits import suspects
from responses_app.limits.suspects import Stage, name_of
from responses_app.protocol.errors import ENDS_WORKERS, ApiError
from responses_app.protocol.response.input_codec import encode
from responses_app.protocol.response.steps import Enqueued, Input, RunStarted, Sampled, Sealed, ToolReturned
from responses_app.resources.files.fields import NewFile
from responses_app.resources.files.model import StoredFile
from responses_app.resources.files.store import Files
from responses_app.runs import duties
from responses_app.stores.base import AcceptedResponse, Orphans, WorkerState
from tests.kit.fakes import ANSWER, FakeEngine, FakeStore, Site
from tests.kit.waiting import eventually
from tests.unit.runs.readers import Held, half_said, hanging, id_of, idle, says_half
from tests.unit.runs.upkeep import LEASE, LEFT, StoppedStore, go_on_living, kept, left_behind, looked_after, statuses


async def test_those_that_ran_when_a_worker_died_run_again_one_after_the_other() -> None:
    site = Site(FakeEngine([[asyncio.Event()]]), await left_behind(2, worker="dead"))
    async with looked_after(site):
        await eventually(lambda: len(site.registry.running) == 1)
        stages = [each.suspicion for each in site.store._responses.values()]
        assert sorted(stages) == [Stage.SUSPECT, Stage.ON_TRIAL]
        (first,) = site.registry.running
        site.registry.cancel(first, reason="its trial is over")
        await eventually(lambda: [run is not first for run in site.registry.running] == [True])


async def test_one_that_has_run_for_some_time_makes_room_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspects, "TRIAL_SECONDS", 0.001)
    site = Site(FakeEngine([[asyncio.Event()]]), await left_behind(3, worker="dead"))
    async with looked_after(site):
        await eventually(lambda: [each.suspicion for each in site.store._responses.values()] == [Stage.PASSED] * 3)
        await eventually(lambda: len(site.registry.running) == 3)  # the last one's row is written before it runs


@pytest.mark.parametrize("by", ["its row", "its request, which its client has sent again"])
async def test_one_that_was_running_at_two_deaths_is_not_run_a_third_time(by: str) -> None:
    site = Site(store=await left_behind(2, worker="dead"))
    name = name_of("p", b"what it was asked")
    poison, innocent = site.store._responses.values()
    assert isinstance(poison.of, AcceptedResponse)
    poison.of = replace(poison.of, request_name=name.hex())
    if by == "its row":
        poison.suspicion, innocent.suspicion = Stage.ON_TRIAL, Stage.PASSED
    else:
        site.service.running.condemn("default", name)
    async with looked_after(site):
        await eventually(lambda: statuses(site.store) == ["failed", "completed"])
    failed, _ = kept(site.store)
    assert failed["error"] == ENDS_WORKERS
    assert site.service.running.table.stage(name, time.monotonic())[0] is Stage.CONDEMNED, "nor is it taken anew"


async def test_a_row_condemns_none_that_only_ran_beside_the_one_that_was_condemned() -> None:
    """A row knows of no request but those that have rows, too; the supervisor's table knows all."""
    site = Site(store=await left_behind(1, worker="dead"))
    (innocent,) = site.store._responses.values()
    assert isinstance(innocent.of, AcceptedResponse)
    name = name_of("p", b"what it was asked")
    innocent.of, innocent.suspicion = replace(innocent.of, request_name=name.hex()), Stage.PASSED
    site.service.running.table.suspect(name, Stage.SUSPECT, "p", time.monotonic(), 20.0)
    async with looked_after(site):
        await eventually(lambda: statuses(site.store) == ["completed"])


async def test_files_whose_time_is_over_are_removed(
    monkeypatch: pytest.MonkeyPatch, sqlite_alias: str, files: Files
) -> None:
    monkeypatch.setattr(duties, "PURGE_SECONDS", LEASE)
    earlier = Files(using=sqlite_alias, now=lambda: 1.0)
    for file_id, seconds in (("file-1", 1), ("file-2", None)):
        file = NewFile(filename="a", purpose="user_data", bytes=1, seconds=seconds)
        await earlier.create("default", file_id, file, [b"x"])
    await earlier.aclose()

    async def one_is_left() -> bool:
        return await files._threads.run(
            lambda db: [each.pk for each in StoredFile.objects.using(db.alias)] == ["file-2"]
        )

    async with looked_after(Site(files=files)):
        await eventually(one_is_left)


async def test_nothing_is_taken_over_by_a_server_that_stops() -> None:
    site = Site(FakeEngine([[asyncio.Event()]]))
    async with looked_after(site):
        await site.begin(input="hi")
        closing = asyncio.create_task(site.registry.aclose(grace=30))
        await asyncio.sleep(0)
        store = await left_behind()
        site.store._responses |= store._responses
        await asyncio.sleep(3 * LEASE)
        orphans = await site.store.reclaim("another", dead_before=0.0)
        assert len(orphans.claimed) == 1
        site.registry.hurry.set()
        await closing


@pytest.mark.parametrize("lives", [False, True])
async def test_after_an_outage_all_have_a_lease_to_say_that_they_live(lives: bool) -> None:
    site = Site(store=await left_behind(worker="another"))
    await site.store.beat(WorkerState(id="another", started_at=0))
    await asyncio.sleep(2 * LEASE)
    begun = time.monotonic()
    async with looked_after(site):
        if lives:
            alive = asyncio.create_task(go_on_living(site.store, "another"))
        while time.monotonic() - begun < 0.9 * LEASE:
            assert statuses(site.store) == [LEFT]
            await asyncio.sleep(LEASE / 10)
        if lives:
            await asyncio.sleep(2 * LEASE)
            assert statuses(site.store) == [LEFT]
            alive.cancel()
        else:
            await eventually(lambda: statuses(site.store) == ["completed"])


@pytest.mark.parametrize("why", ["the engine is not ready", "the engine is away", "the store is away"])
async def test_what_cannot_run_now_waits(why: str) -> None:
    site, ready = Site(store=await left_behind(2)), why != "the engine is not ready"
    if why == "the engine is away":
        site.engine.ill = EngineUnavailable("away")
    if why == "the store is away":
        site.store.failure = StoreError("away")
    async with looked_after(site, ready=lambda: ready):
        await asyncio.sleep(3 * LEASE)
        assert statuses(site.store) == [LEFT] * 2
        ready, site.engine.ill, site.store.failure = True, None, None
        await eventually(lambda: statuses(site.store) == ["completed"] * 2)


async def test_what_cannot_run_now_is_given_back_at_the_end() -> None:
    site = Site(store=await left_behind())
    site.engine.ill = EngineUnavailable("away")
    async with looked_after(site):
        await asyncio.sleep(3 * LEASE)
    other = Site(store=site.store)
    orphans = await other.store.reclaim("other", dead_before=0.0)
    assert [accepted.response["status"] for accepted in orphans.claimed] == [LEFT], "nobody has to be dead first"


async def test_what_is_about_to_run_when_the_server_stops_is_given_back() -> None:
    site = Site(FakeEngine([[asyncio.Event()]]), await left_behind())
    accepting = Held(site.store, "accept")
    async with looked_after(site):
        await accepting.waits.wait()
        closing = asyncio.create_task(site.registry.aclose())
        await asyncio.sleep(0)
        assert site.registry.draining
        accepting.go_on.set()
        await closing
        assert site.registry.running == []
        assert [each.claim.worker for each in site.store._responses.values()] == [""]


@pytest.mark.parametrize("call", ["has_orphans", "reclaim"])
async def test_a_look_that_had_begun_does_not_claim_a_response_that_was_given_back(call: str) -> None:
    store = await left_behind(2)
    first, second = store._responses
    orphan = store._responses.pop(second)  # it is found while the first one runs
    site = Site(FakeEngine([[asyncio.Event()]]), store)
    async with looked_after(site):
        await eventually(lambda: len(site.registry.running) == 1)
        looking = Held(site.store, call)
        site.store._responses[second] = orphan
        await looking.waits.wait()
        closing = asyncio.create_task(site.registry.aclose())
        await eventually(lambda: site.store._responses[first].claim.worker == "")
        looking.go_on.set()
        await closing
        await asyncio.sleep(LEASE)
    assert {each.claim.worker for each in site.store._responses.values()} == {""}
    assert site.store._responses[first].claim.epoch == 2, "it was claimed again by the worker that gave it back"


async def test_what_can_never_run_has_failed_and_stops_nothing_else() -> None:
    store = await left_behind(2)
    first = next(iter(store._responses.values()))
    first.of.response["model"] = "gone"
    site = Site(store=store)
    async with looked_after(site):
        await eventually(lambda: statuses(store) == ["failed", "completed"])
    assert [site.metrics.takeovers.at(how).value for how in ("failed", "continued")] == [1, 1]
    error = kept(store)[0]["error"]
    assert error["code"] == "server_error"


async def test_what_can_never_run_and_was_lost_meanwhile_stops_nothing_else() -> None:
    site = Site(store=await left_behind(2))
    site.engine.ill = EngineUnavailable("away")
    async with looked_after(site):
        await eventually(lambda: all(each.claim.worker == "me" for each in site.store._responses.values()))
        first, _ = (await site.store.reclaim("heir", dead_before=time.time() + 1)).claimed
        first.response["model"], site.engine.ill = "gone", None
        await eventually(lambda: statuses(site.store) == ["failed", "completed"])


@pytest.mark.parametrize("last", [Sampled([1]), ToolReturned("of a tool that is gone"), Sealed("what"), None], ids=str)
async def test_what_has_a_log_that_makes_no_sense_has_failed_and_stops_nothing_else(last: Input | None) -> None:
    store = await left_behind(2)
    first = next(iter(store._responses.values()))
    first.log = b"?" if last is None else encode([Enqueued(), RunStarted(), last])
    assert isinstance(first.of, AcceptedResponse)
    first.of = replace(first.of, log=first.log)
    async with looked_after(Site(store=store)):
        await eventually(lambda: statuses(store) == ["failed", "completed"])


async def test_what_breaks_has_failed_and_stops_nothing_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(store=await left_behind(2))
    runs_again, broken = site.service.run_again, kept(site.store)[0]["id"]

    async def run_again(accepted: AcceptedResponse) -> None:
        if accepted.response["id"] == broken:
            raise KeyError("broken")
        await runs_again(accepted)

    monkeypatch.setattr(type(site.service), "run_again", lambda _, accepted: run_again(accepted))
    async with looked_after(site):
        await eventually(lambda: statuses(site.store) == ["failed", "completed"])
    assert "KeyError" in caplog.text


async def test_one_that_was_deleted_meanwhile_stays_deleted() -> None:
    site = Site(store=await left_behind())
    site.engine.ill = EngineUnavailable("away")
    async with looked_after(site):
        await asyncio.sleep(2 * LEASE)
        await site.responses.delete("default", str(kept(site.store)[0]["id"]))
        site.engine.ill = None
        await asyncio.sleep(2 * LEASE)
    assert (statuses(site.store), site.engine.requests) == ([], [])


@pytest.mark.parametrize("background", [False, True])
async def test_an_end_that_could_not_be_kept_is_kept_when_the_store_is_back(background: bool) -> None:
    gate = asyncio.Event()
    site = hanging(gate)
    async with looked_after(site, worker=""):
        reading = await half_said(site, background=background)
        site.store.failure = StoreError("away")
        gate.set()
        assert (await reading.to_the_end())[-1]["type"] == "response.failed"
        assert statuses(site.store) == ["in_progress"]
        await asyncio.sleep(2 * LEASE)
        site.store.failure = None
        await eventually(lambda: statuses(site.store) == ["failed"])
        assert kept(site.store) == [reading.run.response()]
        assert len(site.service.unsaved) == 0


async def test_an_end_that_could_not_be_kept_is_kept_when_the_server_stops(site: Site) -> None:
    async with looked_after(site):
        site.store.failure = StoreError("away")
        with pytest.raises(ApiError):
            await site.begin(input="hi", background=True)
        site.store.failure, site.store.gate = None, asyncio.Event()
        await site.store.saving.wait()
        site.store.saving.clear()
        opening = asyncio.create_task(open_again(site.store))  # the stop comes while it is saved
    await asyncio.wait_for(opening, 5)
    assert list(site.service.unsaved) == []
    assert len(site.store.saved) == 1


async def open_again(store: FakeStore) -> None:
    """Let a store save once it is asked another time."""
    await store.saving.wait()
    store.gate.set()


async def test_one_that_was_deleted_before_its_end_could_be_kept_stays_deleted(site: Site) -> None:
    async with looked_after(site, worker=""):
        reading = await site.begin(input="hi")
        site.store.failure = RuntimeError("broken")
        await reading.to_the_end()
        await site.responses.delete("default", reading.run.response_id)
        site.store.failure = None
        await eventually(lambda: len(site.service.unsaved) == 0)
    assert statuses(site.store) == []


class SlowStore(FakeStore):
    """A store whose orphans take long to take over."""

    async def reclaim(self, worker_id: str, *, dead_before: float, known: Collection[str] = ()) -> Orphans:
        await asyncio.sleep(10 * LEASE)
        return Orphans()


async def test_many_orphans_do_not_make_a_worker_look_dead() -> None:
    site = Site(store=SlowStore())
    beats = 0
    beat = site.store.beat

    async def counted(worker: WorkerState) -> float:
        nonlocal beats
        beats += 1
        return await beat(worker)

    site.store.beat = counted  # type: ignore[method-assign]
    async with looked_after(site):
        await asyncio.sleep(5 * LEASE)
    assert beats > 5


async def silent(site: Site) -> None:
    """Let a worker be silent for so long that it looks dead."""
    site.store.goes_on.clear()
    await asyncio.sleep(2 * LEASE)


async def test_what_it_lost_while_it_was_silent_is_stopped() -> None:
    site = Site(says_half(), StoppedStore())
    async with looked_after(site, worker=""):
        lost = await site.begin(input="hi")
        own = await site.begin(input="hi", store=False)
        await eventually(lambda: site.engine.running == 2)
        await silent(site)
        heard = await site.store.beat(WorkerState(id="heir", started_at=0))
        assert (await site.store.reclaim("heir", dead_before=heard - LEASE)).failed == 1
        decided = kept(site.store)
        site.store.goes_on.set()
        end = (await lost.to_the_end())[-1]
        assert end["type"] == "response.failed"
        assert end["response"]["error"] == decided[0]["error"]  # type: ignore[index]
        await eventually(lambda: len(site.registry) == 1)
        assert site.registry.get(own.run.response_id) is own.run
        assert kept(site.store) == decided
        assert len(site.service.unsaved) == 0


async def test_what_others_go_on_with_ends_here_without_an_end() -> None:
    site = Site(says_half(), StoppedStore())
    async with looked_after(site, worker=""):
        lost = await site.begin(input="hi", background=True)
        await lost.until("response.output_text.delta")
        await silent(site)
        heard = await site.store.beat(WorkerState(id="heir", started_at=0))
        (taken,) = (await site.store.reclaim("heir", dead_before=heard - LEASE)).claimed
        site.store.goes_on.set()
        await idle(site)
        assert (await lost.to_the_end())[-1]["type"] == "response.output_text.delta"
        assert statuses(site.store) == ["in_progress"]
        assert site.store._responses["default", id_of(lost)].claim == taken.claim
        assert len(site.service.unsaved) == 0


async def test_what_was_queued_and_lost_ends_here_without_an_end(gate: asyncio.Event) -> None:
    site = Site(FakeEngine([[gate, ANSWER]]))
    reading = await half_said(site, background=True)
    (taken,) = (await site.store.reclaim("heir", dead_before=0.0)).claimed
    gate.set()
    await idle(site)
    events = await reading.to_the_end()
    assert events[-1]["type"] == "response.in_progress"
    assert statuses(site.store) == ["queued"]
    assert site.registry.find("default", reading.run.response_id) is None
    other = Site(store=site.store)
    await other.service.run_again(taken)
    await eventually(lambda: statuses(site.store) == ["completed"])


async def test_one_that_was_lost_at_its_very_end_is_not_completed(gate: asyncio.Event) -> None:
    site = hanging(gate)
    reading = await site.begin(input="hi")
    await eventually(lambda: statuses(site.store) == ["in_progress"])
    await site.store.reclaim("heir", dead_before=0.0)
    decided = kept(site.store)
    gate.set()
    assert (await reading.to_the_end())[-1]["type"] == "response.failed"
    assert kept(site.store) == decided
    assert decided[0]["status"] == "failed"


async def test_one_whose_acceptance_got_no_answer_is_refused_and_never_runs() -> None:
    class Forgetful(FakeStore):
        async def accept(self, accepted: AcceptedResponse) -> None:
            await super().accept(accepted)
            raise StoreError("the answer got lost")

    site = Site(store=Forgetful())
    async with looked_after(site, worker=""):
        error = await site.refusal(input="hi", background=True)
        assert (error.status, error.headers["retry-after"]) == (503, "2")
        await eventually(lambda: statuses(site.store) == ["failed"])
    assert site.engine.requests == []


async def test_nothing_is_taken_over_by_one_that_was_silent_itself() -> None:
    """While a store hangs nobody can beat: those who did not are not dead."""
    site = Site(store=StoppedStore())
    async with looked_after(site, worker=""):
        await site.store.beat(WorkerState(id="another", started_at=0))
        await asyncio.sleep(1.5 * LEASE)
        site.store.goes_on.clear()
        site.store._responses |= (await left_behind(worker="another"))._responses
        await site.store.beat(WorkerState(id="another", started_at=0))
        await asyncio.sleep(3 * LEASE)
        assert statuses(site.store) == [LEFT]
        site.store.goes_on.set()
        await asyncio.sleep(0.5 * LEASE)
        assert statuses(site.store) == [LEFT]
        await eventually(lambda: statuses(site.store) == ["completed"])


class FullStore(FakeStore):
    """A store that can be read, and not written to once it is full."""

    full = False

    async def beat(self, worker: WorkerState) -> float:
        if self.full:
            raise StoreError("no space left")
        return await super().beat(worker)


async def test_a_check_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duties, "FRESH_SECONDS", 0.0)
    site = Site(store=FullStore())
    async with looked_after(site) as upkeep:
        assert await upkeep.heartbeat.check() is None
        site.store.full = True
        problem = await upkeep.heartbeat.check()
        assert problem is not None
        assert "cannot be written to" in problem
        site.store.full = False
        assert await upkeep.heartbeat.check() is None


async def test_a_check_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duties, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(duties, "CHECK_SECONDS", 0.05)
    site = Site(store=StoppedStore())
    async with looked_after(site, worker="") as upkeep:
        site.store.goes_on.clear()
        for _ in range(2):
            problem = await upkeep.heartbeat.check()
            assert problem is not None
            assert "has not answered" in problem
        site.store.goes_on.set()
        assert await upkeep.heartbeat.check() is None
