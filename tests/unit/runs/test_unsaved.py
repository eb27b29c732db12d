"""Ends that wait for the store to come back: how many, how large, and that none holds up another."""

import pytest

from responses_app.runs.driving import unsaved
from responses_app.stores.base import StoredResponse, StoreError
from tests.kit.fakes import FakeStore, Site, run_settings
from tests.unit.runs.upkeep import statuses


async def end_unsaved(site: Site, count: int, **fields: object) -> None:
    """Let responses end that cannot be kept."""
    site.store.failure = RuntimeError("broken")
    for _ in range(count):
        assert (await site.ask(**{"input": "hi", **fields}))["status"] == "failed"
    site.store.failure = None


async def test_their_number_is_bounded_and_the_log_tells_of_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(unsaved, "MAX_ENDS", 1)
    site = Site()
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
    assert isinstance(site.store, Picky)
    await end_unsaved(site, 3)
    site.store.refused, site.store.problem = next(iter(site.service.unsaved)).response["id"], problem
    for _ in range(2):
        with pytest.raises(type(problem)):
            await site.service.unsaved.save()
        assert [stored.response["id"] for stored in site.service.unsaved] == [site.store.refused]
    assert sorted(map(str, statuses(site.store))) == ["failed", "failed", "in_progress"]


async def test_while_the_store_is_away_the_first_one_finds_that_out() -> None:
    site = Site(store=Picky())
    assert isinstance(site.store, Picky)
    await end_unsaved(site, 2)
    first = next(iter(site.service.unsaved))
    away = StoreError("away")
    away.passing = True
    site.store.refused, site.store.problem = first.response["id"], away
    with pytest.raises(StoreError, match="away"):
        await site.service.unsaved.save()
    assert len(site.service.unsaved) == 2
    assert next(iter(site.service.unsaved)) is first
