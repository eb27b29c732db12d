"""Readers on a worker that does not run their response: the same events, with the same numbers, from its log."""

import asyncio

import pytest

from responses_app.kit.errors import StoreError
from responses_app.protocol.events.dialects import parse_dialect
from responses_app.protocol.requests.resources import Status
from responses_app.protocol.response.input_codec import decode
from responses_app.protocol.response.steps import Sampled
from responses_app.runs.log import following
from responses_app.runs.log import run_log as log
from responses_app.stores.base import LogNews
from tests.kit.fakes import ANSWER, FakeEngine, FakeOthers, FakeStore, Reading, Site, run_settings
from tests.kit.laws import assert_laws
from tests.kit.waiting import eventually
from tests.unit.runs.readers import DELTA, HALF, Failing, Held, half_said, id_of, idle, says_half


def workers(*, redis: bool, engine: FakeEngine | None = None, max_lag_bytes: int = 1_000_000) -> tuple[Site, Site]:
    """Return two workers with one store: one that runs, and one that is asked; that drops at `max_lag_bytes`."""
    others, store = FakeOthers(reaches_others=redis), FakeStore()
    owner = Site(engine or FakeEngine(), store, worker="a", others=others)
    return owner, Site(
        store=store, worker="b", others=others, settings=run_settings(stream_max_lag_bytes=max_lag_bytes)
    )


@pytest.fixture(params=[True, False], ids=["with Redis", "without"])
def redis(request: pytest.FixtureRequest) -> bool:
    """Whether the workers hear each other."""
    return bool(request.param)


@pytest.mark.parametrize("background", [True, False])
async def test_a_live_response_is_followed_to_its_end(redis: bool, background: bool, gate: asyncio.Event) -> None:
    owner, asked = workers(redis=redis, engine=says_half(gate))
    reading = await half_said(owner, background=background, transport="sse")
    following_it = await asked.follow(id_of(reading))
    if background or redis:
        await following_it.until("response.output_text.delta")
    gate.set()
    events = await reading.to_the_end()
    assert await following_it.to_the_end() == events
    assert_laws(events)
    assert following_it.reader.source.status is Status.COMPLETED
    assert following_it.reader.source.response()["output"] == events[-1]["response"]["output"]  # type: ignore[index]


CALLING = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a":'


async def test_a_dialect_that_names_calls_names_one_that_began_before_its_reader_came(redis: bool) -> None:
    gate = asyncio.Event()
    owner, asked = workers(redis=redis, engine=FakeEngine([[CALLING, gate, "1}<|call|>"]]))
    reading = await owner.begin(input="hi", background=True, transport="sse")
    seen = await reading.until("response.function_call_arguments.delta")
    last = seen[-1]["sequence_number"]
    assert isinstance(last, int)
    dialect = parse_dialect("tool-delta-objects")
    follow = asked.responses.follow("default", id_of(reading), starting_after=last, dialect=dialect)
    late = Reading(asked, await follow)
    gate.set()
    events = await reading.to_the_end()
    item = next(event["item"] for event in events if "item" in event)
    told = [event for event in await late.to_the_end() if event["type"] == "response.tool_call.delta"]
    [entry] = [entry for event in told for entry in event["delta"]["content"]]  # type: ignore[index]
    assert (entry["call_id"], entry["name"], entry["arguments"]) == (item["call_id"], "f", "1}")  # type: ignore[index]


async def test_one_that_comes_late_to_a_long_response_is_not_too_slow(redis: bool, gate: asyncio.Event) -> None:
    engine = FakeEngine([[HALF, *["x"] * 300, gate, *["y"] * 300, ANSWER]])
    owner, asked = workers(redis=redis, engine=engine, max_lag_bytes=20_000)
    reading = await half_said(owner, background=True, transport="sse")
    await eventually(lambda: kept_chunks(owner.store) == 301)
    late = await asked.follow(id_of(reading))
    gate.set()
    assert await late.to_the_end() == await reading.to_the_end()


def kept_chunks(store: FakeStore) -> int:
    """Return how many chunks the one response's log has."""
    (kept,) = store._responses.values()
    return sum(isinstance(given, Sampled) for given in decode(kept.log))


async def test_one_whose_worker_dies_ends_as_its_body_says(redis: bool) -> None:
    owner, asked = workers(redis=redis, engine=says_half())
    reading = await half_said(owner, transport="sse")
    followed = await asked.follow(id_of(reading))
    if redis:
        await followed.until("response.output_text.delta")
        await eventually(lambda: kept_chunks(owner.store) == 1)
    orphans = await owner.store.reclaim("b", dead_before=0.0)
    for accepted in orphans.claimed:
        failed = asked.service.machines.failed(accepted, {"code": "server_error", "message": "It stopped."})
        assert failed.response["status"] == "failed"
    assert len(orphans.claimed) + orphans.failed == 1
    if not redis:
        events = await followed.to_the_end()
        assert [event["type"] for event in events] == ["response.created", "response.in_progress", "response.failed"]


async def test_one_that_is_deleted_meanwhile_ends_without_an_end(redis: bool) -> None:
    owner, asked = workers(redis=redis, engine=says_half())
    reading = await owner.begin(input="hi", background=True)
    await reading.until("response.output_text.delta")
    followed = await asked.follow(id_of(reading))
    await followed.until("response.output_text.delta")
    await asked.responses.delete("default", id_of(reading))
    events = await followed.to_the_end()
    assert events[-1]["type"] == "response.output_text.delta"
    if not redis:  # the owner finds out when it appends
        return
    await idle(owner)


async def test_an_owner_that_hears_of_nothing_finds_out_that_it_was_deleted(gate: asyncio.Event) -> None:
    owner, asked = workers(redis=False, engine=FakeEngine([[HALF, gate, "more", asyncio.Event(), ANSWER]]))
    reading = await owner.begin(input="hi", background=True)
    await reading.until("response.output_text.delta")
    await asked.responses.delete("default", id_of(reading))
    gate.set()
    await idle(owner)
    assert owner.engine.running == 0
    assert owner.store._responses == {}


async def test_a_store_that_is_away_delays_followers(monkeypatch: pytest.MonkeyPatch, redis: bool) -> None:
    monkeypatch.setattr(following, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(log, "RETRY_SECONDS", 0.01)
    gate = asyncio.Event()
    owner, asked = workers(redis=redis, engine=says_half(gate))
    reading = await owner.begin(input="hi", background=True)
    await reading.until("response.output_text.delta")
    followed = await asked.follow(id_of(reading))
    await followed.until("response.output_text.delta")
    failing = Failing(owner.store, "log_since", 3)
    gate.set()
    events = await reading.to_the_end()
    assert await followed.to_the_end() == events
    assert failing.left == 0


@pytest.mark.parametrize("lost", ["the bell's", "to follow"])
async def test_a_word_that_is_lost_or_does_not_go_out_only_delays(monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    gate = asyncio.Event()
    owner, asked = workers(redis=True, engine=says_half(gate))
    if lost == "to follow":
        monkeypatch.setattr(following, "LOOK_SECONDS", 0.01)
        Held(asked.others, "ask_to_follow")
    else:
        monkeypatch.setattr(following, "BELL_SECONDS", 0.02)
        monkeypatch.setattr(asked.followers, "ring", lambda response_ids: None)
    reading = await owner.begin(input="hi", background=True)
    await (owner.engine.waits.wait() if lost == "to follow" else reading.until(DELTA))
    followed = await asked.follow(id_of(reading))
    gate.set()
    assert await followed.to_the_end() == await reading.to_the_end()


async def test_its_own_worker_gives_what_it_has_forgotten_of_it(redis: bool, gate: asyncio.Event) -> None:
    owner, _ = workers(redis=redis, engine=says_half(gate))
    reading = await owner.begin(input="hi", transport="json")
    await reading.until("response.output_text.delta")
    followed = await owner.follow(id_of(reading))
    await followed.until("response.output_text.delta")
    gate.set()
    assert await followed.to_the_end() == await reading.to_the_end()


async def test_a_log_is_read_no_faster_than_its_reader_takes() -> None:
    words = "word " * 2000
    owner, asked = workers(redis=True, engine=FakeEngine([[*HALF.split(), *words.split(" "), asyncio.Event(), ANSWER]]))
    asked.followers._settings = run_settings(stream_max_lag_bytes=20_000)
    reading = await half_said(owner, background=True)
    await eventually(lambda: kept_chunks(owner.store) > 2000)
    followed = await asked.follow(id_of(reading))
    waiting = followed.reader.source.journal
    assert isinstance(waiting, following.PacedJournal)
    await eventually(lambda: waiting.kept_bytes > 10_000)
    for _ in range(100):
        await asyncio.sleep(0)
    assert waiting.kept_bytes < 12_000, "nothing is taken, so nothing more is read"
    while len(followed.events) < 2000:
        await followed.wake.wait(1)
        followed.take()  # raises if the reader was dropped
        await asyncio.sleep(0)
    numbers = [event["sequence_number"] for event in followed.events]
    assert numbers == list(range(len(numbers)))
    followed.leave()
    await eventually(lambda: not asked.followers._followed)


async def test_those_who_follow_one_response_look_at_its_log_together(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, gate: asyncio.Event
) -> None:
    monkeypatch.setattr(following, "RETRY_SECONDS", 0.01)
    owner, asked = workers(redis=True, engine=says_half(gate))
    looks = at_once = most = 0
    look, away = owner.store.log_since, False

    async def counted(project: str, response_id: str, position: int) -> LogNews | None:
        nonlocal looks, at_once, most
        looks, at_once = looks + 1, at_once + 1
        most = max(most, at_once)
        await asyncio.sleep(0.01)
        at_once -= 1
        if away:
            raise StoreError("away")
        return await look(project, response_id, position)

    monkeypatch.setattr(owner.store, "log_since", counted)
    readings = [await owner.begin(input="hi", background=True) for _ in range(5)]
    await eventually(lambda: owner.engine.running == 5)
    followed = [await asked.follow(id_of(reading)) for reading in readings for _ in range(20)]
    for each in followed:
        await each.until("response.output_text.delta")
    assert looks <= 25, "not one for each of the 100 readers"
    away = True
    gate.set()
    for reading in readings:
        await reading.to_the_end()
    await eventually(lambda: "cannot be followed" in caplog.text)
    away = False
    for each in followed:
        assert (await each.to_the_end())[-1]["type"] == "response.completed"
    assert most <= following.LOOKS_AT_ONCE
    assert caplog.text.count("cannot be followed") == 1
    assert asked.followers._looks == {}


async def test_no_task_is_left_behind(redis: bool) -> None:
    owner, asked = workers(redis=redis, engine=says_half())
    reading = await owner.begin(input="hi", background=True)
    await reading.until("response.output_text.delta")
    for leaves in (True, False):
        followed = await asked.follow(id_of(reading))
        await followed.until("response.output_text.delta")
        assert len(asked.followers._followed) == 1
        if leaves:
            followed.leave()
        else:
            await asked.followers.aclose()
            assert followed.reader.ended
        await eventually(lambda: len(asked.followers._followed) == 0)


async def test_a_store_that_is_away_at_the_end_of_a_cut_response_tells_nothing_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(following, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(following, "BELL_SECONDS", 0.01)
    owner, asked = workers(redis=True, engine=says_half())
    reading = await owner.begin(input="hi", transport="sse")
    followed = await asked.follow(id_of(reading))
    await followed.until("response.output_text.delta")
    Failing(owner.store, "response", 2)
    kept = owner.store._responses["default", id_of(reading)]
    kept.response = {**kept.response, "status": "failed", "error": {"code": "server_error", "message": "It stopped."}}
    events = await followed.to_the_end()
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == "response.failed"


async def test_a_look_at_a_store_that_hangs_ends_with_the_followers() -> None:
    owner, asked = workers(redis=False, engine=says_half())
    reading = await owner.begin(input="hi", background=True)
    await reading.until("response.output_text.delta")
    looking = Held(owner.store, "log_since")
    await asked.follow(id_of(reading))
    await looking.waits.wait()
    await asked.followers.aclose()
    assert [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("look at")] == []
