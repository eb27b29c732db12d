"""A response that waits: it goes on in the same stream once its client has said what came of every call."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.formats.harmony.encoding import decode_tokens
from engine.formats.harmony.format import HarmonyFormat
from engine.types import FinishReason
from responses_app.protocol.output.stream import LocalProtocolError
from responses_app.protocol.response.steps import (
    Await,
    Command,
    Ended,
    Failed,
    Finish,
    Generate,
    Input,
    OutputGiven,
    RunStarted,
    Sampled,
    Stopped,
    StopReason,
    TimedOut,
    WaitBegan,
)
from tests.kit.laws import assert_laws
from tests.unit.protocol.machines import (
    ANSWER,
    AT,
    BROKEN,
    CALL,
    FIRST_CALL,
    HALF,
    Driver,
    ending_of,
    machine,
    sampled,
    told,
    turn,
    types_of,
)

TWO_CALLS = f"{FIRST_CALL}<|start|>assistant{CALL}"
BEGAN = WaitBegan(AT + 300.0)


def output(call_id: str, text: str = "18 °C") -> OutputGiven:
    return OutputGiven(call_id, text, text)


def waiting(*texts: str, hosted: bool = False) -> tuple[Driver, tuple[str, ...]]:
    """Let the model say these turns, of which the last one ends with calls; return its driver and the calls."""
    inputs = [each for text in texts for each in turn(text)]
    driver, command = told(RunStarted(waits=True), *inputs, BEGAN, hosted=hosted)
    assert command is None
    due = driver.machine.due
    assert isinstance(due, Await)
    assert due.until == BEGAN.until
    return driver, due.call_ids


def said(command: Command | None) -> str:
    """Return what is put before the model's next turn."""
    assert isinstance(command, Generate)
    return decode_tokens([token for message in command.said for token in message.tokens])


class TestOneCall:
    def test_the_output_is_an_item_and_the_model_reads_it(self) -> None:
        driver, (call_id,) = waiting(CALL)
        command = driver.tell(output(call_id))
        assert said(command).endswith("<|start|>functions.f to=assistant<|channel|>commentary<|message|>18 °C<|end|>")
        assert types_of(driver)[-2:] == ["output_item.added", "output_item.done"]
        item = driver.items[-1]
        assert {**item, "id": ""} == {
            "id": "",
            "type": "function_call_output",
            "status": "completed",
            "call_id": call_id,
            "output": "18 °C",
        }
        assert str(item["id"]).startswith("fco_")
        command = driver.tell_all(turn(ANSWER, prompt=40))
        assert ending_of(command) == ("completed", None)
        driver.tell(Ended(AT))
        assert_laws(driver.seen)
        usage = driver.seen[-1]["response"]["usage"]["output_tokens_details"]  # type: ignore[index]
        assert usage["tool_output_tokens"] > 0

    def test_no_tokens_are_left_when_the_output_comes(self) -> None:
        driver, command = told(RunStarted(budget=len(sampled(CALL).token_ids), waits=True), *turn(CALL))
        assert isinstance(command, Await)
        command = driver.tell(output(command.call_ids[0]))
        assert ending_of(command) == ("incomplete", "max_output_tokens")
        assert driver.items[-1]["type"] == "function_call_output"


class TestSeveralCalls:
    @pytest.mark.parametrize("order", list(itertools.permutations(range(2))))
    def test_outputs_in_any_order_are_read_in_the_order_of_the_calls(self, order: tuple[int, ...]) -> None:
        driver, calls = waiting(TWO_CALLS)
        texts = ("first", "second")
        command = None
        for index in order:
            assert command is None
            command = driver.tell(output(calls[index], texts[index]))
        text = said(command)
        assert text.index("first") < text.index("second")
        assert [item["output"] for item in driver.items[2:]] == ["first", "second"]

    def test_all_came_early(self) -> None:
        driver, _ = told(RunStarted(waits=True), *turn(FIRST_CALL)[:1], sampled(FIRST_CALL + "<|start|>assistant"))
        driver.tell(output(driver.machine.calls.unanswered[0], "early"))
        assert "early" in said(driver.tell(sampled(ANSWER, FinishReason.STOP)))


class TestEnds:
    @pytest.mark.parametrize(
        ("last", "end"),
        [
            (Stopped(StopReason.CANCELLED), ("cancelled", None)),
            (Stopped(StopReason.INTERRUPTED), ("incomplete", "interrupted")),
            (Stopped(StopReason.DISCARDED), ("incomplete", "interrupted")),
            (Stopped(StopReason.SERVER_STOPPED), ("failed", None)),
            (Failed(BROKEN), ("failed", None)),
        ],
    )
    def test_whatever_ends_a_response_ends_one_that_waits(self, last: Input, end: tuple[str, str | None]) -> None:
        driver, calls = waiting(TWO_CALLS)
        driver.tell(output(calls[0], "kept"))
        assert ending_of(driver.tell(last)) == end
        assert not driver.machine.takes_outputs
        driver.tell(Ended(AT))
        assert_laws(driver.seen)
        kept = [item["output"] for item in driver.items if item["type"] == "function_call_output"]
        assert kept == (["kept"] if end[0] != "failed" else []), "what was given is not lost"

    def test_steering_waits_for_the_outputs_and_then_ends_it(self) -> None:
        driver, (call_id,) = waiting(CALL)
        assert driver.tell(Stopped(StopReason.STEERED)) is None
        assert isinstance(driver.machine.due, Await)
        assert ending_of(driver.tell(output(call_id))) == ("incomplete", "steered")
        assert [item["type"] for item in driver.items] == ["function_call", "function_call_output"]


class TestBugs:
    @pytest.mark.parametrize("given", [output("call_nobody"), WaitBegan(1.0), TimedOut(1.0)])
    def test_what_cannot_come_while_the_model_speaks(self, given: Input) -> None:
        driver, _ = told(RunStarted(waits=True), *turn(HALF)[:1])
        with pytest.raises(LocalProtocolError):
            driver.tell(given)

    def test_an_output_is_given_once(self) -> None:
        driver, calls = waiting(TWO_CALLS)
        driver.tell(output(calls[0]))
        with pytest.raises(LocalProtocolError):
            driver.tell(output(calls[0]))

    def test_nothing_waits_where_the_mode_is_off(self) -> None:
        driver, _ = told(RunStarted(), *turn(CALL)[:1], sampled(FIRST_CALL))
        with pytest.raises(LocalProtocolError):
            driver.tell(output(driver.machine.calls.unanswered[0]))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), st.permutations(range(3)), st.data())
def test_a_takeover_at_every_input_gives_the_same_events(calls: int, order: list[int], data: st.DataObject) -> None:
    driver, ids = waiting("<|start|>assistant".join([*[FIRST_CALL] * (calls - 1), CALL]))
    for index in [each for each in order if each < calls]:
        command = driver.tell(output(ids[index], data.draw(st.text(max_size=5))))
    assert isinstance(command, Generate)
    command = driver.tell_all(turn(ANSWER))
    assert isinstance(command, Finish)
    driver.tell(Ended(AT))
    for cut in range(len(driver.log)):
        heir = Driver(machine(HarmonyFormat()))
        heir.tell_all(driver.log[:cut])
        due = heir.machine.due
        if isinstance(due, Await) and isinstance(driver.log[cut - 1], OutputGiven):
            assert due.until == BEGAN.until, "the time goes on"
        heir.tell_all(driver.log[cut:])
        assert heir.bytes == driver.bytes
    assert_laws(driver.seen)


def test_sampled_is_all_that_an_ended_turn_takes() -> None:
    driver, _ = waiting(CALL)
    with pytest.raises(LocalProtocolError):
        driver.tell(Sampled([1]))
