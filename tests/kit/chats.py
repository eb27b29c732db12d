"""What tests of Chat Completions share: chats, and clients that put the chunks of a stream together."""

from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from responses_app.protocol.chat.completion import ChatHead
from responses_app.protocol.chat.encoder import ChunkEncoder
from responses_app.protocol.chat.request import ChatRequest, parse_chat
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.events.events import Event
from responses_app.protocol.requests.requests import parse_create

HEAD = ChatHead(id="chatcmpl-1", created=1_700_000_000, model="m", service_tier="default", system_fingerprint="fp_1")


def chat(**fields: object) -> ChatRequest:
    return parse_chat({"messages": [{"role": "user", "content": "hi"}], **fields}, parse_create)


def sent(encoded: bytes) -> list[Any]:
    """Return the data of server-sent events."""
    lines = [line for line in encoded.split(b"\n\n") if line and not line.startswith(b":")]
    assert all(line.startswith(b"data: ") for line in lines)
    return [orjson.loads(line[len(b"data: ") :]) for line in lines if line != b"data: [DONE]"]


def encoded(events: Iterable[Event], asked: ChatRequest) -> tuple[ChunkEncoder, list[Any]]:
    """Encode a response's events; return the encoder, and the chunks."""
    encoder = ChunkEncoder(HEAD, asked)
    return encoder, sent(b"".join(encoder.encode(event.type, event.as_json()) for event in events))


def put_together(chunks: Sequence[Any], index: int = 0) -> JsonObject:
    """Return the choice that a client makes of its chunks."""
    message: dict[str, Any] = {"content": "", "tool_calls": []}
    logprobs: list[Any] = []
    ends: list[Any] = []
    roles = 0
    for choice in (each for chunk in chunks for each in chunk["choices"] if each["index"] == index):
        delta = choice["delta"]
        roles += "role" in delta
        logprobs += (choice["logprobs"] or {"content": []})["content"]
        for name in ("content", "reasoning", "reasoning_content"):
            if delta.get(name):
                message[name] = message.get(name, "") + delta[name]
        for part in delta.get("tool_calls", ()):
            _add_call(message["tool_calls"], part)
        if "function_call" in delta:
            whole = message.setdefault("function_call", {"name": "", "arguments": ""})
            whole |= {name: whole[name] + text for name, text in delta["function_call"].items()}
        if choice["finish_reason"] is not None:
            ends.append((choice["finish_reason"], choice["stop_reason"]))
    assert roles == len(ends) == 1, "each choice has one role and one end"
    [(finish, stop)] = ends
    if not message["tool_calls"]:
        del message["tool_calls"]
    return {"message": message, "finish_reason": finish, "stop_reason": stop, "logprobs": logprobs}


def _add_call(calls: list[Any], part: dict[str, Any]) -> None:
    if part["index"] == len(calls):
        calls.append({name: value for name, value in part.items() if name != "index"})
        return
    assert part["index"] == len(calls) - 1, "more of the last call"
    kind = calls[-1]["type"]
    for name, text in part[kind].items():
        calls[-1][kind][name] += text
