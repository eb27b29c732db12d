"""A chat completion is the same in chunks and whole, however its tokens and its text were cut."""

from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import TypeAdapter

from engine.formats.base import ItemKind, ItemStarted, Text, TextLogprob
from engine.formats.harmony.encoding import encode_harmony
from responses_app.protocol.chat.completion import choice_of, usage_of, whole_completion
from responses_app.protocol.chat.encoder import ChatCompletionChunk as PromisedChunk
from responses_app.protocol.chat.encoder import usage_chunk
from responses_app.protocol.chat.request import ChatRequest
from responses_app.protocol.items.client_tools import ClientTools
from responses_app.protocol.output.stream import ResponseStream
from responses_app.protocol.requests.requests import new_response
from responses_app.protocol.requests.resources import Ending, Status
from responses_app.protocol.usage import TurnUsage, usage
from tests.kit import chats
from tests.kit.laws import Played, chunked, counting_ids, play, transcripts

SIZES = st.lists(st.integers(0, 4), min_size=1, max_size=3)
PROMISED = TypeAdapter(PromisedChunk)  # chunks are written as bytes, which mypy cannot check
STOPS = st.lists(
    st.sampled_from(
        ["a", "\n", " apple", "ive", '",', '"'],
    ),
    max_size=4,
)
THOUGHT = '<|channel|>analysis<|message|>Say "hi",\\ and ü.<|end|><|start|>assistant'
ANSWER = '<|channel|>final<|message|>He said: "a\\",", and left. 😀<|return|>'
PREAMBLE = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a":"\\"logprobs\\":["}<|call|>'


def whole(played: Played, asked: ChatRequest) -> dict[str, Any]:
    """Return the choice that a response is as a whole, as `put_together` has it."""
    response = played.events[-1].fields["response"]
    choice: Any = choice_of(
        response,  # type: ignore[arg-type]
        stops=asked.stops,
        thought_names=asked.thought_names if asked.shows_reasoning else (),
        old_calls=asked.old_calls,
    )
    message = {name: choice["message"][name] or "" for name in ("content",)}
    for name in ("reasoning", "reasoning_content", "tool_calls", "function_call"):
        if name in choice["message"]:
            message[name] = choice["message"][name]
    logprobs = (choice["logprobs"] or {"content": []})["content"]
    return {
        **{name: choice[name] for name in ("finish_reason", "stop_reason")},
        "message": message,
        "logprobs": logprobs,
    }


@given(transcripts().map(lambda transcript: transcript.tokens), SIZES, STOPS)
@example(encode_harmony(THOUGHT + ANSWER), [1], [])
@example(encode_harmony(THOUGHT + PREAMBLE + CALL), [2], ["logprobs"])
@example(encode_harmony(THOUGHT + CALL.replace("<|call|>", "<|end|><|start|>assistant") + CALL), [3], ["a"])
@example(encode_harmony(THOUGHT + PREAMBLE + ANSWER), [1, 3], ['",', "I look.\n\nHe"])
@settings(max_examples=60, deadline=None)
def test_the_chunks_of_a_choice_are_its_whole(tokens: Sequence[int], sizes: list[int], stops: list[str]) -> None:
    for asked in (chats.chat(stop=stops), chats.chat(include_reasoning=False)):
        played = play(chunked(tokens, sizes))
        encoder, chunks = chats.encoded(played.events, asked)
        together = chats.put_together(chunks)
        assert together == whole(played, asked)
        assert (encoder.matched, encoder.failed) == (together["stop_reason"], False)
        assert chats.put_together(chats.encoded(play([tokens]).events, asked)[1]) == together
        for chunk in chunks:
            ChatCompletionChunk.model_validate(chunk, strict=True)
            PROMISED.validate_python(chunk, strict=True)


def test_a_completion_is_openais() -> None:
    asked = chats.chat()
    responses: Any = [play([encode_harmony(text)]).events[-1].fields["response"] for text in (ANSWER, THOUGHT + CALL)]
    completion = whole_completion(chats.HEAD, responses, asked)
    said = ChatCompletion.model_validate(orjson.loads(orjson.dumps(completion)), strict=True)
    assert said.choices[0].message.content == 'He said: "a\\",", and left. 😀'
    assert [choice.finish_reason for choice in said.choices] == ["stop", "tool_calls"]
    assert said.choices[1].message.content is None
    assert said.usage.prompt_tokens == 9, "the choices share the prompt"
    assert said.usage.completion_tokens == 10
    assert said.usage.total_tokens == 19
    last = chats.sent(usage_chunk(chats.HEAD, usage_of(responses)))
    assert last[0]["choices"] == []
    assert last[0]["usage"] == completion["usage"]


def test_a_call_is_cut_out_of_its_events_as_it_stands() -> None:
    _, chunks = chats.encoded(play([[token] for token in encode_harmony(PREAMBLE + CALL)]).events, chats.chat())
    message: Any = chats.put_together(chunks)["message"]
    assert message["content"] == "I look."
    [call] = message["tool_calls"]
    assert orjson.loads(call["function"]["arguments"]) == {"a": '"logprobs":['}
    assert call["id"].startswith("call_")


def test_two_messages_are_two_paragraphs() -> None:
    _, chunks = chats.encoded(play([encode_harmony(PREAMBLE + ANSWER)]).events, chats.chat())
    message: Any = chats.put_together(chunks)["message"]
    assert message["content"].startswith('I look.\n\nHe said: "a')


def test_functions_of_the_older_form_are_called_in_it() -> None:
    asked = chats.chat(functions=[{"name": "f", "parameters": {"type": "object"}}], function_call={"name": "f"})
    assert asked.create.parallel_tool_calls is False
    assert asked.create.tool_choice.demands
    played = play([[token] for token in encode_harmony(CALL)])
    together: Any = chats.put_together(chats.encoded(played.events, asked)[1])
    assert together == whole(played, asked)
    assert together["message"]["function_call"]["name"] == "f"
    assert together["finish_reason"] == "function_call"


@pytest.mark.parametrize(
    ("status", "reason", "failed"),
    [(Status.INCOMPLETE, "length", False), (Status.FAILED, None, True), (Status.CANCELLED, None, True)],
)
def test_how_a_choice_ends(status: Status, reason: str | None, failed: bool) -> None:
    encoder, chunks = chats.encoded(play([encode_harmony(ANSWER)], status=status).events, chats.chat())
    assert encoder.failed is failed
    ends = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert ends == ([reason] if reason else [])


def test_a_custom_tool_is_called_with_text() -> None:
    tools = [{"type": "custom", "custom": {"name": "patch", "description": "Patches."}}]
    asked = chats.chat(tools=tools)
    response = new_response(asked.create, response_id="resp_1", created_at=1, model="m", store=False)
    stream = ResponseStream(response, new_id=counting_ids(), tools=asked.create.tools)
    events = stream.start()
    for text in ("*** Begin", " Patch\n"):
        if not stream.is_open:
            events += stream.receive(ItemStarted(ItemKind.CALL, "patch"))
        events += stream.receive(Text(text))
    events += stream.finish(Ending(status=Status.COMPLETED))
    together: Any = chats.put_together(chats.encoded(events, asked)[1])
    [call] = together["message"]["tool_calls"]
    assert call["type"] == "custom"
    assert call["custom"] == {"name": "patch", "input": "*** Begin Patch\n"}
    assert call == choice_of(stream.snapshot())["message"]["tool_calls"][0]  # type: ignore[index]


@given(st.lists(st.text("ab\n", min_size=1, max_size=3), min_size=1, max_size=8), STOPS)
def test_log_probabilities_come_with_the_text_they_are_of(words: list[str], stops: list[str]) -> None:
    asked = chats.chat(stop=stops, logprobs=True, top_logprobs=1)
    response = new_response(asked.create, response_id="resp_1", created_at=1, model="m", store=False)
    stream = ResponseStream(response, new_id=counting_ids(), tools=ClientTools())
    events = stream.start()
    for kind in (ItemKind.PREAMBLE, ItemKind.ANSWER):
        events += stream.receive(ItemStarted(kind))
        for word in words:
            entry = TextLogprob(word.encode(), -0.5, ((word.encode(), -0.5), (b"\xff", -2.0)))
            events += stream.receive(Text(word, (entry,)))
        events += stream._close_item("completed")
    events += stream.finish(Ending(status=Status.COMPLETED, usage=usage([TurnUsage(1, 0, 1, 0)])))
    played = Played(stream, events, True)
    together: Any = chats.put_together(chats.encoded(events, asked)[1])
    expected: Any = whole(played, asked)
    for entry in expected["logprobs"]:
        entry["top_logprobs"][1]["bytes"] = None  # a stream's events do not tell what is not whole characters
    assert together == expected
    if not stops:
        assert [entry["token"] for entry in together["logprobs"]] == words * 2
        assert together["logprobs"][0]["bytes"] == list(words[0].encode())
