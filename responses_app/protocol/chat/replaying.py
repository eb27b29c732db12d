"""The turns among the messages of a chat: see `prompt.replaying`, which knows them again.

Chat Completions has no ids of responses or items, and clients send the whole history with every request: a message of
the assistant is a turn.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from responses_app.protocol.chat.messages import AssistantMessage, ChatText, content_of, reasoning_of
from responses_app.protocol.chat.request import ChatRequest
from responses_app.protocol.items.spelling import canonical
from responses_app.protocol.prompt.replaying import KnownTurn, PlacedTurn, SeenTurn, sampled_items


def seen_message(message: AssistantMessage) -> SeenTurn:
    """Return what a client gives back; nothing where there is more than text and calls, which is not remembered."""
    has_refused = message.refusal or any(not isinstance(part, ChatText) for part in message.content or ())
    if message.function_call is not None or has_refused:
        return SeenTurn("", "", ())
    calls = []
    for call in message.tool_calls or ():
        if call.custom is not None and call.type == "custom":
            calls.append((call.id, call.custom.name, call.custom.input))
        elif call.function is not None:
            calls.append((call.id, call.function.name, canonical(call.function.arguments)))
    return SeenTurn(content_of(message), reasoning_of(message), tuple(calls))


def seen_choice(choice: Mapping[str, Any]) -> SeenTurn:
    """Return what a client gets, of a whole choice."""
    calls, message = [], choice["message"]
    for call in message.get("tool_calls") or ():
        called = call[call["type"]]
        text = called["input"] if call["type"] == "custom" else canonical(called["arguments"])
        calls.append((call["id"], called["name"], text))
    return SeenTurn(message["content"] or "", message.get("reasoning") or "", tuple(calls))


def seen_turns(chat: ChatRequest) -> list[SeenTurn]:
    """Return what its client has seen of the assistant's messages, in their order: as long a work as they are."""
    return [seen_message(turn.message) for turn in chat.turns]


def as_sampled(
    chat: ChatRequest, turns: Sequence[SeenTurn], recall: Callable[[bytes], KnownTurn | None]
) -> ChatRequest:
    """Return a chat whose known messages the model reads as it has sampled them; `recall` finds them by their keys.

    `turns` are its `seen_turns`.
    """
    placed = [PlacedTurn(seen, turn.begin, turn.end) for turn, seen in zip(chat.turns, turns, strict=True)]
    items = sampled_items(chat.create.input, placed, recall)
    return replace(chat, create=chat.create.model_copy(update={"input": items}))
