"""The laws of timelines: phases in order, none over another, all of the time, and any part of a log tells the same."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.formats.harmony.format import HarmonyFormat
from engine.types import FinishReason
from responses_app.protocol.response.input_codec import decode_timed, encode_one
from responses_app.protocol.response.steps import (
    Ended,
    Enqueued,
    Failed,
    Input,
    RunStarted,
    Sampled,
    ToolReturned,
    TurnBegan,
)
from responses_app.protocol.response.timeline import Phase, PhaseKind, Timeline, TurnTokens, guess, timeline_of, untimed
from tests.unit.protocol.machines import ANSWER, AT, FIRST_CALL, PYTHON, THOUGHT, Driver, count, machine, sampled, told
from tests.unit.protocol.test_response_machine import FORMATS, runs, short_thoughts_are_summed_up  # noqa: F401 - a fixture

CREATED = 1_700_000_000_000
Timed = list[tuple[Input, int | None]]


def timeline(driver: Driver, log: Timed) -> Timeline:
    """Return the timeline of a log, by a new machine of the same kind as the driver's."""
    stream = driver.machine.stream
    again = machine(driver.machine._format, hosted=stream.called.hosts, one_call=driver.machine.reader.one_call)
    return timeline_of(log, again, created=CREATED)


@st.composite
def timed(draw: st.DrawFn, driver: Driver) -> Timed:
    """Date the inputs of a response: most of them, by a clock that sometimes goes back."""
    now, log = CREATED, list[tuple[Input, int | None]]()
    for each in driver.log:
        now += draw(st.integers(-20, 2_000))
        log.append((each, now if not log or draw(st.integers(0, 3)) else None))
    return log


@pytest.mark.parametrize("model", FORMATS)
class TestLaws:
    @settings(max_examples=30, deadline=None)
    @given(st.data())
    def test_phases_are_the_whole_time_and_none_is_over_another(self, model: str, data: st.DataObject) -> None:
        driver = data.draw(runs(model))
        told = timeline(driver, data.draw(timed(driver)))
        assert told.phases[0].began == CREATED
        for earlier, later in pairwise(told.phases):
            assert earlier.ended == later.began >= earlier.began
            assert earlier.turn <= later.turn
        assert told.phases[-1].ended == told.ended is not None
        assert [turn.output for turn in told.turns] == [turn.output_tokens for turn in driver.machine.turns]
        assert {phase.turn for phase in told.phases} <= set(range(1, max(2, len(told.turns) + 2)))

    @settings(max_examples=30, deadline=None)
    @given(st.data())
    def test_any_beginning_of_a_log_gives_the_beginning_of_the_timeline(self, model: str, data: st.DataObject) -> None:
        driver = data.draw(runs(model))
        log = data.draw(timed(driver))
        whole = timeline(driver, log)
        cut = data.draw(st.integers(1, len(log)))
        part = timeline(driver, log[:cut])
        *over, last = part.phases
        assert over == whole.phases[: len(over)]
        same = whole.phases[len(over)]
        assert (last.kind, last.turn, last.began, last.name) == (same.kind, same.turn, same.began, same.name)
        assert last.ended in (None, same.ended)


LOOP: Timed = [
    (Enqueued(), CREATED + 1),
    (RunStarted(), CREATED + 40),
    (TurnBegan(9), CREATED + 50),
    (sampled(THOUGHT.removesuffix("<|start|>assistant")), CREATED + 100),
    (sampled("<|start|>assistant" + PYTHON.removesuffix("<|call|>")), CREATED + 200),
    (sampled("<|call|>", FinishReason.STOP, cached=4), CREATED + 300),
    (ToolReturned("2"), CREATED + 900),
    (TurnBegan(20), CREATED + 910),
    (sampled(ANSWER.removesuffix("<|return|>")), CREATED + 1_000),
    (sampled("<|return|>", FinishReason.STOP), CREATED + 1_100),
    (Ended(AT), CREATED + 1_150),
]


def test_a_loop_of_a_tool_has_these_phases() -> None:
    driver, _ = told(*(each for each, _ in LOOP), hosted=True)
    got = timeline(driver, LOOP)
    kinds = [(phase.kind.value, phase.turn, phase.began - CREATED, phase.name) for phase in got.phases]
    assert kinds == [
        ("queue", 1, 0, ""),
        ("prefill", 1, 50, ""),
        ("reasoning", 1, 100, ""),
        ("call", 1, 200, "python"),
        ("tool", 1, 300, "python"),
        ("queue", 2, 900, ""),
        ("prefill", 2, 910, ""),
        ("answer", 2, 1_000, ""),
        ("saving", 2, 1_100, ""),
    ]
    assert (got.ended, got.milliseconds(0)) == (CREATED + 1_150, 1_150)
    spoken = count(THOUGHT) + count(PYTHON)
    assert got.turns == [
        TurnTokens(9, 4, spoken, CREATED + 100),
        TurnTokens(20, 0, count(ANSWER), CREATED + 1_000),
    ]


def test_one_that_waits_for_its_client_says_so() -> None:
    log: Timed = [
        (RunStarted(waits=True), CREATED),
        (TurnBegan(9), CREATED + 10),
        (sampled(FIRST_CALL, FinishReason.STOP), CREATED + 20),
    ]
    got = timeline(Driver(machine(HarmonyFormat())), log)
    assert [phase.kind for phase in got.phases][-2:] == [PhaseKind.CALL, PhaseKind.CLIENT]
    assert (got.ended, got.milliseconds(CREATED + 500)) == (None, 500)


def test_what_is_told_behind_the_end_changes_nothing() -> None:
    failed: Timed = [(RunStarted(), CREATED), (Failed({"code": "server_error", "message": "It broke."}), CREATED + 5)]
    late: Timed = [(TurnBegan(9), CREATED + 6), (sampled(ANSWER, FinishReason.STOP), CREATED + 7)]
    driver = Driver(machine(HarmonyFormat()))
    assert timeline(driver, failed + late) == timeline(driver, failed)
    assert timeline(driver, failed).phases[-1] == Phase(PhaseKind.SAVING, 1, CREATED + 5)


def test_a_log_without_times_has_turns_and_what_else_is_known() -> None:
    got = timeline(told(hosted=True)[0], [(each, None) for each, _ in LOOP])
    assert not got.is_timed
    assert [turn.input for turn in got.turns] == [9, 20]
    guess(got, first_token=CREATED + 100, ended=CREATED + 1_150)
    assert [(phase.began - CREATED, phase.ended) for phase in got.phases] == [
        (0, CREATED + 100),
        (100, CREATED + 1_150),
    ]
    guess(got, first_token=CREATED + 2_000, ended=CREATED + 1_150)  # cannot be
    assert [(phase.began, phase.ended) for phase in got.phases] == [(CREATED, CREATED + 1_150)]


@pytest.mark.parametrize(
    ("usage", "turns"),
    [
        (None, []),
        ({"input_tokens": 5, "output_tokens": "x"}, [TurnTokens(5, 0, 0)]),
        (
            {
                "input_tokens": 30,
                "input_tokens_details": {"input_tokens_per_turn": [10, 20], "cached_tokens_per_turn": [0, 10]},
                "output_tokens_details": {"output_tokens_per_turn": [3, 4]},
            },
            [TurnTokens(10, 0, 3), TurnTokens(20, 10, 4)],
        ),
    ],
)
def test_a_response_without_a_log_has_the_tokens_of_its_object(usage: object, turns: list[TurnTokens]) -> None:
    got = untimed(CREATED, usage)
    assert (got.turns, got.is_timed, got.ended) == (turns, False, None)


def test_times_are_read_from_the_log_as_they_were_written() -> None:
    data = b"".join(encode_one(each, at) for each, at in LOOP)
    assert list(decode_timed(data)) == LOOP
    assert list(decode_timed(encode_one(Sampled([1])))) == [(Sampled([1]), None)]
