"""What a model has said in a chat is known again by its calls or its text, for a while, in its own project."""

import os
from typing import Any

import pytest

from engine.formats.base import MessageKind, RenderedMessage, as_tokens
from responses_app.protocol.chat import messages as chat_messages
from responses_app.protocol.chat.completion import seen_turn_of
from responses_app.protocol.items.items import Exact, SampledInput
from responses_app.protocol.items.spelling import MAX_CANONICAL
from responses_app.protocol.prompt import replaying
from responses_app.protocol.prompt.replaying import SeenTurn, keys_of
from responses_app.protocol.sealing import Sealer
from responses_app.runs.known_turns import KnownTurns
from responses_app.runs.plan.settings import RunSettings
from tests.kit.chats import chat
from tests.kit.clock import Clock

THOUGHT = RenderedMessage(MessageKind.ANALYSIS, as_tokens([1, 2, 3]))
SAID = RenderedMessage(MessageKind.COMMENTARY, as_tokens([4, 5]))
FINAL = RenderedMessage(MessageKind.FINAL, as_tokens([6]))
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a":1,"b":2}'}}
SEALER = Sealer(["a secret"], random_bytes=os.urandom)
USER = {"role": "user", "content": "hi"}
OUTPUT = {"role": "tool", "tool_call_id": "call_1", "content": "18"}


def known(limits: RunSettings | None = None, clock: Clock | None = None) -> KnownTurns:
    return KnownTurns(limits or RunSettings(), sealer=SEALER, clock=clock or Clock())


@pytest.fixture
def turns() -> KnownTurns:
    return known()


def remember(
    turns: KnownTurns, message: dict[str, Any], *said: RenderedMessage, project: str = "default", texts: int = 1
) -> None:
    """Remember the message of a choice, if it is to be."""
    seen = seen_turn_of({"message": {"content": None, **message}})
    assert seen.key is not None
    turn = seen.known(Exact("harmony", said), texts=texts)
    if turn is not None:
        turns.keep(project, seen.key, turn)


def read(turns: KnownTurns, *messages: Any, project: str = "default") -> list[list[RenderedMessage] | None]:
    """Return what each item of a chat was sampled as; None for one that is not known."""
    asked = chat(messages=list(messages))
    asked = asked.as_sampled(asked.seen_turns(), lambda key: turns.find(project, key))
    exact = [item.exact if isinstance(item, SampledInput) else None for item in asked.create.input]
    return [None if each is None else list(each.messages) for each in exact]


def test_a_call_that_comes_back_is_read_with_the_thoughts_before_it(turns: KnownTurns) -> None:
    remember(turns, {"tool_calls": [CALL], "reasoning": "hm"}, THOUGHT, SAID)
    assert read(turns, USER, {"role": "assistant", "tool_calls": [CALL]}, OUTPUT) == [None, [THOUGHT, SAID], None]
    with_thought = {"role": "assistant", "tool_calls": [CALL], "reasoning_content": "hm"}
    assert read(turns, USER, with_thought, OUTPUT) == [None, [THOUGHT, SAID], [], None]
    spelled = {**CALL, "function": {"name": "f", "arguments": '{ "b": 2, "a": 1 }'}}
    assert read(turns, USER, {"role": "assistant", "tool_calls": [spelled]}, OUTPUT)[1] == [THOUGHT, SAID]


def test_a_call_is_known_with_the_defaults_that_its_client_has_filled_in() -> None:
    """Claude Code does: the model has not said them, and false is the default of most."""
    filled = {**CALL, "function": {"name": "f", "arguments": '{"replace_all":false,"limit":null,"a":1,"b":2}'}}
    known = {keys_of(turns_of(CALL))[0], keys_of(turns_of(filled))[0]}
    assert len(known) == 1
    for other in ('{"replace_all":true,"a":1,"b":2}', '{"a":1,"b":0}', '{"a":1}'):
        changed = {**CALL, "function": {"name": "f", "arguments": other}}
        assert keys_of(turns_of(changed))[0] not in known


def turns_of(call: dict[str, Any]) -> list[SeenTurn]:
    """Return what is seen of a chat with a call."""
    return chat(messages=[{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": [call]}]).seen_turns()


def test_long_arguments_are_known_as_they_were_spelled(monkeypatch: pytest.MonkeyPatch, turns: KnownTurns) -> None:
    """They are not even parsed."""
    long = '{"b": 1, "a": "' + "x" * MAX_CANONICAL + '"}'
    message = {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": long}}]}
    spelled = {**CALL, "function": {"name": "f", "arguments": long.replace(": ", ":")}}
    monkeypatch.setattr(replaying, "orjson", None)
    remember(turns, message, THOUGHT, SAID)
    assert read(turns, USER, message, OUTPUT) == [None, [THOUGHT, SAID], None]
    assert read(turns, USER, {"role": "assistant", "tool_calls": [spelled]}, OUTPUT) == [None, None, None]


def test_what_is_long_is_hashed_once(monkeypatch: pytest.MonkeyPatch, turns: KnownTurns) -> None:
    """That is where the chat is read, which is off the event loop; not where its turns are looked up."""
    message = {"role": "assistant", "tool_calls": [CALL], "content": "I look.", "reasoning": "hm"}
    remember(turns, message, THOUGHT, SAID)
    asked = chat(messages=[USER, message, OUTPUT])
    seen = asked.seen_turns()
    monkeypatch.setattr(replaying, "_digest", None)
    monkeypatch.setattr(chat_messages, "canonical", None)
    found = {key: turns.find("default", key) for key in keys_of(seen)}
    items = asked.as_sampled(seen, found.get).create.input
    assert any(isinstance(item, SampledInput) and item.exact for item in items)


@pytest.mark.parametrize(
    "changed",
    [
        {"tool_calls": [{**CALL, "function": {"name": "f", "arguments": '{"a":2,"b":2}'}}]},
        {"tool_calls": [{**CALL, "function": {"name": "g", "arguments": '{"a":1,"b":2}'}}]},
        {"tool_calls": [{**CALL, "id": "call_2"}]},
        {"tool_calls": [CALL], "content": "Something else."},
        {"tool_calls": [CALL], "content": "hmSomething else."},
        {"tool_calls": [CALL], "content": "I look.hm"},
        {"tool_calls": [CALL], "reasoning": "Something else."},
    ],
)
def test_what_its_client_has_changed_is_read_as_it_is_now(changed: dict[str, Any], turns: KnownTurns) -> None:
    remember(turns, {"tool_calls": [CALL], "content": "I look.", "reasoning": "hm"}, THOUGHT, SAID)
    assert all(each is None for each in read(turns, USER, {"role": "assistant", **changed}))


@pytest.mark.parametrize("content", ["hm", "hmI look.", "hm\n\nI look."])
def test_a_thought_may_come_back_as_a_text_beside_the_calls(content: str, turns: KnownTurns) -> None:
    """Clients that know of no thoughts send it so, with the text behind it or without."""
    remember(turns, {"tool_calls": [CALL], "content": "I look.", "reasoning": "hm"}, THOUGHT, SAID)
    message = {"role": "assistant", "tool_calls": [CALL], "content": content}
    assert read(turns, USER, message, OUTPUT)[1] == [THOUGHT, SAID]


def test_a_text_is_known_without_what_was_thought_before_it(turns: KnownTurns) -> None:
    remember(turns, {"content": "Hello."}, THOUGHT, FINAL)
    assert read(turns, USER, {"role": "assistant", "content": "Hello."}, USER) == [None, [FINAL], None]
    with_thought = {"role": "assistant", "content": "Hello.", "reasoning": "of another chat"}
    assert read(turns, USER, with_thought, USER) == [None, None, [FINAL], None]


@pytest.mark.parametrize(("said", "texts"), [((SAID, FINAL), 2), ((FINAL, SAID, FINAL), 2), ((SAID,), 1), ((), 0)])
def test_a_text_that_is_not_one_answer_is_not_remembered(said: tuple[RenderedMessage, ...], texts: int) -> None:
    turns = known()
    remember(turns, {"content": "I look. OK."}, *said, texts=texts)
    assert len(turns) == 0
    remember(turns, {"content": "I look. OK.", "tool_calls": [CALL]}, *said, texts=texts)
    assert len(turns) == 1


@pytest.mark.parametrize(
    "more",
    [
        {"function_call": CALL["function"]},
        {"refusal": "I cannot."},
        {"content": [{"type": "text", "text": "OK."}, {"type": "refusal", "refusal": "I cannot."}]},
    ],
)
def test_what_stands_beside_a_known_text_is_read(more: dict[str, Any], turns: KnownTurns) -> None:
    remember(turns, {"content": "OK."}, FINAL)
    assert not any(read(turns, USER, {"role": "assistant", "content": "OK.", **more}))


def test_nothing_is_known_to_another_project(turns: KnownTurns) -> None:
    remember(turns, {"tool_calls": [CALL]}, THOUGHT, SAID, project="others")
    assert read(turns, USER, {"role": "assistant", "tool_calls": [CALL]}) == [None, None]


def test_it_is_forgotten_after_a_while_and_in_the_order_of_its_use() -> None:
    clock = Clock()
    turns = known(RunSettings(responses_session_ttl=10, responses_max_active_sessions=2), clock)
    for text in ("one", "two"):
        remember(turns, {"content": text}, FINAL)
    assert read(turns, {"role": "assistant", "content": "one"}) == [[FINAL]]
    remember(turns, {"content": "three"}, FINAL)
    said = [{"role": "assistant", "content": text} for text in ("one", "two", "three")]
    assert read(turns, *said) == [[FINAL], None, [FINAL]]
    clock.now = 10.0
    assert read(turns, *said) == [None, None, None]
    assert (len(turns), turns.bytes) == (0, 0)


def test_its_bytes_are_bounded() -> None:
    turns = known(RunSettings(responses_max_session_bytes=100_000))
    for number in range(20):
        remember(turns, {"content": str(number)}, RenderedMessage(MessageKind.FINAL, as_tokens(range(5_000))))
    assert 0 < turns.bytes <= 100_000
    assert len(turns) == 4
