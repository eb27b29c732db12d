"""A background response whose worker is gone: another one goes on behind its log, and readers see one stream."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from engine.formats.harmony.encoding import RETURN
from engine.types import FinishReason, GenerationRequest, TokenChunk
from responses_app.kit.errors import StoreError
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.events.dialects import parse_dialect
from responses_app.protocol.requests.resources import Status
from responses_app.protocol.response.input_codec import BrokenLog, decode, encode
from responses_app.protocol.response.steps import Ended, Enqueued, Input, RunStarted, Sampled, ToolReturned, TurnBegan
from responses_app.runs.log import following
from responses_app.runs.log import run_log as log
from responses_app.stores.base import AcceptedResponse, Claim, ClaimLost, LogAppend, LogNews
from responses_app.tools.base import BaseTool
from tests.kit.fakes import CALL_F, THOUGHT, TOOL_F, FakeEngine, FakeStore, Reading, Site, run_settings
from tests.kit.laws import assert_laws
from tests.kit.memory_stores import MemoryResponseStore
from tests.kit.waiting import eventually
from tests.unit.runs.readers import DELTA, HALF, Held, half_said, hanging, hung, id_of, refused, says_half
from tests.unit.runs.test_server_tools import ASKED, Shell, items_of, prompt_of

ANSWER = f"{THOUGHT}<|channel|>final<|message|>Grüße 🙂, it is 2.<|return|>"
UNKNOWN = "<|channel|>commentary to=browser.open code<|message|>1+1<|call|>"
OTHER_ORDER = " to=functions.f<|channel|>commentary json<|message|>{}<|call|>"
SUMMARY = "<|channel|>final<|message|>They said hi.<|return|>"


class TokenEngine(FakeEngine):
    """Gives a token at a time, and goes on behind what of a turn stands in the prompt already.

    So it says what it would have said undisturbed, whoever asks, wherever a turn was cut.
    """

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenChunk, None]:
        self.requests.append(request)
        said = self.encode(self._said(request))
        rest = said[self._already(list(request.prompt_token_ids), said) :][: request.sampling.max_output_tokens]
        self.running += 1
        try:
            for index, token in enumerate(rest):
                last = index == len(rest) - 1
                yield TokenChunk(
                    token_ids=[token],
                    finish_reason=(FinishReason.STOP if token in self.ends else FinishReason.LENGTH) if last else None,
                    cached_tokens=3 if token == said[0] else None,
                )
                await asyncio.sleep(0)
        finally:
            self.running -= 1

    def _said(self, request: GenerationRequest) -> str:
        number = int(request.request_id.rpartition("-")[2])
        return str(self.turns[min(number, len(self.turns) - 1)][0])

    @staticmethod
    def _already(prompt: Sequence[int], said: Sequence[int]) -> int:
        return next(
            count for count in range(len(said) - 1, -1, -1) if list(prompt[len(prompt) - count :]) == said[:count]
        )


class GatedEngine(TokenEngine):
    """Says nothing before its gate is open."""

    def __init__(self, turns: Sequence[str], gate: asyncio.Event) -> None:
        super().__init__(turns)
        self._gate = gate

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenChunk, None]:
        await self._gate.wait()
        async for chunk in super().generate(request):
            yield chunk


LONG_ANSWER = f"<|channel|>final<|message|>{'and so on ' * 60}<|return|>"
LONG = f"<|channel|>analysis<|message|>{'I look at it from every side. ' * 2}<|end|>"
LONG_THOUGHT = f"{LONG}<|start|>assistant{OTHER_ORDER}"
SUMMED_UP = "I looked.<|return|>"
SEALED: dict[str, object] = {"include": ["reasoning.encrypted_content"], "tools": [TOOL_F]}
TRIGGERED = [{"role": "user", "content": "hi " * 40}, {"type": "compaction_trigger"}]
CASES: dict[str, tuple[list[str], dict[str, object]]] = {
    "an answer": ([ANSWER], {}),
    "a call": ([CALL_F], {"tools": [TOOL_F]}),
    "a tool that is not there": ([UNKNOWN, ANSWER], {}),
    "few tokens": ([ANSWER], {"max_output_tokens": 16}),
    "a compaction": ([SUMMARY], {"input": TRIGGERED}),
    "seals": ([OTHER_ORDER], SEALED),
    "a summary": ([LONG_THOUGHT, SUMMED_UP, OTHER_ORDER], {**SEALED, "reasoning": {"summary": "auto"}}),
}


async def undisturbed(
    turns: list[str], fields: dict[str, object], *, tools: Sequence[BaseTool] = ()
) -> tuple[AcceptedResponse, list[JsonObject]]:
    """Let a response run to its end; return how it was accepted, with its log, and its events."""
    site = Site(TokenEngine(turns), tools=tools)
    reading = await site.begin(background=True, **{"input": "hi", **fields})
    kept = site.store._responses["default", id_of(reading)]
    assert isinstance(kept.of, AcceptedResponse)
    accepted = kept.of
    events = await reading.to_the_end()
    assert_laws(events)
    return replace(accepted, log=site.store.saved[0].log), events


async def left_at(accepted: AcceptedResponse, log: bytes) -> FakeStore:
    """Return a store with a response whose worker was killed when its log was this long."""
    store = FakeStore()
    await store.accept(replace(accepted, claim=Claim("dead"), log=b""))
    response_id = str(accepted.response["id"])
    await store.append([LogAppend(response_id=response_id, claim=Claim("dead"), position=0, data=log)])
    return store


async def taken_over(site: Site, response_id: str) -> Reading:
    """Let a site claim what was left, and go on with it; return a reader of it, from its first event on."""
    (claimed,) = (await site.store.reclaim("heir", dead_before=0.0)).claimed
    await site.service.run_again(claimed)
    return await site.follow(response_id)


async def gone_on(
    accepted: AcceptedResponse, inputs: Sequence[Input], engine: FakeEngine, **parts: Any
) -> tuple[Site, Reading]:
    """Let another worker go on with a response whose worker was killed behind these inputs; return it and a reader."""
    site = Site(engine, await left_at(accepted, encode(inputs)), worker="heir", **parts)
    return site, await taken_over(site, str(accepted.response["id"]))


async def assert_the_same_wherever_it_is_cut(
    accepted: AcceptedResponse, events: Sequence[JsonObject], engine: Callable[[], FakeEngine], **parts: Any
) -> None:
    """Whoever goes on with an undisturbed response, behind one of some ten of its inputs, tells the same."""
    inputs = list(decode(accepted.log))
    for count in range(0, len(inputs), max(2, len(inputs) // 10)):
        _, reading = await gone_on(accepted, inputs[:count], engine(), **parts)
        assert await reading.to_the_end() == events, f"cut behind {count} of {len(inputs)} inputs"


@pytest.mark.parametrize("case", CASES)
async def test_cut_anywhere_the_stream_is_the_one_of_an_undisturbed_run(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("responses_app.protocol.response.turns.MIN_THOUGHT", 8)
    turns, fields = CASES[case]
    accepted, events = await undisturbed(turns, fields)
    assert case != "a summary" or "I looked." in str(events)
    inputs = list(decode(accepted.log))
    assert isinstance(inputs[-1], Ended)
    for count in range(len(inputs)):
        site, reading = await gone_on(accepted, inputs[:count], TokenEngine(turns))
        again = await reading.to_the_end()
        told = map(unsealed, (again, events)) if case == "a compaction" else map(str, (again, events))
        assert len(set(told)) == 1, f"cut behind {count} of {len(inputs)} inputs"
        stored = site.store.saved[0]
        assert stored.response["output"] == again[-1]["response"]["output"]  # type: ignore[index]
        assert stored.claim == Claim("heir", 2)
        assert len(list(decode(stored.log))) == len(inputs)
        await eventually(lambda: site.engine.running == 0)  # noqa: B023


def unsealed(events: Sequence[JsonObject]) -> str:
    """Return events without what is sealed of a compaction, which is another text each time."""
    return re.sub(r"'encrypted_content': '[^']*'", "", str(events))


async def test_a_reader_goes_on_behind_the_last_event_it_had() -> None:
    accepted, events = await undisturbed([ANSWER], {})
    inputs = list(decode(accepted.log))
    site, reading = await gone_on(accepted, inputs[: len(inputs) // 2], TokenEngine([ANSWER]))
    reading = await site.follow(id_of(reading), starting_after=5)
    assert await reading.to_the_end() == events[6:]


def looks_at(site: Site, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the position of each look at a log from now on."""
    looked, look = [], site.store.log_since

    async def counted(project: str, response_id: str, position: int) -> LogNews | None:
        looked.append(position)
        return await look(project, response_id, position)

    monkeypatch.setattr(site.store, "log_since", counted)
    return looked


@pytest.mark.parametrize("dialect", ["openai", "tool-delta-objects"])
@pytest.mark.parametrize("last", [None, 0, 5])
async def test_who_followed_it_where_it_goes_on_reads_what_runs_there(
    last: int | None, dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the events of an undisturbed run, and looks at the log no more."""
    fields: dict[str, object] = {"tools": [TOOL_F]}
    accepted, events = await undisturbed([CALL_F], fields)
    inputs = list(decode(accepted.log))
    gate = asyncio.Event()
    site = Site(GatedEngine([CALL_F], gate), await left_at(accepted, encode(inputs[: len(inputs) // 2])), worker="heir")
    response_id = str(accepted.response["id"])
    follow = site.responses.follow("default", response_id, starting_after=last, dialect=parse_dialect(dialect))
    reading = Reading(site, await follow)
    late = await taken_over(site, response_id)
    await eventually(lambda: late.run.journal.readers == 2)
    looked = looks_at(site, monkeypatch)
    gate.set()
    told = await reading.to_the_end()
    assert await late.to_the_end() == events
    first = 0 if last is None else last + 1
    if dialect == "openai":
        assert told == events[first:]
    else:
        wanted = await site.responses.follow(
            "default", response_id, starting_after=last, dialect=parse_dialect(dialect)
        )
        assert told == await Reading(site, wanted).to_the_end()
    assert looked == []
    assert reading.reader.source.status is Status.COMPLETED
    assert reading.reader.source.response()["output"] == events[-1]["response"]["output"]  # type: ignore[index]
    await eventually(lambda: not site.followers._followed)


async def test_who_reads_it_where_it_went_on_follows_it_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is taken over twice: the reader is on the worker that had it in between."""
    monkeypatch.setattr(following, "LOOK_SECONDS", 0.01)
    accepted, events = await undisturbed([ANSWER], {})
    inputs = list(decode(accepted.log))
    store = await left_at(accepted, encode(inputs[: len(inputs) // 3]))
    between = Site(GatedEngine([ANSWER], asyncio.Event()), store, worker="between")
    response_id = str(accepted.response["id"])
    reading = await between.follow(response_id)
    await reading.until("response.in_progress")
    there = await taken_over(between, response_id)
    await eventually(lambda: there.run.journal.readers == 2)
    heir = Site(TokenEngine([ANSWER]), store, worker="heir")
    await between.registry.aclose()
    late = await taken_over(heir, response_id)
    assert await reading.to_the_end() == events
    assert await late.to_the_end() == events


async def test_who_is_too_slow_for_what_runs_here_gets_all_of_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log, "FOLLOWED_SECONDS", 0.0)
    accepted, events = await undisturbed([LONG_ANSWER], {})
    inputs = list(decode(accepted.log))
    gate = asyncio.Event()
    store = await left_at(accepted, encode(inputs[:4]))
    site = Site(
        GatedEngine([LONG_ANSWER], gate), store, worker="heir", settings=run_settings(stream_max_lag_bytes=4_000)
    )
    response_id = str(accepted.response["id"])
    reading = await site.follow(response_id)
    await reading.until("response.in_progress")
    await site.service.run_again((await site.store.reclaim("heir", dead_before=0.0)).claimed[0])
    run = site.registry.readable(response_id, -1)
    await eventually(lambda: run.journal.readers == 1)
    gate.set()
    await eventually(lambda: run.journal.closed)
    assert await reading.to_the_end() == events
    assert "falls behind what runs here" in caplog.text


async def test_what_was_sampled_and_not_kept_was_heard_by_nobody() -> None:
    site = hanging()
    appending = Held(site.store, "append")
    reading = await half_said(site, background=True)
    await appending.waits.wait()
    assert [event["type"] for event in reading.take()][-1] == "response.in_progress"
    appending.go_on.set()
    await reading.until(DELTA)
    log = site.store._responses["default", id_of(reading)].log
    assert [type(given) for given in decode(log)][:3] == [Enqueued, RunStarted, TurnBegan]


async def test_what_was_held_back_while_the_store_was_away_is_not_all_told_in_one_turn_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log, "RETRY_SECONDS", 0.01)
    site = hanging()
    site.store.failure = StoreError("away")
    accept = site.store.accept
    monkeypatch.setattr(site.store, "accept", lambda accepted: MemoryResponseStore.accept(site.store, accepted))
    readings = [await site.begin(input="hi", background=True) for _ in range(8)]
    monkeypatch.setattr(site.store, "accept", accept)
    await eventually(lambda: site.engine.running == 8)
    told = [sum(reading.reader.behind for reading in readings)]
    for reading in readings:
        reading.take()
    site.store.failure = None
    while (now := sum(reading.reader.behind for reading in readings)) < len(readings):
        told.append(now)
        await asyncio.sleep(0)
    assert len(set(told)) > len(readings) // 2, "one after the other"


async def test_a_turn_whose_last_token_came_without_its_end_is_not_sampled_on() -> None:
    accepted, events = await undisturbed([ANSWER], {})
    inputs = [given for given in decode(accepted.log) if not isinstance(given, Ended)]
    last = inputs[-1]
    assert isinstance(last, Sampled)
    assert list(last.token_ids) == [RETURN]
    inputs[-1] = Sampled([RETURN])  # as of an engine that gives its reason in a chunk of its own
    site, reading = await gone_on(accepted, inputs, TokenEngine([ANSWER]))
    assert (await reading.to_the_end())[-1] == events[-1]
    assert site.engine.requests == [], "the model had ended"


async def test_a_log_that_cannot_be_read_fails_it() -> None:
    accepted, _ = await undisturbed([ANSWER], {})
    site = Site(TokenEngine([ANSWER]), await left_at(accepted, b"\x01what"))
    (claimed,) = (await site.store.reclaim("heir", dead_before=0.0)).claimed
    with pytest.raises(BrokenLog):
        await site.service.run_again(claimed)


async def test_one_that_fails_behind_a_log_that_decides_another_end_fails_all_the_same(site: Site) -> None:
    accepted, _ = await undisturbed([ANSWER], {})
    inputs = [given for given in decode(accepted.log) if not isinstance(given, Ended)]
    error = {"code": "server_error", "message": "It stopped."}
    failed = site.service.machines.failed(replace(accepted, log=encode(inputs)), error)
    assert (failed.response["status"], failed.response["error"]) == ("failed", error)
    assert failed.response["completed_at"] is None
    replayed = site.service.machines.replay("default", failed)
    assert replayed.response() == failed.response


async def test_what_was_told_and_not_kept_is_not_asked_for_too_early_where_it_waits_again() -> None:
    accepted, events = await undisturbed([ANSWER], {})
    limits = run_settings(responses_max_in_flight=10, background_max_running=1)
    site = Site(TokenEngine([ANSWER]), await left_at(accepted, b""), limits)
    async with site.registry.queue.turn("default", "default", 0):
        first = await taken_over(site, str(accepted.response["id"]))
        await first.until("response.queued")
        second = await site.follow(str(accepted.response["id"]), starting_after=2)  # it had heard that it starts
        assert second.take() == []
    assert await second.to_the_end() == events[3:]
    assert await first.to_the_end() == events


async def test_what_is_kept_and_told_elsewhere_may_be_asked_for_before_its_own_worker_knows() -> None:
    gate = asyncio.Event()
    site = hanging(gate)
    appended = Held(site.store, "append", behind=True)
    reading = await site.begin(input="hi", background=True)
    await appended.waits.wait()
    elsewhere = await Site(store=site.store).follow(id_of(reading))
    told = await elsewhere.until(DELTA)
    elsewhere.leave()
    back = await site.follow(id_of(reading), starting_after=len(told) - 1)
    appended.go_on.set()
    gate.set()
    events = await reading.to_the_end()
    assert await back.to_the_end() == events[len(told) :]


async def test_what_is_given_to_another_worker_is_not_said_to_be_cancelled() -> None:
    site, reading = await hung(background=True)
    giving = Held(site.store, "give_back")
    closing = asyncio.create_task(site.registry.aclose())
    await giving.waits.wait()
    cancelling = asyncio.create_task(site.responses.cancel("default", id_of(reading)))
    await asyncio.sleep(0)
    giving.go_on.set()
    assert (await refused(cancelling)).status == 503, "its client asks again, and finds who runs it then"
    await closing


async def test_one_that_comes_back_while_its_lost_run_still_ends_is_not_forgotten_with_that() -> None:
    engine = SlowToAbort([[HALF, asyncio.Event(), ANSWER]])
    site = Site(engine, worker="a")
    lost = await site.begin(input="hi", background=True)
    await lost.until("response.output_text.delta")
    await site.store.reclaim("b", dead_before=float("inf"))
    (claimed,) = (await site.store.reclaim("a", dead_before=float("inf"))).claimed
    site.registry.lose(id_of(lost))
    await engine.aborting.wait()
    await site.service.run_again(claimed)
    await eventually(lambda: len(engine.requests) == 2)
    engine.go_on.set()
    while not lost.reader.ended:
        lost.take()
        await asyncio.sleep(0)
    for _ in range(5):
        await asyncio.sleep(0)
    again = site.registry.get(id_of(lost))
    assert again is not None
    assert again is site.registry.resumable.get(id_of(lost))
    await site.registry.aclose()
    assert engine.running == 0


class SlowToAbort(FakeEngine):
    """An engine whose first generation takes long to abort."""

    def __init__(self, turns: Sequence[Sequence[str | asyncio.Event]]) -> None:
        super().__init__(turns)
        self.aborting = asyncio.Event()
        self.go_on = asyncio.Event()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenChunk, None]:
        is_first = not self.requests
        try:
            async for chunk in super().generate(request):
                yield chunk
        finally:
            if is_first:
                self.aborting.set()
                await self.go_on.wait()


# A tool that ran when its worker was killed.

SHELL_CALL = f"{THOUGHT}<|channel|>analysis to=python code<|message|>1+1<|call|>"


async def cut_while_its_tool_ran(tool: Shell) -> tuple[Site, Reading]:
    """Return a site that goes on with a response whose worker was killed while it ran a tool, and its reader."""
    turns, fields = [SHELL_CALL, ANSWER], {"tools": ASKED}
    accepted, _ = await undisturbed(turns, fields, tools=[tool])
    inputs: list[Input] = list(decode(accepted.log))
    place = next(index for index, given in enumerate(inputs) if isinstance(given, ToolReturned))
    tool.ended.clear()
    return await gone_on(accepted, inputs[:place], TokenEngine(turns), tools=[tool])


async def test_a_tool_that_may_be_run_again_is() -> None:
    tool = Shell(repeatable=True)
    _, reading = await cut_while_its_tool_ran(tool)
    assert ("code_interpreter_call", "completed") in items_of(await reading.to_the_end())
    assert tool.ended.is_set()


async def test_any_other_fails_and_the_model_goes_on() -> None:
    tool = Shell()
    site, reading = await cut_while_its_tool_ran(tool)
    events = await reading.to_the_end()
    assert ("code_interpreter_call", "failed") in items_of(events)
    assert events[-1]["response"]["status"] == "completed"  # type: ignore[index]
    assert not tool.ended.is_set(), "it did not run a second time"
    assert "the server stopped while the tool ran" in prompt_of(site, 0)


@pytest.mark.parametrize("moment", ["before it is accepted again", "before it starts"])
async def test_one_that_is_deleted_while_it_is_taken_over_never_runs(moment: str) -> None:
    store = FakeStore()
    behind = moment == "before it starts"
    accepting = Held(store, "accept", behind=behind, when=lambda accepted: accepted.again)
    engine = says_half()
    site = Site(engine, store, worker="a")
    lost = await site.begin(input="hi", background=True)
    await lost.until("response.output_text.delta")
    response_id = id_of(lost)
    (claimed,) = (await store.reclaim("b", dead_before=float("inf"))).claimed
    heir = Site(FakeEngine([ANSWER]), store, worker="b")
    again = asyncio.create_task(heir.service.run_again(claimed))
    await accepting.waits.wait()
    await heir.responses.delete("default", response_id)
    accepting.go_on.set()
    with pytest.raises(ClaimLost):
        await again
    assert (list(heir.registry.running), heir.engine.requests) == ([], [])
    assert (await refused(heir.responses.response("default", response_id))).status == 404
