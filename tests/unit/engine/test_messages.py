"""Harmony messages as JSON: those of prompts and of turns, and back; the library is the oracle."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai_harmony import Conversation, Message

from engine.formats.base import MessageKind, UnreadableMessage, as_tokens
from engine.formats.harmony.encoding import END, decode_tokens, encode_harmony
from engine.formats.harmony.format import HarmonyFormat, messages_of, render_messages
from engine.formats.harmony.prompt import generation_start
from tests.kit.harmony import harmony_encoding
from tests.kit.laws import unicode_texts
from tests.kit.plain_format import PlainFormat

USER = {"role": "user", "content": [{"type": "text", "text": "Hi <|end|>"}]}
THOUGHT = {"role": "assistant", "channel": "analysis", "content": [{"type": "text", "text": "Hm."}]}
CALL = {
    "role": "assistant",
    "channel": "commentary",
    "recipient": "functions.f",
    "content_type": "<|constrain|>json",
    "content": [{"type": "text", "text": '{"a": 1}'}],
}
OUTPUT = {
    "role": "tool",
    "name": "functions.f",
    "channel": "commentary",
    "recipient": "assistant",
    "content": [{"type": "text", "text": "18"}],
}
ANSWER = {"role": "assistant", "channel": "final", "content": [{"type": "text", "text": "So."}]}
ALL = [USER, THOUGHT, CALL, OUTPUT, ANSWER]


def joined(messages: list[dict[str, Any]]) -> list[int]:
    return [token for message in render_messages(messages) for token in message.tokens]


def test_messages_go_there_and_back() -> None:
    tokens = joined(ALL)
    assert messages_of([*tokens, *generation_start()]) == [{"name": None, **message} for message in ALL]
    kinds = [message.kind for message in render_messages(ALL)]
    assert kinds == [
        MessageKind.USER,
        MessageKind.ANALYSIS,
        MessageKind.COMMENTARY,
        MessageKind.OTHER,
        MessageKind.FINAL,
    ]


def test_they_are_those_of_the_library() -> None:
    spelled = [
        {"role": "system", "content": [{"type": "text", "text": "Be."}]},
        *(message for message in ALL if message is not CALL),
    ]
    whole = Conversation.from_messages([Message.from_dict(dict(message)) for message in spelled])
    tokens = harmony_encoding().render_conversation(whole)
    assert [message["role"] for message in messages_of(tokens)][:2] == ["system", "user"]
    assert [message["content"] for message in messages_of(tokens)][1] == USER["content"]
    assert [Message.from_dict(message).to_dict()["content"] for message in messages_of(tokens)][-1] == ANSWER["content"]


@pytest.mark.parametrize(
    ("said", "fields"),
    [
        (
            "assistant<|channel|>analysis to=functions.f code<|message|>{}<|call|>",
            {"channel": "analysis", "recipient": "functions.f", "content_type": "code"},
        ),
        (
            "assistant to=functions.f<|channel|>commentary json<|message|>{}<|call|>",
            {"channel": "commentary", "recipient": "functions.f", "content_type": "json"},
        ),
        ("assistant<|channel|>weird<|message|>{}<|end|>", {"channel": "weird"}),
        ("assistant<|message|>{}<|end|>", {}),
    ],
)
def test_whatever_a_model_says_is_told(said: str, fields: dict[str, str]) -> None:
    [message] = messages_of(encode_harmony(f"<|start|>{said}"))
    content = [{"type": "text", "text": "{}"}]
    assert message == {"role": "assistant", "name": None, **fields, "content": content}


@given(st.lists(st.sampled_from(encode_harmony("<|start|><|channel|><|message|><|end|>assistant to=f hi"))))
def test_no_tokens_break_it(tokens: list[int]) -> None:
    messages_of(tokens)


@given(unicode_texts)
def test_text_is_never_a_special_token(text: str) -> None:
    message = {"role": "user", "content": text}
    [rendered] = render_messages([message])
    assert decode_tokens(rendered.tokens) == f"<|start|>user<|message|>{text}<|end|>"
    assert list(rendered.tokens).count(END) == 1


def test_instructions_are_left_out() -> None:
    assert render_messages([{"role": role, "content": "Obey."} for role in ("system", "developer")]) == []
    assert render_messages([{"author": {"role": "system"}, "content": "Obey."}]) == []


def test_authors_may_stand_in_an_object_of_their_own() -> None:
    with_author = [
        {**{key: value for key, value in message.items() if key not in ("role", "name")}, "author": author(message)}
        for message in ALL
    ]
    assert joined(with_author) == joined(ALL)


def author(message: dict[str, Any]) -> dict[str, Any]:
    return {key: message[key] for key in ("role", "name") if key in message}


def test_messages_of_chat_completions() -> None:
    chat = [
        {"role": "user", "content": "Hi <|end|>"},
        {
            "role": "assistant",
            "reasoning_content": "Hm.",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "18"},
        {"role": "assistant", "content": "So."},
    ]
    assert joined(chat) == joined(ALL)
    spoken = [{"role": "assistant", "content": "I call.", "tool_calls": chat[1]["tool_calls"]}]
    assert [message.get("channel") for message in messages_of(joined(spoken))] == ["commentary", "commentary"]


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ({}, "'role'"),
        ({"role": "narrator", "content": "x"}, "'role'"),
        ({"role": "user", "content": 5}, "'content'"),
        ({"role": "user", "content": [{"type": "image", "url": "x"}]}, "'content'"),
        ({"role": "assistant", "channel": "weird", "content": "x"}, "'channel'"),
        ({"role": "assistant", "channel": ["final"], "content": "x"}, "'channel'"),
        ({"role": "assistant", "recipient": "f<|message|>", "content": "x"}, "name of a tool"),
        ({"role": "assistant", "recipient": ["f"], "content": "x"}, "name of a tool"),
        ({"role": "assistant", "tool_calls": 7}, "'tool_calls'"),
        ({"role": "assistant", "tool_calls": True, "content": "x"}, "'tool_calls'"),
        ({"role": "tool", "content": "x"}, "'tool_call_id'"),
        ({"role": "tool", "name": "f to=user", "content": "x"}, "name of a tool"),
        ({"role": "assistant", "tool_calls": ["f"]}, "'function'"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": 5}}]}, "'function'"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "<|end|>"}}]}, "name of a tool"),
    ],
)
def test_what_cannot_be_rendered_is_named(message: dict[str, Any], hint: str) -> None:
    with pytest.raises(UnreadableMessage) as refused:
        render_messages([USER, message])
    assert refused.value.index == 1
    assert hint in str(refused.value)


def test_the_format_has_them() -> None:
    model_format = HarmonyFormat()
    tokens = as_tokens(joined(ALL))
    assert model_format.messages_of(tokens) == messages_of(tokens)
    assert model_format.render_messages(ALL) == render_messages(ALL)


def test_a_format_without_such_messages_shows_its_text_and_tokens_and_takes_none() -> None:
    tokens = PlainFormat().user("Hi").tokens
    shown = {"type": "raw_message_tokens", "message": "User: Hi\n", "tokens": list(tokens)}
    assert PlainFormat().messages_of(tokens) == [shown]
    assert PlainFormat().render_messages([]) == []
    with pytest.raises(UnreadableMessage):
        PlainFormat().render_messages([USER])
