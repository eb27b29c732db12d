"""Stop strings and stop tokens: they end a text wherever its chunks are cut, and no part of one is ever said."""

import itertools

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.formats.harmony.encoding import encode_harmony, encode_text
from engine.formats.harmony.format import HarmonyFormat
from engine.types import FinishReason
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.response.input_codec import decode, encode
from responses_app.protocol.response.steps import Mode, OutputOptions, RunStarted, Sampled
from responses_app.protocol.stop_strings import StopStrings
from tests.kit.laws import assert_laws, chunked, text_of
from tests.unit.protocol.machines import Driver, machine

THOUGHT = "<|channel|>analysis<|message|>one END two<|end|><|start|>assistant"
SAID = f"{THOUGHT}<|channel|>final<|message|>first, END, then more<|return|>"


def answered(
    said: list[int], sizes: list[int], asked: OutputOptions, end: FinishReason = FinishReason.STOP
) -> JsonObject:
    """Return the response that says these tokens."""
    parts = chunked(said, sizes)
    chunks = [Sampled(part, end if index == len(parts) - 1 else None) for index, part in enumerate(parts)]
    driver = Driver(machine(HarmonyFormat()))
    driver.tell(asked)
    driver.run(RunStarted(Mode.ANSWER), [chunks])
    events = [orjson.loads(event.as_json()) for event in driver.events]
    assert_laws(events)
    response: JsonObject = events[-1]["response"]
    return response


@given(st.lists(st.integers(1, 4), max_size=20))
def test_a_stop_string_ends_the_answer_and_no_thought(sizes: list[int]) -> None:
    response = answered(encode_harmony(SAID), sizes, OutputOptions(stops=("END", "never")))
    thought, message = response["output"]
    assert (text_of(thought), text_of(message)) == ("one END two", "first, ")
    assert (response["status"], message["status"]) == ("completed", "completed")


@given(st.lists(st.integers(1, 4), max_size=20))
def test_what_might_have_been_a_stop_string_is_said(sizes: list[int]) -> None:
    response = answered(encode_harmony(SAID), sizes, OutputOptions(stops=("more!", "ENDE")))
    assert text_of(response["output"][1]) == "first, END, then more"


def test_a_stop_token_is_no_part_of_the_answer() -> None:
    (token,) = encode_text(" apple")
    said = [*encode_harmony("<|channel|>final<|message|>an"), token]
    response = answered(said, [1] * 20, OutputOptions(stop_tokens=(token,)))
    (message,) = response["output"]
    assert (text_of(message), message["status"], response["status"]) == ("an", "completed", "completed")
    assert response["usage"]["output_tokens"] == len(said)


@pytest.mark.parametrize(
    ("said", "stops", "message"),
    [
        pytest.param("<|channel|>final<|message|>in the EN", ("END",), "in the EN", id="may be a stop string"),
        pytest.param("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant words", (), "words", id="no header"),
    ],
)
def test_nothing_that_was_held_is_lost_before_a_stop_token(said: str, stops: tuple[str, ...], message: str) -> None:
    (token,) = encode_text(" apple")
    response = answered([*encode_harmony(said), token], [1], OutputOptions(stops=stops, stop_tokens=(token,)))
    last = response["output"][-1]
    assert (text_of(last), last["status"], response["status"]) == (message, "completed", "completed")


@pytest.mark.parametrize(
    "asked", [OutputOptions(), OutputOptions(sealed=True), OutputOptions(stops=("a",), stop_tokens=(3,))]
)
def test_a_log_keeps_them(asked: OutputOptions) -> None:
    assert list(decode(encode([asked]))) == [asked]


ALPHABET = "abN\n"
TEXTS = st.text(ALPHABET, max_size=40)
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=5), min_size=1, max_size=4)


def said(chunks: list[str], stops: list[str]) -> tuple[str, str | None]:
    """Return what is said of a text in chunks, and what ended it."""
    watched = StopStrings(stops)
    told = "".join(map(watched.feed, chunks))
    return told + ("" if watched.matched else watched.rest()), watched.matched


@given(TEXTS, STOPS, st.lists(st.integers(0, 40), max_size=8))
@example("aab", ["ab"], [1, 2])
@example("abab", ["b", "abab"], [3])
def test_any_chunking_says_the_same(text: str, stops: list[str], cuts: list[int]) -> None:
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    chunks = [text[begin:end] for begin, end in itertools.pairwise(places)]
    assert said(chunks, stops) == said([text], stops) == said(list(text), stops)


@given(TEXTS, STOPS)
def test_what_is_said_ends_where_the_first_stop_string_is_complete(text: str, stops: list[str]) -> None:
    told, matched = said([text], stops)
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    if not ends:
        assert (told, matched) == (text, None)
    else:
        longest = max((stop for stop in stops if text[: ends[0]].endswith(stop)), key=len)
        assert (told, matched) == (text[: ends[0] - len(longest)], longest)


def test_what_may_begin_a_stop_string_is_held_back_and_nothing_else() -> None:
    watched = StopStrings(["\n\n", "END"])
    assert [watched.feed(chunk) for chunk in ("Hi E", "VE", "ND!", "more")] == ["Hi ", "EV", "", ""]
    assert watched.matched == "END"


@pytest.mark.parametrize("length", [1, 100])
def test_nothing_is_lost_at_the_end(length: int) -> None:
    watched = StopStrings(["x" * (length + 1)])
    assert watched.feed("x" * length) == ""
    assert watched.rest() == "x" * length
    assert watched.matched is None
