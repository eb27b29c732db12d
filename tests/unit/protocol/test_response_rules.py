"""`ResponseMachine` between its beginning and its end: usage, the budget, corrections, tools, compaction."""

import pytest

from engine.formats.harmony.encoding import decode_tokens, encode_harmony
from engine.types import FinishReason, TokenLogprob
from responses_app.protocol.response.steps import (
    Ended,
    Generate,
    Mode,
    Sampled,
    Seal,
    Sealed,
    Started,
    Stopped,
    StopReason,
    ToolReturned,
    TurnBegan,
)
from tests.kit.plain_format import FORMAT as PLAIN
from tests.unit.protocol.machines import (
    ANSWER,
    AT,
    CALL,
    FIRST_CALL,
    HALF,
    PYTHON,
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


class TestUsage:
    def test_tokens_are_counted_turn_by_turn(self) -> None:
        driver, _ = told(Started(), *turn(PYTHON, prompt=9), ToolReturned("2"), hosted=True)
        driver.tell(TurnBegan(40))
        driver.tell(sampled(f"{THOUGHT}{HALF}", cached=12))
        driver.tell(sampled("<|return|>", STOP, cached=30))
        first, second = driver.machine.turns
        assert (first.input_tokens, first.cached_tokens, first.output_tokens) == (9, 0, count(PYTHON))
        assert (second.input_tokens, second.output_tokens) == (40, count(f"{THOUGHT}{HALF}<|return|>"))
        assert second.cached_tokens == 12, "what the engine said first"
        assert 0 < second.reasoning_tokens < count(THOUGHT)

    def test_no_more_is_cached_than_was_asked(self) -> None:
        driver, _ = told(Started(), TurnBegan(9), sampled(HALF, cached=99))
        assert driver.machine.turns[0].cached_tokens == 9

    def test_malformed_items_are_counted_over_all_turns(self) -> None:
        broken = f"<|channel|>analysis<|message|>Hm.{PYTHON}"
        once, _ = told(Started(), *turn(broken), *turn(ANSWER))
        twice, _ = told(Started(), *turn(broken), *turn(broken))
        none, _ = told(Started(), *turn(PYTHON), *turn(ANSWER))
        assert none.machine.reader.repairs == 0
        assert twice.machine.reader.repairs == 2 * once.machine.reader.repairs > 0


class TestLogprobs:
    def given(self, text: str, finish: FinishReason | None = None) -> Sampled:
        tokens = encode_harmony(text)
        return Sampled(tokens, finish, None, [TokenLogprob(token, -float(token)) for token in tokens])

    def test_a_text_has_those_of_its_tokens_and_of_no_header_or_end(self) -> None:
        driver, _ = told(Started(), TurnBegan(9), self.given(ANSWER, STOP))
        [entries] = [event["logprobs"] for event in driver.seen if event["type"] == "response.output_text.done"]
        assert [entry["token"] for entry in entries[-2:]] == ["Hello", "."]
        assert "<|return|>" not in str(entries)

    def test_a_text_that_takes_several_tokens_has_those_of_them_all(self) -> None:
        driver = Driver(machine(PLAIN))
        driver.tell(Started())
        driver.tell(TurnBegan(9))
        line = b"Hi you\n"
        driver.tell(Sampled(line, STOP, None, [TokenLogprob(token, -1.0) for token in line]))
        [entries] = [event["logprobs"] for event in driver.seen if event["type"] == "response.output_text.done"]
        assert [entry["token"] for entry in entries] == list("Hi you"), "the end of the line is not a part of it"


class TestBudget:
    def test_it_is_one_for_all_turns(self) -> None:
        driver, command = told(Started(budget=100), *turn(PYTHON))
        assert isinstance(command, Generate)
        assert (command.turn, command.budget) == (1, 100 - count(PYTHON))
        assert driver.machine.turns[0].output_tokens == count(PYTHON)

    def test_a_tool_that_returns_when_it_is_spent_is_the_end(self) -> None:
        for budget, ends in ((count(PYTHON), True), (count(PYTHON) - 1, True), (count(PYTHON) + 1, False)):
            driver, command = told(Started(budget=budget), *turn(PYTHON), ToolReturned("2"), hosted=True)
            assert driver.items[0]["status"] == "completed"
            if ends:
                assert ending_of(command) == ("incomplete", "max_output_tokens")
            else:
                assert isinstance(command, Generate)
                assert command.budget == 1

    def test_a_summary_takes_nothing_of_the_answers(self) -> None:
        driver, _ = told(Started(Mode.COMPACT_AND_ANSWER, 3), *turn(ANSWER))
        command = driver.tell(Sealed("sealed", 60))
        assert isinstance(command, Generate)
        assert (command.turn, command.budget) == (1, 60)
        driver.tell(TurnBegan(9))
        driver.tell(sampled(HALF))
        assert driver.machine.due.budget == 60 - count(HALF)  # type: ignore[union-attr]


class TestCorrections:
    def test_a_call_of_what_is_not_there_is_answered_once(self) -> None:
        driver, command = told(Started(), *turn(PYTHON))
        assert isinstance(command, Generate)
        assert not command.summary
        assert len(command.said) == 2, "the call and the correction"
        correction = decode_tokens(command.said[-1].tokens)
        assert "python" in correction
        assert "get_weather" in correction, "it names what is there"
        for each in turn(PYTHON):
            command = driver.tell(each)
        assert ending_of(command) == ("completed", None)

    def test_not_where_nothing_could_be_said_to_it(self) -> None:
        for budget, corrected in ((count(PYTHON), False), (count(PYTHON) + 1, True)):
            _, command = told(Started(budget=budget), *turn(PYTHON))
            assert isinstance(command, Generate) == corrected

    def test_not_where_the_call_was_not_the_last_thing_it_said(self) -> None:
        _, command = told(Started(), *turn(f"{PYTHON.replace('<|call|>', '<|end|>')}<|start|>assistant{ANSWER}"))
        assert ending_of(command) == ("completed", None)

    def test_not_where_the_call_was_cut(self) -> None:
        _, command = told(Started(), *turn(PYTHON.removesuffix("<|call|>"), LENGTH))
        assert ending_of(command) == ("incomplete", "max_output_tokens")


class TestOneCall:
    def test_what_follows_the_first_call_is_neither_read_nor_counted(self) -> None:
        rest = f"<|start|>assistant{CALL}"
        for chunks in ([FIRST_CALL + rest], [FIRST_CALL, rest]):
            driver, _ = told(Started(), TurnBegan(9), one_call=True)
            command = next(filter(None, (driver.tell(sampled(chunk)) for chunk in chunks)))
            assert ending_of(command) == ("completed", None)
            assert [item["type"] for item in driver.items] == ["function_call"]
            assert driver.machine.turns[0].output_tokens == count(FIRST_CALL)

    def test_answers_and_thoughts_end_nothing(self) -> None:
        driver, command = told(Started(), *turn(f"{THOUGHT}{FIRST_CALL}"), one_call=True)
        assert [item["type"] for item in driver.items] == ["reasoning", "function_call"]
        assert ending_of(command) == ("completed", None)

    @pytest.mark.parametrize("hosted", [True, False])
    def test_otherwise_there_may_be_more(self, hosted: bool) -> None:
        driver, _ = told(Started(), *turn(f"{FIRST_CALL}<|start|>assistant{CALL}"), hosted=hosted)
        assert len(driver.items) == 2

    def test_a_call_that_the_model_ends_itself_is_read_to_the_end_of_its_turn(self) -> None:
        """The engine says how it ended, and what came from its cache, with its last chunk."""
        driver, command = told(Started(), TurnBegan(9), sampled(CALL), one_call=True)
        assert command is None
        assert ending_of(driver.tell(Sampled((), STOP, 5))) == ("completed", None)
        assert driver.machine.turns[0].cached_tokens == 5


class TestTools:
    @pytest.mark.parametrize("size", [1, 1000])
    def test_nothing_follows_a_call_that_waits_for_its_tool_where_the_engine_goes_on(self, size: int) -> None:
        text = f"{PYTHON}<|end|><|start|>assistant{ANSWER}"
        driver, _ = told(Started(), TurnBegan(9), hosted=True)
        command = next(filter(None, map(driver.tell, turn_of(encode_harmony(text), [size]))))
        assert is_call(command, "python", "1+1")
        assert driver.items == [], "the call's item waits for its tool"

    def test_a_tool_of_this_server_ends_the_turn_however_its_call_is_ended(self) -> None:
        text = PYTHON.replace("<|call|>", f"<|end|><|start|>assistant{ANSWER}")
        driver, command = told(Started(), TurnBegan(9), sampled(text), hosted=True)
        assert is_call(command, "python", "1+1")
        assert driver.items == []
        assert driver.machine.turns[0].output_tokens == count(PYTHON)

    def test_a_tool_that_is_not_there_does_not_end_the_turn(self) -> None:
        call = PYTHON.replace("python", "browser").replace("<|call|>", "<|end|>")
        driver, command = told(Started(), *turn(f"{call}<|start|>assistant{ANSWER}"), hosted=True)
        assert ending_of(command) == ("completed", None)
        assert [item["type"] for item in driver.items] == ["reasoning", "message"]

    def test_a_function_of_the_client_is_its_own_even_where_a_tool_has_its_name(self) -> None:
        call = FIRST_CALL.replace("functions.f", "functions.python")
        driver, command = told(Started(), *turn(f"{call}<|start|>assistant{ANSWER}"), hosted=True)
        assert ending_of(command) == ("completed", None)
        assert [item["type"] for item in driver.items] == ["function_call", "message"]

    def test_its_result_is_said_to_the_model_alone(self) -> None:
        driver, command = told(Started(), *turn(PYTHON), ToolReturned("the result"), hosted=True)
        assert isinstance(command, Generate)
        result = decode_tokens(command.said[-1].tokens)
        assert "the result" in result
        assert result.startswith("<|start|>python to=assistant"), "from a tool, and not from a function of the client"
        assert "the result" not in str(driver.seen)
        assert driver.items[0]["status"] == "completed"

    def test_a_call_that_was_cut_is_not_run(self) -> None:
        driver, command = told(Started(), *turn(PYTHON.removesuffix("<|call|>"), LENGTH), hosted=True)
        assert ending_of(command) == ("incomplete", "max_output_tokens")
        assert driver.items[0]["status"] == "incomplete"

    def test_an_engine_that_aborts_at_a_call_ends_it(self) -> None:
        _, command = told(Started(), *turn(PYTHON.removesuffix("<|call|>"), ABORT), hosted=True)
        assert ending_of(command) == ("cancelled", None)


class TestCompaction:
    def test_a_summary_is_asked_for_sealed_and_all_there_is(self) -> None:
        driver, command = told(Started(Mode.COMPACT, budget=50))
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

    def test_then_the_answer_follows_and_is_not_a_summary(self) -> None:
        driver, _ = told(Started(Mode.COMPACT_AND_ANSWER), *turn(ANSWER))
        command = driver.tell(Sealed("sealed"))
        assert isinstance(command, Generate)
        assert (command.turn, command.summary, command.said) == (1, False, ())
        for each in turn(ANSWER):
            command = driver.tell(each)
        assert ending_of(command) == ("completed", None)
        assert [item["type"] for item in driver.items] == ["compaction", "message"]

    def test_without_an_answer_it_is_incomplete(self) -> None:
        driver, _ = told(Started(Mode.COMPACT_AND_ANSWER), *turn(ANSWER), Sealed("sealed"))
        driver.tell(TurnBegan(9))
        assert ending_of(driver.tell(Sampled((), STOP))) == ("incomplete", None)

    @pytest.mark.parametrize("text", ["", "<|channel|>final<|message|> \n<|return|>"])
    def test_without_a_summary_it_fails_and_says_so(self, text: str) -> None:
        driver, command = told(Started(Mode.COMPACT), *turn(text))
        assert ending_of(command) == ("failed", None)
        assert "summary" in command.ending.error["message"]  # type: ignore[union-attr]
        assert driver.items == []

    def test_thoughts_are_the_summary_only_where_there_is_no_answer(self) -> None:
        _, command = told(Started(Mode.COMPACT), *turn(f"{THOUGHT}{ANSWER}"))
        assert command == Seal("Hello.")
        _, command = told(Started(Mode.COMPACT), *turn(THOUGHT.removesuffix("<|start|>assistant")))
        assert command == Seal("Hm.")

    def test_one_that_is_cut_short_is_gone_without_a_word(self) -> None:
        driver, command = told(Started(Mode.COMPACT), TurnBegan(9), sampled(HALF), Stopped(StopReason.INTERRUPTED))
        assert ending_of(command) == ("incomplete", "interrupted")
        driver.tell(Ended(AT))
        assert driver.seen[-1]["response"]["output"] == []
        assert "output_item.done" not in types_of(driver)
