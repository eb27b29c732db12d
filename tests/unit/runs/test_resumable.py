"""Streams that can be picked up again: what is kept, for how long, what goes first; they are made again of logs."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from engine.errors import EngineUnavailable
from responses_app.protocol.requests.resources import ResponseObject, Status
from responses_app.runs import by_id
from responses_app.runs.log.journal import JournalEntry
from responses_app.runs.registry.registry import size_of
from responses_app.stores.base import StoredLog
from tests.kit.fakes import FakeEngine, Reading, Site, run_settings
from tests.kit.waiting import eventually
from tests.unit.runs.readers import half_said, id_of, idle, refused, says_half


def site_of(*, grace: float = 0.0, engine: FakeEngine | None = None, **limits: float) -> Site:
    """Return a site with these limits of its sessions."""
    return Site(engine or FakeEngine(), settings=run_settings(reconnect_grace_seconds=grace, **limits))


async def streamed(site: Site, **fields: object) -> Reading:
    """Let a streamed response go to its end."""
    reading = await site.begin(transport="sse", **fields)
    await reading.to_the_end()
    reading.leave()
    return reading


@pytest.mark.parametrize("number", [-1, 0, 3])
async def test_a_finished_stream_is_replayed_from_any_event(number: int, site: Site) -> None:
    first = await streamed(site, input="hi")
    again = await site.follow(first.run.response_id, starting_after=number if number >= 0 else None)
    assert await again.to_the_end() == first.events[number + 1 :]


async def test_nobody_comes_back_within_the_grace() -> None:
    site = site_of(engine=says_half(), grace=0.05)
    reading = await half_said(site, transport="websocket")
    reading.leave()
    assert reading.run.status is Status.IN_PROGRESS
    await idle(site)
    assert reading.run.status is Status.CANCELLED
    kept = await site.responses.response("default", reading.run.response_id)
    assert kept["status"] == "cancelled"
    assert kept["output"][0]["content"][0]["text"] == "Half of it"  # type: ignore[index]


@pytest.mark.parametrize("fields", [{"transport": "json"}, {"transport": "sse", "store": False}])
async def test_what_is_not_kept_has_no_grace_and_no_session(fields: dict[str, object]) -> None:
    site = site_of(engine=says_half(), grace=30)
    reading = await half_said(site, **fields)
    assert len(site.registry.resumable) == 0
    reading.leave()
    await idle(site)
    assert reading.run.status is Status.CANCELLED


async def test_a_stored_response_whose_stream_is_not_kept_is_read_from_its_log() -> None:
    site = site_of(responses_session_ttl=0.0)
    reading = await streamed(site, input="hi")
    site.registry.resumable.sweep()  # notes its end
    site.registry.resumable.sweep()
    assert len(site.registry.resumable) == 0
    again = await site.follow(id_of(reading))
    assert await again.to_the_end() == reading.events
    assert (await site.responses.response("default", reading.run.response_id))["status"] == "completed"


async def test_a_stream_that_is_kept_has_let_go_of_what_its_response_was_made_of() -> None:
    site = site_of(responses_session_ttl=60.0)
    first = await streamed(site, input="hi")
    reading = await streamed(
        site,
        input="A long story. " * 500,
        previous_response_id=first.run.response_id,
        tools=[{"type": "function", "name": "shell", "parameters": {"type": "object", "properties": {}}}],
        include=["tokens"],
    )
    run, told = reading.run, reading.run.response()
    assert len(run.plan.generation.prompt_token_ids) > 1000
    await idle(site)
    site.registry.resumable.sweep()  # notes its end
    site.registry.resumable.sweep()
    plan = run.plan
    assert not [*plan.generation.prompt_token_ids, *plan.draft, *plan.link.own.tokens, *plan.request.input_json]
    assert (plan.parent, run.link, list(plan.input_messages), len(plan.client_tools)) == (None, None, [], 0)
    assert site.registry.resumable.get(run.response_id) is run
    again = await site.follow(run.response_id)
    assert await again.to_the_end() == reading.events
    assert run.response() == told
    assert (await site.ask(input="and then?", previous_response_id=run.response_id))["status"] == "completed"


async def test_an_event_that_has_not_been_is_refused(site: Site) -> None:
    reading = await streamed(site, input="hi")
    error = await refused(site.responses.follow("default", reading.run.response_id, starting_after=len(reading.events)))
    assert error.param == "starting_after"


async def test_at_the_bound_the_longest_idle_finished_session_goes() -> None:
    site = site_of(responses_max_active_sessions=2)
    first, second, third = [await streamed(site, input=str(number)) for number in range(3)]
    assert site.registry.resumable.get(first.run.response_id) is None
    assert site.registry.resumable.get(second.run.response_id) is second.run
    assert site.registry.resumable.get(third.run.response_id) is third.run


async def test_then_the_longest_unread_foreground_one_whose_run_is_cancelled() -> None:
    site = site_of(responses_max_active_sessions=2, engine=says_half(), grace=30)
    background = await site.begin(input="a", background=True, transport="background")
    unread = await site.begin(input="b", transport="sse")
    await eventually(lambda: site.engine.running == 2)
    background.leave()
    unread.leave()
    read = await site.begin(input="c", transport="sse")
    await eventually(lambda: unread.run.status is Status.CANCELLED)
    assert background.run.status is read.run.status is Status.IN_PROGRESS
    another = await site.begin(input="d", transport="sse")
    assert site.registry.resumable.get(another.run.response_id) is None, "all others are read or in the background"
    await eventually(lambda: another.run.status is Status.IN_PROGRESS)
    await asyncio.sleep(0)
    assert another.run.abandoned_reason == "", "it runs, it just cannot be picked up again"
    await eventually(lambda: site.engine.running == 3)
    assert another.run.status is Status.IN_PROGRESS, "it runs, and cannot be picked up again"


async def test_what_runs_is_left_alone_while_a_finished_one_can_go(gate: asyncio.Event) -> None:
    site = site_of(responses_max_active_sessions=2, engine=says_half(gate), grace=30)
    gate.set()
    finished = await streamed(site, input="a")
    gate.clear()
    running = await site.begin(input="b", transport="sse")
    await site.engine.waits.wait()
    running.leave()
    await site.begin(input="c", transport="sse")
    assert site.registry.resumable.get(finished.run.response_id) is None
    assert site.registry.resumable.get(running.run.response_id) is running.run
    assert running.run.status is Status.IN_PROGRESS


async def test_over_the_bound_of_bytes_the_oldest_go(site: Site) -> None:
    kept = [await streamed(site, input=str(number)) for number in range(4)]
    site.registry.resumable.sweep()  # notes their end
    site.registry.resumable.sweep()
    each = max(size_of(reading.run) for reading in kept)
    site.registry.resumable._settings = run_settings(responses_max_session_bytes=each * 2 + each // 2)
    site.registry.resumable.sweep()
    assert [site.registry.resumable.get(reading.run.response_id) is None for reading in kept] == [
        True,
        True,
        False,
        False,
    ]
    assert site.registry.resumable.kept_bytes <= each * 2 + each // 2
    assert kept[0].run.journal.kept_bytes == 0


async def test_a_response_deleted_while_it_runs_is_not_stored() -> None:
    site = site_of(engine=says_half())
    reading = await half_said(site, transport="sse")
    await site.responses.delete("default", reading.run.response_id)
    events = await reading.to_the_end()
    assert (events[-1]["type"], events[-1]["response"]["status"]) == ("response.incomplete", "cancelled")
    assert (site.engine.running, len(site.registry.resumable)) == (0, 0)
    assert await site.store.response("default", reading.run.response_id) is None


async def test_a_stream_that_is_forgotten_while_the_store_is_asked_is_read_from_its_log(
    monkeypatch: pytest.MonkeyPatch, site: Site
) -> None:
    reading = await site.begin(input="hi", transport="sse")
    events = await reading.to_the_end()
    reading.leave()
    ask = site.store.response

    async def response(project: str, response_id: str) -> ResponseObject | None:
        site.registry.resumable.drop(response_id)
        reading.run.journal.keep_no_longer()
        return await ask(project, response_id)

    monkeypatch.setattr(site.store, "response", response)
    again = await site.follow(id_of(reading), starting_after=0)
    assert await again.to_the_end() == events[1:]


async def test_the_time_to_live_begins_anew_when_a_reader_leaves() -> None:
    site = site_of(responses_session_ttl=0.1)
    reading = await site.begin(input="hi", transport="sse")
    await reading.to_the_end()
    site.registry.resumable.sweep()
    await asyncio.sleep(0.12)
    reading.leave()
    site.registry.resumable.sweep()
    assert len(site.registry.resumable) == 1


ANSWER = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>It is 2.<|return|>"
CALL = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"
UNKNOWN = "<|channel|>commentary to=python code<|message|>1+1<|call|>"
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
NOT_KEPT = run_settings(responses_max_active_sessions=0)


async def entries_of(site: Site, response_id: str, starting_after: int | None = None) -> list[bytes]:
    """Read a stream by its id; return the bytes of its events."""
    reader = await site.responses.follow("default", response_id, starting_after=starting_after)
    entries: Sequence[JournalEntry] = reader.take(10_000)
    reader.leave()
    return [entry.json for entry in entries]


async def told(site: Site, **fields: object) -> tuple[str, list[bytes]]:
    """Let a stored, streamed response run to its end; return its id and the bytes of its events."""
    reading = await site.begin(transport="sse", **fields)
    await reading.to_the_end()
    return id_of(reading), await entries_of(site, id_of(reading))


TWO_CALLS = CALL.replace("<|call|>", "<|end|>") + "<|start|>assistant" + CALL
TRIGGERED = [{"role": "user", "content": "hi"}, {"type": "compaction_trigger"}]
CASES = {
    "an answer": ([[ANSWER]], {}),
    "in pieces": ([["<|channel|>final<|message|>It", " is", " 2.", "<|return|>"]], {}),
    "a call": ([[CALL]], {"tools": [TOOL]}),
    "a tool that is not there": ([[UNKNOWN], [ANSWER]], {}),
    "one call of two": ([[TWO_CALLS]], {"tools": [TOOL], "parallel_tool_calls": False}),
    "in the background": ([[ANSWER]], {"background": True}),
    "a warm-up": ([[ANSWER]], {"generate": False}),
    "a compaction": ([["<|channel|>final<|message|>Sum.<|return|>"]], {"input": TRIGGERED}),
    "a failure": ([["<|channel|>final<|message|>It", EngineUnavailable("gone")]], {}),
    "too few tokens": ([[ANSWER]], {"max_output_tokens": 16}),
}


@pytest.mark.parametrize("case", CASES)
async def test_the_events_are_the_same(case: str) -> None:
    turns, fields = CASES[case]
    site = Site(FakeEngine(turns))
    response_id, events = await told(site, **{"input": "hi", **fields})
    site.registry.resumable.drop(response_id)
    assert await entries_of(site, response_id) == events
    for number in range(len(events)):
        assert await entries_of(site, response_id, number) == events[number + 1 :]


async def test_a_huge_one_is_made_as_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_id, "HUGE_LOG", 4_000)
    answer = f"{ANSWER.removesuffix('It is 2.<|return|>')}{'word ' * 1_100}"
    site = Site(
        FakeEngine([[*answer.split(" "), "<|return|>"]]), settings=replace(NOT_KEPT, stream_max_lag_bytes=100_000)
    )
    reading = await site.begin(input="hi", transport="json")
    events = await reading.to_the_end()
    for number in (None, len(events) - 2):
        again = await site.follow(id_of(reading), starting_after=number)
        journal = again.reader.source.journal
        await eventually(lambda: again.reader.behind)  # noqa: B023 - it is called here
        for _ in range(50):
            await asyncio.sleep(0)
        assert journal.kept_bytes < 200_000 or number == len(events) - 2
        assert await again.to_the_end() == events[0 if number is None else number + 1 :]
        assert again.reader.source.status is Status.COMPLETED
        again.leave()
    error = await refused(site.follow(id_of(reading), starting_after=len(events)))
    assert error.param == "starting_after"
    await eventually(lambda: not site.followers._followed)


async def test_one_that_its_worker_left_has_failed() -> None:
    site = Site(FakeEngine([[asyncio.Event()]]))
    reading = await site.begin(input="hi", transport="sse")
    await site.store.reclaim("another", dead_before=float("inf"))
    events = await entries_of(Site(store=site.store), id_of(reading))
    assert [b'"response.failed"' in each for each in events] == [False, False, True]


async def test_a_log_that_cannot_be_read_is_said_and_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(FakeEngine([[ANSWER]]))
    response_id, _ = await told(site, input="hi")
    site.registry.resumable.drop(response_id)
    kept = await site.store.log("default", response_id)

    async def damaged(project: str, response_id: str) -> StoredLog:
        return StoredLog(kept.response, b"\x01what")

    monkeypatch.setattr(site.store, "log", damaged)
    error = await refused(site.responses.follow("default", response_id, starting_after=None))
    assert error.code == "stream_not_kept"
    assert "cannot be read" in caplog.text
