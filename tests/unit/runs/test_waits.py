"""How long tools take, as it is learned, and what a response does with the time in which it waits for them."""

import asyncio
from collections.abc import Mapping

import pytest

from engine.errors import EngineUnavailable
from engine.formats.harmony.prompt import generation_start
from engine.types import NO_SESSION, Session
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.requests.requests import parse_create
from responses_app.protocol.rollouts.requests import RolloutRef
from responses_app.runs import rollouts
from responses_app.runs.driving import hands
from responses_app.runs.driving.hands import EVICTED_SECONDS, SOON_SECONDS, ClientWait
from responses_app.runs.plan import served as learned
from responses_app.runs.plan.plan import Origin
from responses_app.runs.plan.served import FEW, MAX_SECONDS, SAMPLES, ToolWaits
from tests.kit.fakes import ANSWER, CALL_F, TOOL_F, FakeEngine, Reading, Site
from tests.kit.laws import assert_laws
from tests.kit.waiting import eventually
from tests.unit.runs.readers import id_of
from tests.unit.runs.test_waiting import TWO_CALLS, given
from tests.unit.runs.test_waiting import waits as waits_for

SESSION, OTHER = Session(id="x"), Session(id="y")


def taught(seconds: Mapping[str, float], project: str = "p") -> ToolWaits:
    waits = ToolWaits()
    for tool, each in seconds.items():
        for _ in range(FEW):
            waits.note(project, tool, each)
    return waits


class TestLearning:
    def test_nothing_is_told_of_a_few_waits(self) -> None:
        waits = ToolWaits()
        for _ in range(FEW - 1):
            waits.note("p", "tests", 5.0)
            assert waits.expected("p", ["tests"]) is None
        waits.note("p", "tests", 5.0)
        assert waits.expected("p", ["tests"]) == 5.0

    def test_nine_of_ten_stayed_under_it(self) -> None:
        waits = ToolWaits()
        for second in range(1, 11):
            waits.note("p", "tests", float(second))
        assert waits.expected("p", ["tests"]) == 9.0
        for _ in range(SAMPLES):
            waits.note("p", "tests", 1.0)
        assert waits.expected("p", ["tests"]) == 1.0, "it forgets what was"

    def test_of_several_the_longest_counts_and_an_unknown_one_is_like_the_others(self) -> None:
        waits = taught({"lint": 1.0, "tests": 30.0})
        assert waits.expected("p", ["lint"]) == 1.0
        assert waits.expected("p", ["lint", "tests"]) == 30.0
        assert waits.expected("p", ["unknown"]) == waits.expected("p", []) == 30.0

    def test_what_took_too_long_was_no_tool(self) -> None:
        assert taught({"tests": MAX_SECONDS + 1}).expected("p", ["tests"]) is None
        assert taught({"tests": -1.0}).expected("p", ["tests"]) is None

    def test_a_session_teaches_by_coming_back(self) -> None:
        waits = ToolWaits()
        for turn in range(FEW):
            at = turn * 100.0
            waits.leave(SESSION, "p", ["tests"], at)
            waits.come_back(OTHER, "p", at + 1)
            waits.come_back(SESSION, "p", at + 7)
            waits.come_back(SESSION, "p", at + 50)  # the same turn, which was cut and goes on
        assert waits.come_back(SESSION, "p", 1000.0) == 7.0

    def test_an_answer_and_a_wait_that_is_measured_elsewhere_teach_nothing(self) -> None:
        waits = ToolWaits()
        for at in range(FEW):
            waits.leave(SESSION, "p", [], at)
            waits.come_back(SESSION, "p", at + 7)
            waits.leave(SESSION, "p", ["tests"], None)
            waits.come_back(SESSION, "p", at + 7)
            waits.leave(NO_SESSION, "p", ["tests"], at)
            waits.come_back(NO_SESSION, "p", at + 7)
        assert waits.expected("p", ["tests"]) is None

    def test_its_memory_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(learned, "MAX_TOOLS", 4)
        monkeypatch.setattr(learned, "MAX_SESSIONS", 2)
        waits = ToolWaits()
        for number in range(9):
            for tool in ("a", "b", "c"):
                waits.note(f"project {number % 4}", tool, 1.0)
                assert sum(map(len, waits._seconds.values())) == waits._count <= 4
        for number in range(9):
            waits.leave(Session(id=str(number)), "p", ["tests"], 0.0)
        assert [*waits._left] == ["7", "8"]
        waits.leave(SESSION, "p", ["x" * 10_000] * 100, 0.0)
        assert sum(map(len, waits._left[SESSION.id].tools)) <= learned.MAX_CALLS * learned.MAX_NAME

    def test_a_project_that_calls_thousands_of_tools_forgets_only_its_own(self) -> None:
        waits = taught({"tests": 30.0, "x" * 10_000: 7.0})
        for number in range(2 * learned.MAX_TOOLS):
            waits.note("other", f"tool {number}", 1.0)
        waits.note("other", "y" * 10_000, 1.0)
        assert waits.expected("p", ["tests"]) == 30.0
        assert waits.expected("p", ["x" * 10_000]) == 7.0
        assert waits._count <= learned.MAX_TOOLS_OF_PROJECT + 3
        assert max(map(len, waits._seconds["other"])) <= learned.MAX_NAME

    @pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -0.1])
    def test_what_is_no_time_teaches_nothing(self, seconds: float) -> None:
        assert taught({"tests": seconds}).expected("p", ["tests"]) is None


class Calls:
    def __init__(self, **tools: str) -> None:
        self.open_tools = tools
        self.given: set[str] = set()

    def state(self, call_id: str) -> str:
        return "answered" if call_id in self.given else "open"


class Waiting:
    """A wait at a clock of its own."""

    def __init__(self, calls: Calls, waits: ToolWaits, *, elapsed: float = 0.0) -> None:
        self.now, self.prefills, self.ended = 100.0, 0, False
        self.reading = asyncio.Event()
        self.wait = ClientWait(
            calls,  # type: ignore[arg-type]
            waits=waits,
            project="p",
            now=lambda: self.now,
            prefill=self._prefill,
            elapsed=elapsed,
        )
        self._calls = calls

    async def _prefill(self) -> None:
        self.prefills += 1
        self.reading.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended = True

    async def give(self, call_id: str, *, after: float) -> None:
        self.now += after
        self._calls.given.add(call_id)
        self.wait.hear()
        await asyncio.sleep(0)


LONG = EVICTED_SECONDS + 1


class TestWaiting:
    async def test_each_call_teaches_how_long_its_tool_took(self) -> None:
        waits = ToolWaits()
        for _ in range(FEW):
            waiting = Waiting(Calls(a="lint", b="tests"), waits)
            await waiting.give("a", after=0.5)
            await waiting.give("b", after=1.0)
            waiting.wait.hear()
            await waiting.wait.aclose()
        assert (waits.expected("p", ["lint"]), waits.expected("p", ["tests"])) == (0.5, 1.5)

    @pytest.mark.parametrize(
        ("tests_take", "after", "reads"),
        [
            (None, LONG, True),
            (None, EVICTED_SECONDS / 2, False),
            (LONG + SOON_SECONDS, LONG, True),
            (LONG + SOON_SECONDS + 1, LONG, False),
        ],
        ids=["nobody knows", "nothing is evicted yet", "the rest comes soon", "the rest takes long"],
    )
    async def test_the_prompt_is_read_again_where_the_rest_is_soon_there(
        self, tests_take: float | None, after: float, reads: bool
    ) -> None:
        waiting = Waiting(Calls(a="lint", b="tests"), taught({} if tests_take is None else {"tests": tests_take}))
        await waiting.give("a", after=after)
        assert waiting.prefills == reads
        await waiting.wait.aclose()
        assert waiting.ended == reads

    async def test_it_is_read_once_and_not_for_the_last_output(self) -> None:
        waiting = Waiting(Calls(a="lint", b="tests", c="build"), ToolWaits())
        await waiting.give("a", after=LONG)
        await waiting.give("b", after=LONG)
        await waiting.give("c", after=LONG)
        await waiting.wait.aclose()
        assert waiting.prefills == 1
        alone = Waiting(Calls(a="lint"), ToolWaits())
        await alone.give("a", after=LONG)
        assert alone.prefills == 0

    async def test_what_another_worker_has_waited_counts(self) -> None:
        waiting = Waiting(Calls(a="lint", b="tests"), ToolWaits(), elapsed=LONG)
        await waiting.give("a", after=0.0)
        assert waiting.prefills == 1
        await waiting.wait.aclose()


def output(call: JsonObject) -> JsonObject:
    return {"type": "function_call_output", "call_id": call["call_id"], "output": "done"}


def on_waiting(site: Site, monkeypatch: pytest.MonkeyPatch) -> ToolWaits:
    """Return what a site has learned, where no time has to pass for a prompt to be evicted."""
    monkeypatch.setattr(hands, "EVICTED_SECONDS", 0.0)
    return site.service.models.first.waits


class TestRuns:
    async def test_a_response_reads_its_prompt_again_while_the_rest_is_awaited(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reads = asyncio.Event()
        site = Site(FakeEngine([TWO_CALLS, [reads, ANSWER], ANSWER]))
        on_waiting(site, monkeypatch)
        reading, calls = await waits_for(site, calls=2)
        name = id_of(reading)
        await site.outputs.give("default", name, given(calls[0]))
        await eventually(lambda: len(site.engine.requests) == 2)
        turn, ahead = site.engine.requests
        assert (ahead.request_id, ahead.sampling.max_output_tokens) == (f"{name}-0-ahead", 1)
        assert (ahead.session, ahead.grammar) == (turn.session, None)
        # Outputs that come while it is read end that: what was read by then is in the cache.
        await site.outputs.give("default", name, given(calls[1]))
        events = await reading.to_the_end()
        assert_laws(events)
        assert events[-1]["type"] == "response.completed"
        assert site.engine.running == 0
        start = len(generation_start())
        asked = list(site.engine.requests[2].prompt_token_ids)
        assert asked[: len(ahead.prompt_token_ids) - start] == list(ahead.prompt_token_ids)[:-start]
        assert list(ahead.prompt_token_ids)[: len(turn.prompt_token_ids)] == list(turn.prompt_token_ids)

    async def test_an_engine_without_a_cache_is_not_asked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        site = Site(FakeEngine([TWO_CALLS, ANSWER]))
        site.engine.supports_prefill = False
        on_waiting(site, monkeypatch)
        reading, calls = await waits_for(site, calls=2)
        for call_id in calls:
            await site.outputs.give("default", id_of(reading), given(call_id))
            await asyncio.sleep(0)
        await reading.to_the_end()
        assert len(site.engine.requests) == 2

    async def test_a_prefill_that_fails_harms_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        site = Site(FakeEngine([TWO_CALLS, [EngineUnavailable("away")], ANSWER]))
        on_waiting(site, monkeypatch)
        reading, calls = await waits_for(site, calls=2)
        name = id_of(reading)
        await site.outputs.give("default", name, given(calls[0]))
        await eventually(lambda: len(site.engine.requests) == 2 and site.engine.running == 0)
        await site.outputs.give("default", name, given(calls[1]))
        assert (await reading.to_the_end())[-1]["type"] == "response.completed"

    async def test_turns_are_told_when_the_next_one_most_likely_comes(self) -> None:
        site = Site(FakeEngine([CALL_F, CALL_F, CALL_F, CALL_F, ANSWER, ANSWER]))
        waits, before = site.service.models.first.waits, None
        for _ in range(5):
            items = [] if before is None else [output(item) for item in before["output"] if "call_id" in item]
            more = {} if before is None else {"previous_response_id": before["id"]}
            before = await site.ask(input=items or "hi", tools=[TOOL_F], **more)
        told = [request.session.back_in for request in site.engine.requests]
        assert told[:FEW] == [None] * FEW
        assert told[FEW] is not None
        assert 0 <= told[FEW] <= waits.expected("default", ["f"])  # type: ignore[operator]
        assert len({request.session.id for request in site.engine.requests}) == 1
        await site.ask(input="and?", previous_response_id=before["id"])  # type: ignore[index]
        assert site.engine.requests[-1].session.back_in is None, "it can call nothing"


@pytest.mark.usefixtures("rollout_store")
class TestOver:
    async def test_a_rollout_that_ends_is_over_with_all_its_branches(self, site: Site) -> None:
        over: list[Session] = []
        site.engine.end_session = over.append  # type: ignore[method-assign]
        for branch in ("main", "agent"):
            ref = RolloutRef("r", branch)
            origin = Origin(transport="http", project="p", rollout=ref)
            await Reading(site, await site.service.create(parse_create({"input": "hi"}), origin)).to_the_end()
        asked = {request.session.id for request in site.engine.requests}
        assert over == []
        await site.service.rollouts.end("p", "r")
        assert {session.id for session in over} == asked
        await site.service.rollouts.end("p", "r")
        assert len(over) == 2

    async def test_branches_are_bounded(self, monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
        monkeypatch.setattr(rollouts, "MAX_RUNNING", 2)
        monkeypatch.setattr(rollouts, "MAX_BRANCHES", 3)
        for name in ("a", "b", "c"):
            for branch in range(5):
                await site.service.rollouts.enter("p", RolloutRef(name, str(branch)))
        assert [len(branches) for branches in site.service.rollouts._branches.values()] == [3, 3]
