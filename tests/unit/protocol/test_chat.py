"""A chat is read as a request of the Responses API; its completion is the same in chunks and whole."""

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
from engine.types import FinishReason, TokenChunk
from responses_app.protocol.chat.completion import choice_of, usage_of, whole_completion
from responses_app.protocol.chat.encoder import ChatCompletionChunk as PromisedChunk
from responses_app.protocol.chat.encoder import usage_chunk
from responses_app.protocol.chat.request import ChatRequest, parse_chat
from responses_app.protocol.errors import ApiError
from responses_app.protocol.items.client_tools import ClientTools
from responses_app.protocol.output.stream import ResponseStream
from responses_app.protocol.requests.requests import new_response, parse_create
from responses_app.protocol.requests.resources import Ending, Status
from responses_app.protocol.stop_strings import MAX_STOPS
from responses_app.protocol.usage import TurnUsage, usage
from tests.kit import chats
from tests.kit.chats import chat
from tests.kit.laws import Played, chunked, counting_ids, play, transcripts
from tests.unit.protocol.refusals import refusal

USER = {"role": "user", "content": "What is the weather?"}
CALLED = {
    "role": "assistant",
    "content": None,
    "reasoning_content": "I look.",
    "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
        {"id": "call_2", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}},
    ],
}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def items(*messages: Any) -> list[Any]:
    """Return the items that messages are read as."""
    return chat(messages=list(messages)).create.input_json


def test_every_message_becomes_what_the_responses_api_has_for_it() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    file = {"type": "file", "file": {"file_id": "file-1", "filename": "a.pdf"}}
    read = items(
        {"role": "user", "content": [{"type": "text", "text": "Look."}, image, file]},
        CALLED,
        {"role": "tool", "tool_call_id": "call_1", "content": "18"},
        {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "done"}]},
        {"role": "assistant", "content": "It is warm.", "refusal": None, "tool_calls": None},
    )
    assert [item["type"] for item in read] == [
        *("message", "reasoning", "function_call", "custom_tool_call"),
        *("function_call_output", "custom_tool_call_output", "message"),
    ]
    assert [part["type"] for part in read[0]["content"]] == ["input_text", "input_image", "input_file"]
    assert read[0]["content"][1]["image_url"] == "https://example.com/a.png"
    assert read[0]["content"][2] == {"type": "input_file", "file_id": "file-1", "filename": "a.pdf"}
    assert read[1]["content"][0]["text"] == "I look."
    assert (read[2]["name"], read[2]["arguments"], read[3]["input"]) == ("f", '{"a": 1}', "*** Begin")
    assert [read[4]["output"], read[5]["output"]] == ["18", "done"]
    assert read[6]["content"] == [{"type": "output_text", "text": "It is warm."}]


def test_what_is_left_of_an_answer_that_broke_off_is_not_read() -> None:
    """Clients keep an empty message of a stream that broke, before that of the request that they sent again."""
    empty: dict[str, Any] = {"role": "assistant", "content": ""}
    whole = {"role": "assistant", "content": "It is warm."}
    assert items(USER, empty, {**empty, "content": [{"type": "text", "text": ""}]}, whole) == items(USER, whole)
    for kept in ([empty, USER], [{**empty, "reasoning": "hm"}, whole], [{**empty, "refusal": "no"}, whole]):
        assert len(items(USER, *kept)) > len(items(USER, *kept[1:]))


def test_what_the_developer_says_first_are_instructions() -> None:
    brief = {"role": "system", "content": "Be brief."}
    asked = chat(messages=[brief, {"role": "developer", "content": "Rhyme."}, USER])
    assert asked.create.instructions == "Be brief.\n\nRhyme."
    assert len(asked.create.input) == 1
    [late] = items(USER, brief)[1:]
    assert (late["role"], late["content"][0]["text"]) == ("system", "Be brief.")
    only = chat(messages=[brief])
    assert only.create.instructions is None
    assert len(only.create.input) == 1


def test_a_preamble_stands_before_its_call() -> None:
    read = items(USER, {**CALLED, "content": "One moment."})
    assert [item["type"] for item in read[1:3]] == ["reasoning", "message"]
    assert read[2]["phase"] == "commentary"


@pytest.mark.parametrize("thought", ["I look.", [{"type": "text", "text": "I "}, {"type": "text", "text": "look."}]])
def test_a_thought_within_the_content_is_read_as_one_beside_it(thought: Any) -> None:
    """Clients of Mistral's models give thoughts back as parts, often beside calls alone."""
    parts = [{"type": "thinking", "thinking": thought, "closed": True}]
    assert items(USER, {**CALLED, "reasoning_content": None, "content": parts}) == items(USER, CALLED)
    said = [*parts, {"type": "text", "text": "It is warm."}]
    beside = {"role": "assistant", "reasoning": "I look.", "content": "It is warm."}
    assert items(USER, {"role": "assistant", "content": said}) == items(USER, beside)


def test_the_older_form_of_calls_is_read() -> None:
    call = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    _, called, output = items(USER, call, {"role": "function", "name": "f", "content": "18"})
    assert called["call_id"] == output["call_id"]
    assert output["output"] == "18"


def test_fields_have_their_names_of_the_responses_api() -> None:
    asked = chat(
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "f"}},
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
        reasoning_effort="high",
        verbosity="low",
        max_tokens=7,
        logprobs=True,
        top_logprobs=2,
        metadata={"a": "b"},
        user="u",
        seed=7,
        stop="END",
        n=2,
        service_tier="flex",
        parallel_tool_calls=False,
        prompt_cache_key="k",
        unknown={"of": "another server"},
    )
    create = asked.create
    assert (create.max_output_tokens, create.effort, create.logprobs, create.store) == (7, "high", 2, False)
    assert create.text_format.echoed()["type"] == "json_schema"
    assert create.tool_choice.mode == "required"
    assert create.tools.names == {"f"}
    assert (create.metadata, create.user) == ({"a": "b"}, "u")
    assert (create.service_tier, create.prompt_cache_key) == ("flex", "k")
    assert (asked.n, asked.stops) == (2, ("END",))
    assert chat(max_tokens=7, max_completion_tokens=9).create.max_output_tokens == 9
    assert chat(store=True).create.store is True
    assert chat(tools=[TOOL], tool_choice="any").create.tool_choice.mode == "required", "as clients of Mistral say it"
    nulls = dict.fromkeys("tools tool_choice response_format stop n stream stream_options functions logprobs".split())
    assert chat(**nulls).create.tool_choice.mode == "auto"


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"messages": None}, "messages", "missing_required_parameter"),
        ({"messages": []}, "messages", "empty_array"),
        ({"messages": "hi"}, "messages", "invalid_type"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role", "missing_required_parameter"),
        ({"messages": [{"role": "robot", "content": "hi"}]}, "messages[0].role", "invalid_value"),
        (
            {"messages": [USER, {"role": "user", "content": [{"type": "video"}]}]},
            *("messages[1].content[0].type", "invalid_value"),
        ),
        ({"messages": [USER, {"role": "assistant"}]}, "messages[1].content", "missing_required_parameter"),
        (
            {"messages": [USER, {"role": "assistant", "tool_calls": [{"id": "c"}]}]},
            "messages[1].tool_calls[0].function",
            "missing_required_parameter",
        ),
        (
            {"messages": [USER, {"role": "tool", "content": "18"}]},
            *("messages[1].tool_call_id", "missing_required_parameter"),
        ),
        ({"n": 9}, "n", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"stop": ["a"] * (MAX_STOPS + 1)}, "stop", "invalid_value"),
        ({"stop": ""}, "stop[0]", "invalid_value"),
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"top_logprobs": 3}, "top_logprobs", "invalid_value"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "invalid_value"),
        ({"reasoning_effort": "most"}, "reasoning_effort", "invalid_value"),
        ({"response_format": "json"}, "response_format", "invalid_type"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing_required_parameter"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            "response_format.json_schema.schema",
            "missing_required_parameter",
        ),
        ({"tools": [{"type": "code_interpreter"}]}, "tools[0].type", "invalid_value"),
        (
            {"tools": [TOOL, {"type": "computer"}], "tool_choice": {"type": "computer"}},
            *("tool_choice", "unsupported_parameter"),
        ),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name", "missing_required_parameter"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice",
            "invalid_value",
        ),
        ({"functions": [7]}, "functions[0]", "invalid_type"),
        ({"logit_bias": {"50256": -101}}, "logit_bias.50256", "invalid_value"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "invalid_value"),
        ({"prompt_logprobs": 0, "stream": True}, "prompt_logprobs", "invalid_value"),
        ({"prompt_logprobs": 21}, "prompt_logprobs", "invalid_value"),
        ({"web_search_options": {"search_context_size": "low"}}, "web_search_options", "unsupported_parameter"),
        ({"metadata": {"a": "b" * 600}}, "metadata.a", "invalid_value"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str, code: str) -> None:
    error = refusal(chat, **fields)
    assert (error.status, error.param, error.code) == (400, param, code)
    assert "input" not in error.message.replace("input_", "")


def test_what_moves_caches_is_taken_where_the_operator_lets_clients_send_it() -> None:
    transfer = {"do_remote_decode": True, "remote": {"blocks": [1, 2]}}
    body = {"messages": [USER], "kv_transfer_params": transfer}
    assert refusal(parse_chat, body, parse_create).param == "kv_transfer_params"
    asked = parse_chat(body, parse_create, engine_fields=True)
    details = asked.details(0)
    assert (details.given_transfer, details.wanted_logprobs) == (transfer, None)
    details.take(TokenChunk(token_ids=[7], finish_reason=FinishReason.STOP, kv_transfer_params={"blocks": [3]}))
    completion = {"choices": [{"index": 0}]}
    assert asked.with_details(completion, [details]) == {**completion, "kv_transfer_params": {"blocks": [3]}}


def test_an_error_of_a_run_names_the_message_and_not_the_item() -> None:
    asked = chat(messages=[USER, CALLED, {"role": "tool", "tool_call_id": "call_9", "content": "18"}])
    error = ApiError("Invalid 'input[4]': no call, see 'max_output_tokens'.", param="input[4].call_id")
    renamed = asked.renamed(error)
    assert renamed.param == "messages[2].call_id"
    assert renamed.message == "Invalid 'messages[2]': no call, see 'max_completion_tokens'."
    older = chat(messages=[USER], max_tokens=5).renamed(ApiError("Too many.", param="max_output_tokens"))
    assert older.param == "max_tokens"


def test_what_cannot_be_written_is_refused() -> None:
    with pytest.raises(ApiError):
        parse_chat({"messages": [USER], "tools": [{**TOOL, "x": "\ud800"}]}, parse_create)
    assert parse_chat({"messages": [USER], "tools": [{**TOOL, "x": 2**70}]}, parse_create)


SIZES = st.lists(st.integers(0, 4), min_size=1, max_size=3)
PROMISED = TypeAdapter(PromisedChunk)  # chunks are written as bytes, which mypy cannot check
STOPS = st.lists(st.sampled_from(["a", "\n", " apple", "ive", '",', '"']), max_size=4)
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
    names = ("reasoning", "reasoning_content", "tool_calls", "function_call")
    message = {"content": choice["message"]["content"] or ""}
    message |= {name: choice["message"][name] for name in names if name in choice["message"]}
    logprobs = (choice["logprobs"] or {"content": []})["content"]
    ended = {name: choice[name] for name in ("finish_reason", "stop_reason")}
    return {**ended, "message": message, "logprobs": logprobs}


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
    assert asked.create.tool_choice.mode == "required"
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
