"""Stop strings and stop tokens of a response: what is said does not depend on how the tokens were cut."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.formats.harmony.encoding import encode_harmony, encode_text
from engine.formats.harmony.format import HarmonyFormat
from engine.types import FinishReason
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.response.input_codec import decode, encode
from responses_app.protocol.response.steps import Asked, Mode, Sampled, Started
from tests.kit.laws import assert_laws, chunked, text_of
from tests.unit.protocol.machines import Driver, machine

THOUGHT = "<|channel|>analysis<|message|>one END two<|end|><|start|>assistant"
SAID = f"{THOUGHT}<|channel|>final<|message|>first, END, then more<|return|>"


def answered(said: list[int], sizes: list[int], asked: Asked, end: FinishReason = FinishReason.STOP) -> JsonObject:
    """Return the response that says these tokens."""
    parts = chunked(said, sizes)
    chunks = [Sampled(part, end if index == len(parts) - 1 else None) for index, part in enumerate(parts)]
    driver = Driver(machine(HarmonyFormat()))
    driver.tell(asked)
    driver.run(Started(Mode.ANSWER), [chunks])
    events = [orjson.loads(event.as_json()) for event in driver.events]
    assert_laws(events)
    response: JsonObject = events[-1]["response"]
    return response


@given(st.lists(st.integers(1, 4), max_size=20))
def test_a_stop_string_ends_the_answer_and_no_thought(sizes: list[int]) -> None:
    response = answered(encode_harmony(SAID), sizes, Asked(stops=("END", "never")))
    thought, message = response["output"]
    assert (text_of(thought), text_of(message)) == ("one END two", "first, ")
    assert (response["status"], message["status"]) == ("completed", "completed")


@given(st.lists(st.integers(1, 4), max_size=20))
def test_what_might_have_been_a_stop_string_is_said(sizes: list[int]) -> None:
    response = answered(encode_harmony(SAID), sizes, Asked(stops=("more!", "ENDE")))
    assert text_of(response["output"][1]) == "first, END, then more"


def test_a_stop_token_is_no_part_of_the_answer() -> None:
    (token,) = encode_text(" apple")
    said = [*encode_harmony("<|channel|>final<|message|>an"), token]
    response = answered(said, [1] * 20, Asked(stop_tokens=(token,)))
    (message,) = response["output"]
    assert (text_of(message), message["status"], response["status"]) == ("an", "completed", "completed")
    assert response["usage"]["output_tokens"] == len(said)


@pytest.mark.parametrize("asked", [Asked(), Asked(sealed=True), Asked(stops=("a",), stop_tokens=(3,))])
def test_a_log_keeps_them(asked: Asked) -> None:
    assert list(decode(encode([asked]))) == [asked]
