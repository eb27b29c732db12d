"""A finished response's stream is made again of its log: byte for byte, from any number on."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from engine.errors import EngineUnavailable
from responses_app.protocol.requests.resources import Status
from responses_app.runs import by_id
from responses_app.runs.log.journal import JournalEntry
from responses_app.stores.base import StoredLog
from tests.kit.fakes import FakeEngine, Site, run_settings
from tests.kit.waiting import eventually
from tests.unit.runs.readers import id_of, refused

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


async def test_unknown_and_foreign_ones_are_not_found() -> None:
    site = Site(FakeEngine([[ANSWER]]))
    response_id, _ = await told(site, input="hi")
    for at in (site, Site(store=site.store)):  # the worker that has its stream, and one that has its log
        for project, wanted in (("other", response_id), ("default", "resp_0")):
            assert (await refused(at.responses.follow(project, wanted, starting_after=None))).status == 404


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
