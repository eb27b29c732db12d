"""Exports of roll-outs: in order, page by page, and while roll-outs are deleted."""

from collections.abc import AsyncIterator, Sequence

import orjson
import pytest

from responses_app.extensions.training import rollouts as rollout_endpoints
from responses_app.extensions.training.exports import ExportQuery, Selection
from responses_app.extensions.training.rollouts import AT_ONCE, exported
from responses_app.protocol.rollouts.generations import Recorded, RecordedResponse
from responses_app.protocol.rollouts.requests import RolloutRef
from responses_app.resources.rollouts.fields import RolloutRecord
from responses_app.resources.rollouts.store import RolloutStore
from responses_app.runs.rollouts import Rollouts
from tests.kit.recorded import by_chance, recorded
from tests.unit.runs.readers import refused

PROJECT = "mine"
TRL = ExportQuery(format="trl")


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_endpoints, "PAGE", 2)
    monkeypatch.setattr(rollout_endpoints, "PIECE", 1)


@pytest.fixture
async def store(rollout_store: RolloutStore) -> RolloutStore:
    """Seven roll-outs, and one of another project."""
    for number in range(7):
        await add(rollout_store, PROJECT, f"r{number}", group=f"g{number % 2}")
    await add(rollout_store, "other", "secret")
    return rollout_store


@pytest.fixture
def rollouts(store: RolloutStore) -> Rollouts:
    return Rollouts(store, served=lambda _: None, new_id=lambda kind: kind, now=lambda: 0.0)


async def add(store: RolloutStore, project: str, name: str, *, group: str | None = None, own: str = "") -> None:
    own = own or f"rollout_{name}"
    record = RolloutRecord(id=own, project=project, name=name, created_at=1, last_at=1, group=group)
    await store.create(record)
    calls = [recorded([1, 2], [3]), recorded([1, 2, 3, 4], [5]), recorded([9], [8])]
    await store.keep(of(project, name, calls))


def of(project: str, name: str, calls: Sequence[Recorded]) -> RecordedResponse:
    return RecordedResponse(
        project=project, rollout=RolloutRef(name), response_id=f"resp_{name}", model="tiny", calls=calls
    )


async def chain(begun: Sequence[bytes], rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    for piece in begun:
        yield piece
    async for piece in rest:
        yield piece


async def names_of(pieces: AsyncIterator[bytes]) -> list[str]:
    content = b"".join([piece async for piece in pieces])
    names = [orjson.loads(line)["rollout_id"] for line in content.splitlines()]
    return list(dict.fromkeys(names))


async def test_all_of_a_project_from_the_oldest_to_the_newest(rollouts: Rollouts) -> None:
    assert await names_of(exported(rollouts, PROJECT, TRL)) == [f"r{number}" for number in range(7)]


async def test_it_goes_on_behind_a_rollout(rollouts: Rollouts) -> None:
    assert await names_of(exported(rollouts, PROJECT, ExportQuery(format="trl", after="r4"))) == ["r5", "r6"]


async def test_what_is_selected(rollouts: Rollouts) -> None:
    query = ExportQuery(format="trl", selection=Selection(group="g1"))
    assert await names_of(exported(rollouts, PROJECT, query)) == ["r1", "r3", "r5"]
    query = ExportQuery(format="trl", selection=Selection(version="none"))
    assert await names_of(exported(rollouts, PROJECT, query)) == []


@pytest.mark.parametrize("after", ["none", "secret"])
async def test_an_unknown_beginning_is_refused_before_anything_is_sent(rollouts: Rollouts, after: str) -> None:
    error = await refused(anext(exported(rollouts, PROJECT, ExportQuery(after=after))))

    assert (error.status, error.param) == (400, "after")


@pytest.mark.parametrize("gone", [["r0", "r1"], ["r1", "r2"], ["r2", "r3"], [f"r{number}" for number in range(7)]])
async def test_rollouts_deleted_meanwhile_are_left_out(
    store: RolloutStore, rollouts: Rollouts, gone: list[str]
) -> None:
    pieces = exported(rollouts, PROJECT, TRL)
    assert await anext(pieces) == b""
    begun = [await anext(pieces)]  # the first row of the first roll-out

    for name in gone:
        assert await store.delete(PROJECT, name)

    # The first one was read already. Each other that is left comes once, also behind a page that ended with one gone.
    found = await names_of(chain(begun, pieces))
    assert found == ["r0", *(f"r{number}" for number in range(1, 7) if f"r{number}" not in gone)]


async def test_a_name_that_is_given_anew_meanwhile_skips_nothing(store: RolloutStore, rollouts: Rollouts) -> None:
    pieces = exported(rollouts, PROJECT, TRL)
    begun = [await anext(pieces), await anext(pieces)]
    assert await store.delete(PROJECT, "r1")  # with which the first page ended
    await add(store, PROJECT, "r1", own="rollout_r9")
    names = await names_of(chain(begun, pieces))
    assert names == ["r0", "r2", "r3", "r4", "r5", "r6", "r1"]


async def test_one_that_is_deleted_and_made_anew_is_exported_once_with_its_own_tokens(
    store: RolloutStore, rollouts: Rollouts
) -> None:
    pieces = exported(rollouts, PROJECT, ExportQuery(format="tree"))
    begun = [await anext(pieces), await anext(pieces)]
    assert await store.delete(PROJECT, "r1")
    await store.create(RolloutRecord(id="rollout_r9", project=PROJECT, name="r1", created_at=5, last_at=5))
    content = b"".join([piece async for piece in chain(begun, pieces)])
    [found] = [tree for tree in map(orjson.loads, content.splitlines()) if tree["id"] == "r1"]
    assert (found["created_at"], found["generations"]) == (5, [])


async def test_who_stops_reading_ends_it_and_too_many_are_refused(rollouts: Rollouts) -> None:
    running = [exported(rollouts, PROJECT, TRL) for _ in range(AT_ONCE)]
    for each in running:
        assert await anext(each) == b""

    assert (await refused(anext(exported(rollouts, PROJECT, TRL)))).status == 429

    for each in running:
        await each.aclose()
    assert len(await names_of(exported(rollouts, PROJECT, TRL))) == 7


async def test_a_long_rollout_comes_in_pieces(store: RolloutStore, rollouts: Rollouts) -> None:
    record = RolloutRecord(id="rollout_x", project="long", name="x", created_at=1, last_at=1)
    await store.create(record)
    await store.keep(of("long", "x", by_chance(3, turns=40)))

    pieces = [piece async for piece in exported(rollouts, "long", ExportQuery(format="nemo-gym"))]

    assert len([piece for piece in pieces if piece]) == 40
