"""Summaries of what the model thinks: when the model is asked for one, what it reads then, and what becomes of it."""

from collections.abc import Sequence

import pytest

from engine.formats.harmony.encoding import decode_tokens, encode_harmony
from engine.formats.harmony.format import HarmonyFormat
from engine.types import FinishReason
from responses_app.protocol.output.builders import MAX_SENTENCES, first_sentences
from responses_app.protocol.response.steps import (
    Command,
    Generate,
    OutputOptions,
    RunStarted,
    Sampled,
    Stopped,
    StopReason,
    Summaries,
    TurnBegan,
)
from responses_app.protocol.response.turns import MAX_ASIDES, MIN_THOUGHT, SUMMARY_REQUEST
from tests.kit.laws import assert_laws
from tests.unit.protocol.machines import ANSWER, Driver, ending_of, machine, sampled, types_of

SENTENCE = "I look at it from every side. "
LONG = f"<|channel|>analysis<|message|>{SENTENCE * 30}<|end|>"
NEXT = "<|start|>assistant"
BY_MODEL = OutputOptions(summaries=Summaries.MODEL)
SUMMARY_EVENTS = [
    "reasoning_summary_part.added",
    "reasoning_summary_text.delta",
    "reasoning_summary_text.done",
    "reasoning_summary_part.done",
]


def thinking(
    said: str = LONG, *, asked: OutputOptions = BY_MODEL, budget: int | None = None, **options: object
) -> Driver:
    """Return the driver of a response whose model has just thought."""
    driver = Driver(machine(HarmonyFormat(), **options))  # type: ignore[arg-type]
    driver.tell_all((asked, RunStarted(budget=budget), TurnBegan(9)))
    driver.tell(sampled(f"{said}{NEXT}{ANSWER}"))
    return driver


def played(first: RunStarted, turns: Sequence[Sequence[Sampled]]) -> Driver:
    """Return the driver of a whole response whose model sums up."""
    driver = Driver(machine(HarmonyFormat()))
    driver.tell(BY_MODEL)
    driver.run(first, turns)
    return driver


def summary_of(driver: Driver, place: int = 0) -> str:
    parts = driver.items[place]["summary"]
    assert isinstance(parts, list)
    return "".join(part["text"] for part in parts)


def aside_of(driver: Driver) -> Generate:
    due = driver.machine.due
    assert isinstance(due, Generate)
    assert due.aside
    return due


def end(driver: Driver, *texts: str) -> Command | None:
    """Go on with turns to the end."""
    command = None
    for number, text in enumerate(texts):
        driver.tell(TurnBegan(100 + number))
        command = driver.tell(sampled(text, FinishReason.STOP))
    return command


def test_the_model_sums_up_in_a_turn_of_its_own_and_goes_on_behind_its_thought() -> None:
    driver = thinking()
    aside = aside_of(driver)
    assert (aside.turn, aside.budget, aside.has_begun) == (1, 200, False)
    assert decode_tokens(aside.said[0].tokens) == f"{NEXT}{LONG}"
    assert SUMMARY_REQUEST in decode_tokens(aside.said[1].tokens)
    assert decode_tokens(aside.sampled) == "<|channel|>final<|message|>"
    driver.tell_all((TurnBegan(120), sampled("**Every side**\n\n"), sampled("I looked.")))
    command = driver.tell(sampled("<|return|>", FinishReason.STOP))
    assert isinstance(command, Generate)
    assert (command.turn, command.said, command.aside) == (2, aside.said[:1], False), "nothing of the aside is read"
    assert ending_of(end(driver, ANSWER)) == ("completed", None)
    driver.run_end()
    assert_laws(driver.seen)
    assert [item["type"] for item in driver.items] == ["reasoning", "message"]
    assert summary_of(driver) == "**Every side**\n\nI looked."
    kinds = types_of(driver)
    begin = kinds.index("content_part.done")
    assert kinds[begin + 1 : begin + 7] == [*SUMMARY_EVENTS[:2], *SUMMARY_EVENTS[1:], "output_item.done"]


@pytest.mark.parametrize(("style", "tokens"), [("concise", 120), ("auto", 200), ("detailed", 400)])
def test_how_long_it_may_be(style: str, tokens: int) -> None:
    assert aside_of(thinking(summary=style)).budget == tokens
    assert aside_of(thinking(summary=style, budget=4 * tokens + 300)).budget == tokens


CUT_OR_SHORT = {  # what is said, and what is asked
    "a short thought": {"said": "<|channel|>analysis<|message|>Hm, well.<|end|>"},
    "by its text": {"asked": OutputOptions(summaries=Summaries.TEXT)},
    "little budget": {"budget": 500},
}


@pytest.mark.parametrize("why", CUT_OR_SHORT)
def test_else_its_own_text_is_its_summary(why: str) -> None:
    driver = thinking(**CUT_OR_SHORT[why])  # type: ignore[arg-type]
    due = driver.machine.due
    assert isinstance(due, Generate)
    assert not due.aside
    content = driver.items[0]["content"]
    assert summary_of(driver) == first_sentences(content[0]["text"]) != ""
    assert driver.items[-1]["type"] == "message", "and the model goes on at once"


def test_a_thought_that_ends_the_generation_is_its_own_summary() -> None:
    driver = played(RunStarted(), [[sampled(LONG.replace("<|end|>", "<|return|>"), FinishReason.STOP)]])
    assert summary_of(driver) == first_sentences(SENTENCE * 30)
    driver = played(RunStarted(), [[sampled(LONG.removesuffix("<|end|>"), FinishReason.LENGTH)]])
    assert (driver.items[0]["status"], summary_of(driver)) == ("incomplete", first_sentences(SENTENCE * 30))
    assert_laws(driver.seen)


def test_there_is_none_where_none_was_asked_for() -> None:
    driver = thinking(asked=OutputOptions(sealed=True))
    assert driver.items[0]["summary"] == []
    assert not set(SUMMARY_EVENTS) & set(types_of(driver))


@pytest.mark.parametrize(
    "turn",
    [
        "<|return|>",
        " \n<|return|>",
        "<|end|><|start|>assistant<|channel|>commentary to=functions.f<|message|>{}<|call|>",
    ],
)
def test_a_turn_that_says_nothing_leaves_the_first_sentences(turn: str) -> None:
    driver = thinking()
    assert ending_of(end(driver, turn, ANSWER)) == ("completed", None)
    driver.run_end()
    assert summary_of(driver) == first_sentences(SENTENCE * 30)
    assert [item["type"] for item in driver.items] == ["reasoning", "message"]
    assert_laws(driver.seen)


@pytest.mark.parametrize("finish", [FinishReason.LENGTH, FinishReason.ABORT])
def test_a_turn_that_is_cut_has_said_what_it_has_said(finish: FinishReason) -> None:
    driver = thinking()
    driver.tell(TurnBegan(100))
    driver.tell(sampled("I looked at", finish))
    assert ending_of(end(driver, ANSWER)) == ("completed", None)
    assert summary_of(driver) == "I looked at"


def test_a_response_has_so_many_turns_for_summaries_and_no_more() -> None:
    thought = sampled(f"{LONG}{NEXT}")
    summary = sampled("So.<|return|>", FinishReason.STOP)
    turns = [turn for _ in range(MAX_ASIDES) for turn in ([thought], [summary])]
    driver = played(RunStarted(), [*turns, [sampled(f"{LONG}{NEXT}{ANSWER}", FinishReason.STOP)]])
    assert [summary_of(driver, place) for place in range(MAX_ASIDES)] == ["So."] * MAX_ASIDES
    assert summary_of(driver, MAX_ASIDES) == first_sentences(SENTENCE * 30)
    assert_laws(driver.seen)


class TestStops:
    @pytest.mark.parametrize("said", [(), (sampled("I loo"),)])
    @pytest.mark.parametrize("reason", [StopReason.CANCELLED, StopReason.INTERRUPTED])
    def test_a_stop_inside_of_it_ends_the_item(self, reason: StopReason, said: tuple[Sampled, ...]) -> None:
        driver = thinking()
        driver.tell(TurnBegan(100))
        driver.tell_all(said)
        status, _ = ending_of(driver.tell(Stopped(reason)))
        driver.run_end()
        assert status == ("cancelled" if reason is StopReason.CANCELLED else "incomplete")
        assert summary_of(driver) == ("I loo" if said else first_sentences(SENTENCE * 30))
        assert_laws(driver.seen)


class TestFirstSentences:
    @pytest.mark.parametrize(
        ("text", "summary"),
        [
            ("", ""),
            (" \n", ""),
            (" Hm. Well. ", "Hm. Well."),
            (SENTENCE * 30, (SENTENCE * 13).strip()),
            ("x" * 500, "x" * (MAX_SENTENCES - 1) + "…"),
            ("Zahl 1.5 ist es. " + "x" * 500, "Zahl 1.5 ist es."),
            ("好。" * 300, "好。" * 200),
        ],
    )
    def test_they_are_whole_as_far_as_they_fit(self, text: str, summary: str) -> None:
        assert first_sentences(text) == summary
        assert len(summary) <= MAX_SENTENCES


def test_what_is_long_enough_is_said_where_it_is_needed() -> None:
    (word,) = encode_harmony(" stone")
    for count, due in ((MIN_THOUGHT - 1, False), (MIN_THOUGHT, True)):
        driver = Driver(machine(HarmonyFormat()))
        driver.tell_all((BY_MODEL, RunStarted(), TurnBegan(9)))
        driver.tell(Sampled([*encode_harmony("<|channel|>analysis<|message|>"), *[word] * count]))
        command = driver.tell(sampled("<|end|>"))
        assert isinstance(command, Generate) is due, "the header's last token counts, as it does for vLLM"
