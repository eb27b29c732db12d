"""`ResponseMachine`: how a response begins, what is due, its rules between, and how it ends or is stopped."""

from collections.abc import Sequence

import pytest

from engine.formats.harmony.encoding import decode_tokens, encode_harmony
from engine.types import FinishReason, TokenLogprob
from responses_app.protocol.errors import SERVER_STOPPED
from responses_app.protocol.output.stream import LocalProtocolError
from responses_app.protocol.requests.resources import Status
from responses_app.protocol.response.steps import (
    Ended,
    Enqueued,
    Failed,
    Generate,
    Input,
    Mode,
    Prefill,
    Prefilled,
    RunStarted,
    Sampled,
    Seal,
    Sealed,
    Stopped,
    StopReason,
    ToolReturned,
    TurnBegan,
)
from tests.kit.plain_format import FORMAT as PLAIN
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
    Driver,
    count,
    ending_of,
    is_call,
    machine,
    sampled,
    told,
    turn,
    turn_of,
    types_of,
)

STOP, LENGTH, ABORT = FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT
STOPPED = Sampled((), STOP)


class TestBeginnings:
    def test_a_warm_up_says_one_event_and_is_done_once_the_prompt_is_there(self) -> None:
        driver, command = told(RunStarted(Mode.WARM_UP))
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
            ((RunStarted(),), Prefilled()),
            ((RunStarted(),), sampled(HALF)),
            ((RunStarted(),), Sealed("sealed")),
            ((RunStarted(),), ToolReturned("2")),
            ((RunStarted(),), RunStarted()),
            ((RunStarted(), TurnBegan(9)), TurnBegan(9)),
            ((RunStarted(Mode.COMPACT), TurnBegan(9)), Sealed("before it was asked for")),
            ((RunStarted(Mode.COMPACT), TurnBegan(9), sampled(HALF)), Sealed("of a summary that is not whole")),
            ((RunStarted(), TurnBegan(9), sampled(PYTHON)), ToolReturned("of a turn that has not ended")),
        ]:
            driver, _ = told(*so_far, hosted=True)
            with pytest.raises(LocalProtocolError):
                driver.tell(given)


class TestDue:
    def test_a_generation_that_was_cut_goes_on_with_what_it_has_and_what_is_left(self) -> None:
        driver, _ = told(RunStarted(budget=50), TurnBegan(9), sampled(HALF))
        due = driver.machine.due
        assert isinstance(due, Generate)
        assert list(due.sampled) == encode_harmony(HALF)
        assert due.budget == 50 - count(HALF)


# How a response ends, by what was said to it behind its start, and the items that it leaves.
NOT_LAST = f"<|start|>assistant{ANSWER}"
CUT = PYTHON.removesuffix("<|call|>")
HALF_SAID = (TurnBegan(9), sampled(HALF))
ENDS: dict[str, tuple[Sequence[Input], str, str | None, list[str]]] = {
    "an answer": (turn(ANSWER), "completed", None, ["message completed"]),
    "a call": (turn(CALL), "completed", None, ["function_call completed"]),
    "a thought": (turn(THOUGHT.removesuffix("<|start|>assistant")), "completed", None, ["reasoning completed"]),
    "nothing": (turn(""), "incomplete", None, []),
    "half an answer": (turn(HALF, LENGTH), "incomplete", "max_output_tokens", ["message incomplete"]),
    "nothing in all its tokens": (turn("", LENGTH), "incomplete", "max_output_tokens", []),
    "aborted": (turn(HALF, ABORT), "cancelled", None, ["message incomplete"]),
    "cancelled": ((*HALF_SAID, Stopped(StopReason.CANCELLED)), "cancelled", None, ["message incomplete"]),
    "interrupted": (
        (*HALF_SAID, Stopped(StopReason.INTERRUPTED)),
        *("incomplete", "interrupted", ["message incomplete"]),
    ),
    "the server stops": ((*HALF_SAID, Stopped(StopReason.SERVER_STOPPED)), "failed", None, []),
    "steered before a turn": ((Stopped(StopReason.STEERED),), "incomplete", "steered", []),
    "steered before a word": ((TurnBegan(9), Stopped(StopReason.STEERED)), "incomplete", "steered", []),
    "steered behind an item": (
        (TurnBegan(9), sampled(THOUGHT), Stopped(StopReason.STEERED)),
        *("incomplete", "steered", ["reasoning completed"]),
    ),
    # A call of a tool that is not there ends nothing but its own item, and is corrected only as the last thing said.
    "no such tool, and an answer": (
        turn(PYTHON.replace("<|call|>", "<|end|>") + NOT_LAST),
        *("completed", None, ["reasoning completed", "message completed"]),
    ),
    "half a call of no such tool": (turn(CUT, LENGTH), "incomplete", "max_output_tokens", ["reasoning incomplete"]),
}
ENDS_WITH_A_TOOL: dict[str, tuple[Sequence[Input], str, str | None, list[str]]] = {
    "steered while it runs": (
        (*turn(PYTHON), Stopped(StopReason.STEERED)),
        *("incomplete", "steered", ["function_call incomplete"]),
    ),
    "another tool is not there": (
        turn(PYTHON.replace("python", "browser").replace("<|call|>", "<|end|>") + NOT_LAST),
        *("completed", None, ["reasoning completed", "message completed"]),
    ),
    "a function of the client has its name": (
        turn(FIRST_CALL.replace("functions.f", "functions.python") + NOT_LAST),
        *("completed", None, ["function_call completed", "message completed"]),
    ),
    "half a call is not run": (turn(CUT, LENGTH), "incomplete", "max_output_tokens", ["function_call incomplete"]),
    "aborted at a call": (turn(CUT, ABORT), "cancelled", None, ["function_call incomplete"]),
}


class TestEndings:
    @pytest.mark.parametrize("case", [*ENDS, *ENDS_WITH_A_TOOL])
    def test_what_was_said_decides_it(self, case: str) -> None:
        inputs, status, reason, items = (ENDS | ENDS_WITH_A_TOOL)[case]
        driver, command = told(RunStarted(), *inputs, hosted=case in ENDS_WITH_A_TOOL)
        assert ending_of(command) == (status, reason)
        driver.tell(Ended(AT))
        response = driver.seen[-1]["response"]
        assert response["status"] == status
        assert response["incomplete_details"] == (reason and {"reason": reason})
        assert response["completed_at"] == (AT if status == "completed" else None)
        assert response["error"] == (SERVER_STOPPED if status == "failed" else None)
        assert [f"{item['type']} {item['status']}" for item in response["output"]] == items

    def test_after_the_end_nothing_is_said(self) -> None:
        driver, _ = told(RunStarted(), *turn(ANSWER), Ended(AT))
        before = driver.bytes
        for late in (
            Stopped(StopReason.CANCELLED),
            Failed(BROKEN),
            Ended(AT),
            sampled(HALF),
            TurnBegan(1),
            RunStarted(),
        ):
            assert driver.tell(late) is None
        assert driver.bytes == before

    def test_the_outcome_is_the_response_of_the_terminal_event(self) -> None:
        driver, _ = told(RunStarted(), *turn(ANSWER))
        outcome = driver.machine.outcome(AT)
        driver.tell(Ended(AT))
        assert driver.events[-1].fields["response"] == outcome
        assert outcome["status"] == "completed"

    def test_an_end_that_could_not_be_kept_has_failed(self) -> None:
        driver, _ = told(RunStarted(), *turn(ANSWER))
        outcome = driver.machine.outcome(AT, BROKEN)
        driver.tell(Ended(AT, BROKEN))
        assert types_of(driver)[-1] == "failed"
        assert driver.events[-1].fields["response"] == outcome
        assert (outcome["error"], outcome["completed_at"]) == (BROKEN, None)
        assert outcome["usage"]["output_tokens"] == count(ANSWER)

    def test_a_failure_says_nothing_of_the_item_it_cuts(self) -> None:
        driver, command = told(RunStarted(), TurnBegan(9), sampled(HALF), Failed(BROKEN))
        assert ending_of(command) == ("failed", None)
        assert command.ending.error == BROKEN
        driver.tell(Ended(AT))
        assert "output_item.done" not in types_of(driver)

    def test_every_other_end_closes_the_item_before_the_end_is_kept(self) -> None:
        driver, _ = told(RunStarted(), TurnBegan(9), sampled(HALF), Stopped(StopReason.CANCELLED))
        assert types_of(driver)[-1] == "output_item.done"
        assert driver.items[-1]["status"] == "incomplete"


class TestStops:
    @pytest.mark.parametrize(
        ("reason", "end", "types"),
        [
            (StopReason.STEERED, ("incomplete", "steered"), ["in_progress", "incomplete"]),
            (StopReason.INTERRUPTED, ("incomplete", "interrupted"), ["in_progress", "incomplete"]),
            (StopReason.DISCARDED, ("incomplete", "interrupted"), ["in_progress", "incomplete"]),
            (StopReason.SERVER_STOPPED, ("failed", None), ["failed"]),
        ],
    )
    def test_what_waits_and_is_stopped_otherwise(
        self, reason: StopReason, end: tuple[str, str | None], types: list[str]
    ) -> None:
        driver, command = told(Enqueued(), Stopped(reason))
        assert ending_of(command) == end
        driver.tell(Ended(AT))
        assert types_of(driver) == ["created", "queued", *types]
        assert driver.seen[-1]["response"]["error"] == (SERVER_STOPPED if end[0] == "failed" else None)

    def test_steering_lets_the_item_be_said_and_no_more(self) -> None:
        driver, command = told(RunStarted(), TurnBegan(9), sampled(HALF), Stopped(StopReason.STEERED))
        assert command is None
        assert driver.tell(sampled(" and more")) is None
        command = driver.tell(sampled(f"<|end|><|start|>assistant{ANSWER}"))
        assert ending_of(command) == ("incomplete", "steered")
        [item] = driver.items
        assert (item["status"], item["content"][0]["text"]) == ("completed", "Half of it and more")
        assert driver.machine.turns[0].output_tokens == count(f"{HALF} and more<|end|>"), "the rest is not counted"

    def test_steering_behind_a_call_lets_its_turn_be_said(self) -> None:
        half = "<|start|>assistant<|channel|>commentary<|message|>And"
        driver, command = told(RunStarted(), TurnBegan(9), sampled(f"{FIRST_CALL}{half}"), Stopped(StopReason.STEERED))
        assert command is None
        command = driver.tell(sampled(f" then.<|end|><|start|>assistant{CALL}", FinishReason.STOP))
        assert ending_of(command) == ("completed", None)
        assert [item["type"] for item in driver.items] == ["function_call", "message", "function_call"]

    @pytest.mark.parametrize(
        "said", [CALL.removesuffix("<|call|>"), FIRST_CALL, f"{FIRST_CALL}<|start|>assistant{HALF}"]
    )
    @pytest.mark.parametrize("at_once", [False, True])
    def test_a_turn_with_a_call_of_the_clients_goes_to_its_end(self, said: str, at_once: bool) -> None:
        """What continues the response needs what came of the call, which only the client can tell."""
        rest = "<|call|>" if said.endswith("}") else f"<|end|><|start|>assistant{ANSWER}"
        driver, _ = told(RunStarted(), TurnBegan(9), sampled(said))
        assert driver.tell(Stopped(StopReason.STEERED)) is None
        chunks = [sampled(rest, STOP)] if at_once else [*(Sampled([each]) for each in encode_harmony(rest)), STOPPED]
        command = None
        for chunk in chunks:
            command = driver.tell(chunk) or command
        assert ending_of(command) == ("completed", None)

    def test_what_is_discarded_was_never_said(self) -> None:
        driver, command = told(RunStarted(), TurnBegan(9), sampled(THOUGHT + HALF), Stopped(StopReason.DISCARDED))
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
        driver, _ = told(RunStarted(), *turn(PYTHON), Stopped(StopReason.DISCARDED), hosted=True)
        assert driver.machine.stream.messages == []
        assert types_of(driver)[-1] == "output_item.interrupted"

    def test_a_call_that_was_being_said_when_it_was_steered_is_finished_and_not_answered(self) -> None:
        driver, _ = told(RunStarted(), TurnBegan(9), sampled(PYTHON.removesuffix("<|call|>")), hosted=True)
        assert driver.tell(Stopped(StopReason.STEERED)) is None
        assert ending_of(driver.tell(sampled("<|call|>", STOP))) == ("incomplete", "steered")


def test_the_status_is_what_readers_know() -> None:
    driver, _ = told(Enqueued())
    assert driver.machine.status is Status.QUEUED
    for given in (RunStarted(), *turn(ANSWER)):
        driver.tell(given)
        assert driver.machine.status is Status.IN_PROGRESS
    driver.tell(Ended(AT))
    assert driver.machine.status is Status.COMPLETED


class TestUsage:
    def test_tokens_are_counted_turn_by_turn(self) -> None:
        driver, _ = told(RunStarted(), *turn(PYTHON, prompt=9), ToolReturned("2"), hosted=True)
        driver.tell(TurnBegan(40))
        driver.tell(sampled(f"{THOUGHT}{HALF}", cached=12))
        driver.tell(sampled("<|return|>", STOP, cached=30))
        first, second = driver.machine.turns
        assert (first.input_tokens, first.cached_tokens, first.output_tokens) == (9, 0, count(PYTHON))
        assert (second.input_tokens, second.output_tokens) == (40, count(f"{THOUGHT}{HALF}<|return|>"))
        assert second.cached_tokens == 12, "what the engine said first"
        assert 0 < second.reasoning_tokens < count(THOUGHT)

    def test_no_more_is_cached_than_was_asked(self) -> None:
        driver, _ = told(RunStarted(), TurnBegan(9), sampled(HALF, cached=99))
        assert driver.machine.turns[0].cached_tokens == 9


class TestLogprobs:
    def given(self, text: str, finish: FinishReason | None = None) -> Sampled:
        tokens = encode_harmony(text)
        return Sampled(tokens, finish, None, [TokenLogprob(token, -float(token)) for token in tokens])

    def test_a_text_has_those_of_its_tokens_and_of_no_header_or_end(self) -> None:
        driver, _ = told(RunStarted(), TurnBegan(9), self.given(ANSWER, STOP))
        [entries] = [event["logprobs"] for event in driver.seen if event["type"] == "response.output_text.done"]
        assert [entry["token"] for entry in entries[-2:]] == ["Hello", "."]
        assert "<|return|>" not in str(entries)

    def test_a_text_that_takes_several_tokens_has_those_of_them_all(self) -> None:
        driver = Driver(machine(PLAIN))
        driver.tell(RunStarted())
        driver.tell(TurnBegan(9))
        line = b"Hi you\n"
        driver.tell(Sampled(line, STOP, None, [TokenLogprob(token, -1.0) for token in line]))
        [entries] = [event["logprobs"] for event in driver.seen if event["type"] == "response.output_text.done"]
        assert [entry["token"] for entry in entries] == list("Hi you"), "the end of the line is not a part of it"


class TestBudget:
    def test_a_tool_that_returns_when_it_is_spent_is_the_end(self) -> None:
        for budget, ends in ((count(PYTHON), True), (count(PYTHON) - 1, True), (count(PYTHON) + 1, False)):
            driver, command = told(RunStarted(budget=budget), *turn(PYTHON), ToolReturned("2"), hosted=True)
            assert driver.items[0]["status"] == "completed"
            if ends:
                assert ending_of(command) == ("incomplete", "max_output_tokens")
            else:
                assert isinstance(command, Generate)
                assert command.budget == 1

    def test_a_summary_takes_nothing_of_the_answers(self) -> None:
        driver, _ = told(RunStarted(Mode.COMPACT_AND_ANSWER, 3), *turn(ANSWER))
        command = driver.tell(Sealed("sealed", 60))
        assert isinstance(command, Generate)
        assert (command.turn, command.budget) == (1, 60)
        driver.tell(TurnBegan(9))
        driver.tell(sampled(HALF))
        assert driver.machine.due.budget == 60 - count(HALF)  # type: ignore[union-attr]


class TestCorrections:
    def test_a_call_of_what_is_not_there_is_answered_once(self) -> None:
        driver, command = told(RunStarted(), *turn(PYTHON))
        assert isinstance(command, Generate)
        assert not command.summary
        assert len(command.said) == 2, "the call and the correction"
        correction = decode_tokens(command.said[-1].tokens)
        assert "python" in correction
        assert "get_weather" in correction, "it names what is there"
        command = driver.tell_all(turn(PYTHON))
        assert ending_of(command) == ("completed", None)

    def test_not_where_nothing_could_be_said_to_it(self) -> None:
        for budget, corrected in ((count(PYTHON), False), (count(PYTHON) + 1, True)):
            _, command = told(RunStarted(budget=budget), *turn(PYTHON))
            assert isinstance(command, Generate) == corrected


class TestOneCall:
    def test_what_follows_the_first_call_is_neither_read_nor_counted(self) -> None:
        rest = f"<|start|>assistant{CALL}"
        for chunks in ([FIRST_CALL + rest], [FIRST_CALL, rest]):
            driver, _ = told(RunStarted(), TurnBegan(9), one_call=True)
            command = next(filter(None, (driver.tell(sampled(chunk)) for chunk in chunks)))
            assert ending_of(command) == ("completed", None)
            assert [item["type"] for item in driver.items] == ["function_call"]
            assert driver.machine.turns[0].output_tokens == count(FIRST_CALL)

    def test_a_call_that_the_model_ends_itself_is_read_to_the_end_of_its_turn(self) -> None:
        """The engine says how it ended, and what came from its cache, with its last chunk."""
        driver, command = told(RunStarted(), TurnBegan(9), sampled(CALL), one_call=True)
        assert command is None
        assert ending_of(driver.tell(Sampled((), STOP, 5))) == ("completed", None)
        assert driver.machine.turns[0].cached_tokens == 5


class TestTools:
    @pytest.mark.parametrize("size", [1, 1000])
    def test_nothing_follows_a_call_that_waits_for_its_tool_where_the_engine_goes_on(self, size: int) -> None:
        text = f"{PYTHON}<|end|><|start|>assistant{ANSWER}"
        driver, _ = told(RunStarted(), TurnBegan(9), hosted=True)
        command = next(filter(None, map(driver.tell, turn_of(encode_harmony(text), [size]))))
        assert is_call(command, "python", "1+1")
        assert driver.items == [], "the call's item waits for its tool"


class TestCompaction:
    def test_a_summary_is_asked_for_sealed_and_all_there_is(self) -> None:
        driver, command = told(RunStarted(Mode.COMPACT, budget=50))
        assert isinstance(command, Generate)
        assert (command.summary, command.budget) == (True, 50)
        driver.tell(TurnBegan(9))
        header, _, text = HALF.partition("<|message|>")
        driver.tell(sampled(header))
        assert types_of(driver) == ["created", "in_progress"], "nothing was said yet"
        assert driver.tell(sampled(f"<|message|>{text}")) is None
        assert types_of(driver)[2:] == ["output_item.added", "compaction.compacting"]
        assert driver.tell(sampled("!<|return|>", STOP)) == Seal("Half of it!")
        assert not driver.machine.compacted
        assert ending_of(driver.tell(Sealed("sealed"))) == ("completed", None)
        assert driver.machine.compacted
        assert [item["type"] for item in driver.items] == ["compaction"]
        assert driver.items[0]["encrypted_content"] == "sealed"

    @pytest.mark.parametrize("text", ["", "<|channel|>final<|message|> \n<|return|>"])
    def test_without_a_summary_it_fails_and_says_so(self, text: str) -> None:
        driver, command = told(RunStarted(Mode.COMPACT), *turn(text))
        assert ending_of(command) == ("failed", None)
        assert "summary" in command.ending.error["message"]  # type: ignore[union-attr]
        assert driver.items == []
