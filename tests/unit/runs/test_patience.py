"""An end that cannot be kept now is tried again; those that wait are bounded, and none holds up another."""

import asyncio

import pytest

from responses_app.kit.errors import StoreError
from responses_app.protocol.rollouts.generations import RecordedResponse
from responses_app.resources.rollouts.store import RolloutStore
from responses_app.runs.driving import persistence, unsaved
from responses_app.stores.base import StoredResponse
from tests.kit.fakes import ANSWER, FakeEngine, FakeStore, Reading, Site, run_settings
from tests.kit.memory_stores import MemoryResponseStore
from tests.unit.runs.readers import Failing, away, half_said, says_half
from tests.unit.runs.upkeep import statuses


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again soon."""
    monkeypatch.setattr(persistence, "AGAIN_SECONDS", 0.01)


async def ending(site: Site, *, background: bool) -> Reading:
    """Return a response whose end cannot be kept now."""
    gate = asyncio.Event()
    site.engine = says_half(gate)
    site.__post_init__()
    reading = await half_said(site, background=background)
    site.store.failure = away()
    gate.set()
    await site.store.saving.wait()
    return reading


@pytest.mark.parametrize(("patience", "background"), [(30, False), (30, True), (0.05, True)])
async def test_it_is_kept_as_it_was_when_the_store_is_back(patience: float, background: bool) -> None:
    """In the background it waits longer than a reader would."""
    site = Site(settings=run_settings(database_patience_seconds=patience))
    reading = await ending(site, background=background)
    await asyncio.sleep(0.2)
    assert statuses(site.store) == ["in_progress"]
    assert not site.service.unsaved
    site.store.failure = None
    assert (await reading.to_the_end())[-1]["type"] == "response.completed"
    assert statuses(site.store) == ["completed"]
    assert len(site.store.saved) == 1
    assert not site.service.unsaved


@pytest.fixture
def tries(rollout_store: RolloutStore, monkeypatch: pytest.MonkeyPatch) -> list[RecordedResponse]:
    """What roll-outs are to keep; their store is away at first: two answers get lost, whether it is kept or not."""
    tries, keep = list[RecordedResponse](), rollout_store.keep

    async def keep_at_last(recorded: RecordedResponse) -> None:
        tries.append(recorded)
        if len(tries) != 1:
            await keep(recorded)
        if len(tries) < 3:
            raise away()

    monkeypatch.setattr(rollout_store, "keep", keep_at_last)
    return tries


async def test_what_a_roll_out_records_of_a_response_that_is_not_stored_is_kept_once_it_can_be(
    tries: list[RecordedResponse],
) -> None:
    site = Site(settings=run_settings(database_patience_seconds=30))
    response = await site.ask(input="hi", store=False, metadata={"rollout_id": "task"})
    assert response["status"] == "completed"
    assert len(tries) == 3
    assert (await site.service.rollouts.get("default", "task")).generations == 1


@pytest.mark.usefixtures("tries")
async def test_without_patience_a_response_that_is_not_recorded_has_failed() -> None:
    site = Site()
    response = await site.ask(input="hi", store=False, metadata={"rollout_id": "task"})
    assert response["status"] == "failed"
    assert not (await site.service.rollouts.get("default", "task")).generations


async def test_a_reader_does_not_wait_for_ever() -> None:
    site = Site(settings=run_settings(database_patience_seconds=0.1))
    reading = await ending(site, background=False)
    assert (await reading.to_the_end())[-1]["type"] == "response.failed"
    assert len(site.service.unsaved) == 1


async def test_a_fault_that_stays_is_not_waited_for() -> None:
    site = Site(settings=run_settings(database_patience_seconds=30))
    reading = await ending(site, background=False)
    site.store.failure = StoreError("a value that no column takes")
    assert (await reading.to_the_end())[-1]["type"] == "response.failed"


@pytest.mark.parametrize("is_back", [False, True])
async def test_a_server_that_stops_leaves_one_in_the_background_to_the_others(
    is_back: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It is still the store's to give: nothing says that it has failed, or that another worker has it by now."""
    caplog.set_level("INFO", logger="respsite.runs")
    site = Site(settings=run_settings(database_patience_seconds=30))
    reading = await ending(site, background=True)

    if is_back:
        site.store.append = MemoryResponseStore.append.__get__(site.store)  # type: ignore[method-assign]
    else:
        Failing(site.store, "give_back", 99, away())
    await asyncio.wait_for(site.registry.aclose(), 10)
    assert reading.run.given_back
    assert not reading.run.lost
    assert ("goes to another worker" if is_back else "could not be given to another worker now") in caplog.text
    assert "took it over" not in caplog.text
    assert not site.service.unsaved
    assert statuses(site.store) == ["in_progress"]
    heir = Site(store=site.store, worker="heir")
    site.store.failure = None
    (claimed,) = (await site.store.reclaim("heir", dead_before=float("inf"))).claimed
    await heir.service.run_again(claimed)
    events = await (await heir.follow(str(claimed.response["id"]))).to_the_end()
    assert events[-1]["type"] == "response.completed"
    assert not is_back or not heir.engine.requests, "all that it said is there"


async def test_one_in_the_background_that_begins_waits_for_the_store() -> None:
    """It was accepted, so it is not to fail for a disk that is full for a while."""
    site = Site(settings=run_settings(database_patience_seconds=0.05))
    site.engine = FakeEngine([[ANSWER]])
    site.__post_init__()
    failing = Failing(site.store, "begin", 4, away())
    reading = await site.begin(input="hi", background=True)
    assert (await reading.to_the_end())[-1]["type"] == "response.completed"
    assert failing.left == 0
    assert statuses(site.store) == ["completed"]


async def end_unsaved(site: Site, count: int, **fields: object) -> None:
    """Let responses end that cannot be kept."""
    site.store.failure = RuntimeError("broken")
    for _ in range(count):
        assert (await site.ask(**{"input": "hi", **fields}))["status"] == "failed"
    site.store.failure = None


async def test_their_number_is_bounded_and_the_log_tells_of_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, site: Site
) -> None:
    monkeypatch.setattr(unsaved, "MAX_ENDS", 1)
    await end_unsaved(site, 2)
    assert len(site.service.unsaved) == 1
    assert caplog.text.count("how it ended is lost") == 1


async def test_their_bytes_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    site = Site(settings=run_settings(responses_max_unsaved_bytes=50_000))
    await end_unsaved(site, 3, input="long " * 4_000)
    assert len(site.service.unsaved) == 2
    assert 40_000 < site.service.unsaved.size <= 50_000
    assert "(RESPONSES_MAX_UNSAVED_BYTES)" in caplog.text
    await site.service.unsaved.save()
    assert site.service.unsaved.size == 0
    await end_unsaved(site, 1, input="long " * 4_000)
    assert len(site.service.unsaved) == 1, "there is room again"


@pytest.mark.usefixtures("rollout_store")
async def test_what_they_record_for_a_roll_out_counts() -> None:
    sizes = []
    cases: list[dict[str, object]] = [{}, {"metadata": {"rollout_id": "task"}}]
    for fields in cases:
        site = Site()
        await end_unsaved(site, 1, input="long " * 4_000, **fields)
        sizes.append(site.service.unsaved.size)
    plain, recorded = sizes
    assert recorded > plain + 4 * 4_000, "its prompt is in memory, too"


class Picky(FakeStore):
    """Takes all ends but those of one response."""

    refused = ""
    problem: Exception = StoreError("a value that no column takes")

    async def save(self, stored: StoredResponse) -> None:
        if stored.response["id"] == self.refused:
            raise self.problem
        await super().save(stored)


@pytest.mark.parametrize("problem", [StoreError("a value that no column takes"), RuntimeError("a bug")])
async def test_one_that_the_store_never_takes_holds_up_no_other(problem: Exception) -> None:
    site = Site(store=Picky())
    await end_unsaved(site, 3)
    site.store.refused, site.store.problem = next(iter(site.service.unsaved)).response["id"], problem
    for _ in range(2):
        with pytest.raises(type(problem)):
            await site.service.unsaved.save()
        assert [stored.response["id"] for stored in site.service.unsaved] == [site.store.refused]
    assert sorted(map(str, statuses(site.store))) == ["failed", "failed", "in_progress"]


async def test_while_the_store_is_away_the_first_one_finds_that_out() -> None:
    site = Site(store=Picky())
    await end_unsaved(site, 2)
    first = next(iter(site.service.unsaved))
    site.store.refused, site.store.problem = first.response["id"], away()
    with pytest.raises(StoreError, match="away"):
        await site.service.unsaved.save()
    assert len(site.service.unsaved) == 2
    assert next(iter(site.service.unsaved)) is first
