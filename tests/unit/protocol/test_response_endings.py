"""`ResponseMachine`: how a response begins, what is due, and how it ends or is stopped."""

import pytest

from engine.formats.harmony.encoding import decode_tokens, encode_harmony
from engine.types import FinishReason
from responses_app.protocol.errors import SERVER_STOPPED
from responses_app.protocol.output.stream import LocalProtocolError
from responses_app.protocol.requests.resources import Status
from responses_app.protocol.response.steps import (
    Ended,
    Enqueued,
    Failed,
    Finish,
    Generate,
    Mode,
    Prefill,
    Prefilled,
    Sampled,
    Sealed,
    Started,
    Stopped,
    StopReason,
    ToolReturned,
    TurnBegan,
)
from tests.unit.protocol.machines import (
    ANSWER,
    AT,
    BROKEN,
    CALL,
    FIRST_CALL,
    HALF,
    PYTHON,
    RESPONSE_ID,
    THOUGHT,
    count,
    ending_of,
    is_call,
    sampled,
    told,
    turn,
    types_of,
)

STOP, LENGTH, ABORT = FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT
STOPPED = Sampled((), STOP)


class TestBeginnings:
    def test_one_that_starts_at_once(self) -> None:
        driver, command = told(Started(budget=7))
        assert types_of(driver) == ["created", "in_progress"]
        assert command == driver.machine.due == Generate(0, budget=7)

    def test_one_that_waits_first(self) -> None:
        driver, command = told(Enqueued())
        assert (types_of(driver), command, driver.machine.due) == (["created", "queued"], None, None)
        assert isinstance(driver.tell(Started()), Generate)
        assert types_of(driver) == ["created", "queued", "in_progress"]

    def test_a_warm_up_says_one_event_and_is_done_once_the_prompt_is_there(self) -> None:
        driver, command = told(Started(Mode.WARM_UP))
        assert types_of(driver) == ["created"]
        assert command == Prefill()
        assert ending_of(driver.tell(Prefilled())) == ("completed", None)
        driver.tell(Ended(AT))
        assert driver.seen[-1]["response"]["usage"] is None, "nothing was generated"

    def test_what_cannot_come_now_is_a_bug_of_the_driver(self) -> None:
        for so_far, given in [
            ((), TurnBegan(9)),
            ((), sampled(HALF)),
            ((), Sealed("sealed")),
            ((), ToolReturned("2")),
            ((), Prefilled()),
            ((), Ended(AT)),
            ((Started(),), Prefilled()),
            ((Started(),), sampled(HALF)),
            ((Started(),), Sealed("sealed")),
            ((Started(),), ToolReturned("2")),
            ((Started(),), Started()),
            ((Started(), TurnBegan(9)), TurnBegan(9)),
            ((Started(Mode.COMPACT), TurnBegan(9)), Sealed("before it was asked for")),
            ((Started(Mode.COMPACT), TurnBegan(9), sampled(HALF)), Sealed("of a summary that is not whole")),
            ((Started(), TurnBegan(9), sampled(PYTHON)), ToolReturned("of a turn that has not ended")),
        ]:
            driver, _ = told(*so_far, hosted=True)
            with pytest.raises(LocalProtocolError):
                driver.tell(given)


class TestDue:
    def test_a_generation_that_was_cut_goes_on_with_what_it_has_and_what_is_left(self) -> None:
        driver, _ = told(Started(budget=50), TurnBegan(9), sampled(HALF))
        due = driver.machine.due
        assert isinstance(due, Generate)
        assert list(due.sampled) == encode_harmony(HALF)
        assert due.budget == 50 - count(HALF)

    def test_a_generation_that_has_not_begun_has_nothing_yet(self) -> None:
        driver, command = told(Started(budget=50))
        assert driver.machine.due == command
        assert not driver.machine.due.sampled

    def test_any_other_command_stands_as_it_was_given(self) -> None:
        driver, command = told(Started(), *turn(PYTHON), hosted=True)
        assert driver.machine.due == command
        assert is_call(command, "python", "1+1")

    def test_nothing_is_due_after_the_end(self) -> None:
        driver, command = told(Started(), *turn(ANSWER))
        assert isinstance(command, Finish)
        assert driver.machine.ending == command.ending
        assert driver.tell(Ended(AT)) is None
        assert (driver.machine.due, driver.machine.ending) == (None, None)


class TestEndings:
    @pytest.mark.parametrize(
        ("text", "finish", "end"),
        [
            (ANSWER, STOP, ("completed", None)),
            (CALL, STOP, ("completed", None)),
            (THOUGHT.removesuffix("<|start|>assistant"), STOP, ("completed", None)),
            ("", STOP, ("incomplete", None)),
            (HALF, LENGTH, ("incomplete", "max_output_tokens")),
            ("", LENGTH, ("incomplete", "max_output_tokens")),
            (HALF, ABORT, ("cancelled", None)),
        ],
    )
    def test_the_end_of_a_turn_decides_it(self, text: str, finish: FinishReason, end: tuple[str, str | None]) -> None:
        driver, command = told(Started(), *turn(text, finish))
        assert ending_of(command) == end
        driver.tell(Ended(AT))
        response = driver.seen[-1]["response"]
        assert response["status"] == end[0]
        assert response["incomplete_details"] == (end[1] and {"reason": end[1]})
        assert response["completed_at"] == (AT if end[0] == "completed" else None)

    def test_the_end_is_decided_once(self) -> None:
        """It is kept before clients see it, so nothing that comes meanwhile may change it."""
        driver, _ = told(Started(), *turn(ANSWER))
        before = driver.bytes
        for late in (Stopped(StopReason.CANCELLED), Failed(BROKEN), sampled(HALF), TurnBegan(1), Started()):
            assert driver.tell(late) is None
        assert driver.bytes == before
        driver.tell(Ended(AT))
        assert types_of(driver)[-1] == "completed"

    def test_after_the_end_nothing_is_said(self) -> None:
        driver, _ = told(Started(), *turn(ANSWER), Ended(AT))
        before = driver.bytes
        for late in (Stopped(StopReason.CANCELLED), Failed(BROKEN), Ended(AT), sampled(HALF), TurnBegan(1), Started()):
            assert driver.tell(late) is None
        assert driver.bytes == before

    def test_the_outcome_is_the_response_of_the_terminal_event(self) -> None:
        driver, _ = told(Started(), *turn(ANSWER))
        outcome = driver.machine.outcome(AT)
        driver.tell(Ended(AT))
        assert driver.events[-1].fields["response"] == outcome
        assert outcome["status"] == "completed"

    def test_an_end_that_could_not_be_kept_has_failed(self) -> None:
        driver, _ = told(Started(), *turn(ANSWER))
        outcome = driver.machine.outcome(AT, BROKEN)
        driver.tell(Ended(AT, BROKEN))
        assert types_of(driver)[-1] == "failed"
        assert driver.events[-1].fields["response"] == outcome
        assert (outcome["error"], outcome["completed_at"]) == (BROKEN, None)
        assert outcome["usage"]["output_tokens"] == count(ANSWER)

    def test_a_failure_says_nothing_of_the_item_it_cuts(self) -> None:
        driver, command = told(Started(), TurnBegan(9), sampled(HALF), Failed(BROKEN))
        assert ending_of(command) == ("failed", None)
        assert command.ending.error == BROKEN
        driver.tell(Ended(AT))
        assert "output_item.done" not in types_of(driver)

    def test_every_other_end_closes_the_item_before_the_end_is_kept(self) -> None:
        driver, _ = told(Started(), TurnBegan(9), sampled(HALF), Stopped(StopReason.CANCELLED))
        assert types_of(driver)[-1] == "output_item.done"
        assert driver.items[-1]["status"] == "incomplete"


class TestStops:
    @pytest.mark.parametrize(
        ("reason", "end"),
        [
            (StopReason.CANCELLED, ("cancelled", None)),
            (StopReason.INTERRUPTED, ("incomplete", "interrupted")),
            (StopReason.SERVER_STOPPED, ("failed", None)),
        ],
    )
    def test_in_the_middle_of_an_item(self, reason: StopReason, end: tuple[str, str | None]) -> None:
        _, command = told(Started(), TurnBegan(9), sampled(HALF), Stopped(reason))
        assert ending_of(command) == end

    def test_a_server_that_stops_says_so(self) -> None:
        _, command = told(Started(), Stopped(StopReason.SERVER_STOPPED))
        assert command.ending.error == SERVER_STOPPED  # type: ignore[union-attr]

    def test_what_waits_is_cancelled(self) -> None:
        driver, command = told(Enqueued(), Stopped(StopReason.CANCELLED), Ended(AT))
        assert types_of(driver) == ["created", "queued", "incomplete"]
        assert driver.machine.status is Status.CANCELLED
        assert command is None

    @pytest.mark.parametrize(
        ("reason", "said"),
        [
            (StopReason.STEERED, "steered"),
            (StopReason.INTERRUPTED, "interrupted"),
            (StopReason.DISCARDED, "interrupted"),
        ],
    )
    def test_what_waits_and_is_stopped_otherwise_can_be_continued(self, reason: StopReason, said: str) -> None:
        driver, command = told(Enqueued(), Stopped(reason))
        assert ending_of(command) == ("incomplete", said)
        driver.tell(Ended(AT))
        assert types_of(driver) == ["created", "queued", "in_progress", "incomplete"]

    def test_what_waits_can_fail(self) -> None:
        driver, command = told(Enqueued(), Stopped(StopReason.SERVER_STOPPED))
        assert command.ending.error == SERVER_STOPPED  # type: ignore[union-attr]
        driver.tell(Ended(AT))
        assert types_of(driver) == ["created", "queued", "failed"]

    def test_steering_lets_the_item_be_said_and_no_more(self) -> None:
        driver, command = told(Started(), TurnBegan(9), sampled(HALF), Stopped(StopReason.STEERED))
        assert command is None
        assert driver.tell(sampled(" and more")) is None
        command = driver.tell(sampled(f"<|end|><|start|>assistant{ANSWER}"))
        assert ending_of(command) == ("incomplete", "steered")
        [item] = driver.items
        assert (item["status"], item["content"][0]["text"]) == ("completed", "Half of it and more")
        assert driver.machine.turns[0].output_tokens == count(f"{HALF} and more<|end|>"), "the rest is not counted"

    def test_steering_behind_a_call_lets_its_turn_be_said(self) -> None:
        half = "<|start|>assistant<|channel|>commentary<|message|>And"
        driver, command = told(Started(), TurnBegan(9), sampled(f"{FIRST_CALL}{half}"), Stopped(StopReason.STEERED))
        assert command is None
        command = driver.tell(sampled(f" then.<|end|><|start|>assistant{CALL}", FinishReason.STOP))
        assert ending_of(command) == ("completed", None)
        assert [item["type"] for item in driver.items] == ["function_call", "message", "function_call"]

    def test_steering_between_two_items_ends_it_at_once(self) -> None:
        for inputs in ((), (TurnBegan(9),), (TurnBegan(9), sampled(THOUGHT))):
            _, command = told(Started(), *inputs, Stopped(StopReason.STEERED))
            assert ending_of(command) == ("incomplete", "steered")

    def test_steering_while_a_tool_runs_ends_it_at_once(self) -> None:
        driver, command = told(Started(), *turn(PYTHON), Stopped(StopReason.STEERED), hosted=True)
        assert ending_of(command) == ("incomplete", "steered")
        assert driver.items[-1]["status"] == "incomplete"

    @pytest.mark.parametrize(
        "said", [CALL.removesuffix("<|call|>"), FIRST_CALL, f"{FIRST_CALL}<|start|>assistant{HALF}"]
    )
    @pytest.mark.parametrize("at_once", [False, True])
    def test_a_turn_with_a_call_of_the_clients_goes_to_its_end(self, said: str, at_once: bool) -> None:
        """What continues the response needs what came of the call, which only the client can tell."""
        rest = "<|call|>" if said.endswith("}") else f"<|end|><|start|>assistant{ANSWER}"
        driver, _ = told(Started(), TurnBegan(9), sampled(said))
        assert driver.tell(Stopped(StopReason.STEERED)) is None
        chunks = [sampled(rest, STOP)] if at_once else [*(Sampled([each]) for each in encode_harmony(rest)), STOPPED]
        command = None
        for chunk in chunks:
            command = driver.tell(chunk) or command
        assert ending_of(command) == ("completed", None)

    def test_what_is_discarded_was_never_said(self) -> None:
        driver, command = told(Started(), TurnBegan(9), sampled(THOUGHT + HALF), Stopped(StopReason.DISCARDED))
        assert ending_of(command) == ("incomplete", "interrupted")
        driver.tell(Ended(AT))
        interrupted = driver.seen[-2]
        assert interrupted["type"] == "response.output_item.interrupted"
        assert (interrupted["response_id"], interrupted["output_index"]) == (RESPONSE_ID, 1)
        response = driver.seen[-1]["response"]
        assert [item["type"] for item in response["output"]] == ["reasoning"]
        assert len(driver.machine.stream.messages) == 1
        assert response["usage"]["output_tokens"] == count(THOUGHT + HALF), "it was sampled all the same"

    def test_a_call_of_this_servers_that_is_discarded_is_not_in_the_chain(self) -> None:
        driver, _ = told(Started(), *turn(PYTHON), Stopped(StopReason.DISCARDED), hosted=True)
        assert driver.machine.stream.messages == []
        assert types_of(driver)[-1] == "output_item.interrupted"

    def test_what_was_said_before_an_interrupt_can_be_continued(self) -> None:
        driver, _ = told(Started(), TurnBegan(9), sampled(HALF), Stopped(StopReason.INTERRUPTED))
        [message] = driver.machine.stream.messages
        [item] = driver.items
        assert (item["status"], item["content"][0]["text"]) == ("incomplete", "Half of it")
        assert "Half of it" in decode_tokens(message.tokens)

    def test_a_call_that_was_being_said_when_it_was_steered_is_finished_and_not_answered(self) -> None:
        driver, _ = told(Started(), TurnBegan(9), sampled(PYTHON.removesuffix("<|call|>")), hosted=True)
        assert driver.tell(Stopped(StopReason.STEERED)) is None
        assert ending_of(driver.tell(sampled("<|call|>", STOP))) == ("incomplete", "steered")


def test_the_status_is_what_readers_know() -> None:
    driver, _ = told(Enqueued())
    assert driver.machine.status is Status.QUEUED
    for given in (Started(), *turn(ANSWER)):
        driver.tell(given)
        assert driver.machine.status is Status.IN_PROGRESS
    driver.tell(Ended(AT))
    assert driver.machine.status is Status.COMPLETED
