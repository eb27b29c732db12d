"""A message of Anthropic's API is the same in events and whole, however its tokens and its text were cut."""

from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from anthropic.types import Message
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from engine.formats.harmony.encoding import encode_harmony
from responses_app.protocol.messages.message import MessageObject, whole_message
from responses_app.protocol.requests.resources import Status
from tests.kit.laws import chunked, play, transcripts
from tests.kit.messages import THINKING, encoded, message, put_together

SIZES = st.lists(st.integers(0, 4), min_size=1, max_size=3)
STOPS = st.lists(st.sampled_from(["a", "\n", " apple", "ive", '",', '"']), max_size=4)
THOUGHT = '<|channel|>analysis<|message|>Say "hi",\\ and ü.<|end|><|start|>assistant'
ANSWER = '<|channel|>final<|message|>He said: "a\\",", and left. 😀<|return|>'
PREAMBLE = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a":"\\"logprobs\\":["}<|call|>'
PROMISED = TypeAdapter(MessageObject)


def whole_of(events: Sequence[Any], asked: Any) -> dict[str, Any]:
    """Return the message that a response is as a whole."""
    response: Any = orjson.loads(events[-1].as_json())["response"]
    whole: Any = whole_message(response, asked)
    PROMISED.validate_python(whole, strict=True)
    Message.model_validate(whole)
    return whole


@given(transcripts().map(lambda transcript: transcript.tokens), SIZES, STOPS)
@example(encode_harmony(THOUGHT + ANSWER), [1], [])
@example(encode_harmony(THOUGHT + PREAMBLE + CALL), [2], ["logprobs"])
@example(encode_harmony(THOUGHT + CALL.replace("<|call|>", "<|end|><|start|>assistant") + CALL), [3], ["a"])
@example(encode_harmony(THOUGHT + PREAMBLE + ANSWER), [1, 3], ['",', "look.\n\nHe"])
@settings(max_examples=60, deadline=None)
def test_the_events_of_a_message_are_its_whole(tokens: Sequence[int], sizes: list[int], stops: list[str]) -> None:
    for asked in (
        message(stop_sequences=stops, thinking=THINKING),
        message(thinking={"type": "adaptive", "display": "omitted"}),
        message(stop_sequences=stops),
    ):
        played = play(chunked(tokens, sizes))
        encoder, events = encoded(played.events, asked)
        together = put_together(events)
        assert together == whole_of(played.events, asked)
        assert (encoder.matched, encoder.failed) == (together["stop_sequence"], False)
        assert put_together(encoded(play([tokens]).events, asked)[1]) == together


def test_thoughts_text_and_calls_are_blocks() -> None:
    played = play([[token] for token in encode_harmony(THOUGHT + PREAMBLE + CALL)])
    _, events = encoded(played.events, message(thinking=THINKING))
    assert [each["type"] for each in events[:3]] == ["message_start", "content_block_start", "content_block_delta"]
    assert events[0]["message"]["usage"]["input_tokens"] == 3
    together = put_together(events)
    thought, text, call = together["content"]
    assert thought == {"type": "thinking", "thinking": 'Say "hi",\\ and ü.', "signature": ""}
    assert text == {"type": "text", "text": "I look."}
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "f", {"a": '"logprobs":['})
    assert (together["stop_reason"], together["stop_sequence"]) == ("tool_use", None)
    assert together["usage"] == {
        "input_tokens": 8,
        "cache_read_input_tokens": 1,
        "cache_creation_input_tokens": 0,
        "output_tokens": 5,
        "output_tokens_details": {"thinking_tokens": 2},
        "service_tier": "standard",
    }


def test_thoughts_are_shown_where_they_are_asked_for() -> None:
    played = play([encode_harmony(THOUGHT + ANSWER)])
    assert [each["type"] for each in put_together(encoded(played.events, message())[1])["content"]] == ["text"]
    disabled = message(thinking={"type": "disabled"})
    assert [each["type"] for each in put_together(encoded(played.events, disabled)[1])["content"]] == ["text"]


@pytest.mark.parametrize("shown", [True, False])
def test_a_message_without_a_word_has_no_blocks(shown: bool) -> None:
    asked = message(thinking=THINKING) if shown else message()
    together = put_together(encoded(play([]).events, asked)[1])
    assert (together["content"], together["stop_reason"]) == ([], "end_turn")


def test_a_cut_message_says_so() -> None:
    played = play([encode_harmony("<|channel|>final<|message|>He said")], status=Status.INCOMPLETE)
    assert put_together(encoded(played.events, message())[1])["stop_reason"] == "max_tokens"


def test_a_failed_message_says_nothing_more() -> None:
    played = play([encode_harmony("<|channel|>final<|message|>He said")], status=Status.FAILED, close=False)
    encoder, events = encoded(played.events, message())
    assert encoder.failed
    assert "message_delta" not in [each["type"] for each in events]


def test_what_shows_nothing_is_redacted() -> None:
    """The seal that tells how other items were said stands in a reasoning item without a text."""
    asked = message(thinking=THINKING)
    played = play([encode_harmony(ANSWER)])
    encoder, _ = encoded(played.events[:1], asked)
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [], "encrypted_content": "a seal"}
    said = encoder.encode("response.output_item.done", orjson.dumps({"item": item}))
    assert b'"content_block":{"type":"redacted_thinking","data":"a seal"}' in said
    assert said.count(b"content_block_stop") == 2  # the event's name, and its data
