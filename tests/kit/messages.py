"""What tests of Anthropic's Messages API share: requests, and a client that puts the events of a stream together."""

from collections.abc import Iterable, Sequence
from typing import Any

import orjson
from anthropic.types.beta import BetaRawMessageStreamEvent
from pydantic import TypeAdapter

from responses_app.protocol.engine_details import EngineDetails
from responses_app.protocol.events.events import Event
from responses_app.protocol.messages.message import EVENT_TYPES, MessageEncoder
from responses_app.protocol.messages.request import MessagesRequest, parse_messages
from responses_app.protocol.requests.requests import parse_create

USER = {"role": "user", "content": "hi"}
THINKING = {"type": "adaptive"}
_EVENT: TypeAdapter[Any] = TypeAdapter(BetaRawMessageStreamEvent)
_DELTAS = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("thinking", "signature"),
    "input_json_delta": ("tool_use", "partial_json"),
}


def message(**fields: object) -> MessagesRequest:
    """Return a validated request."""
    return parse_messages({"model": "m", "max_tokens": 100, "messages": [USER], **fields}, parse_create)


def sent(encoded: bytes) -> list[Any]:
    """Return the data of server-sent events; each is called as its data says, and is one of Anthropic's."""
    events = []
    for part in encoded.split(b"\n\n"):
        if part:
            name, data = part.split(b"\n")
            events.append(orjson.loads(data.removeprefix(b"data: ")))
            assert name == b"event: " + events[-1]["type"].encode()
            assert events[-1]["type"] in EVENT_TYPES
    for each in events:
        if each["type"] not in ("ping", "error"):
            _EVENT.validate_python(each)
    return events


def encoded(events: Iterable[Event], asked: MessagesRequest) -> tuple[MessageEncoder, list[Any]]:
    """Encode a response's events; return the encoder, and the events of the message."""
    events = list(events)
    begun: Any = events[0].fields["response"]
    encoder = MessageEncoder(begun, asked, EngineDetails(prompt_token_ids=[1, 2, 3]))
    return encoder, sent(b"".join(encoder.encode(event.type, event.as_json()) for event in events))


def put_together(events: Sequence[Any]) -> dict[str, Any]:
    """Return the message that a client makes of its events, and hold them to the laws of a stream."""
    first, *blocks, delta, last = [each for each in events if each["type"] != "ping"]
    assert (first["type"], delta["type"], last) == ("message_start", "message_delta", {"type": "message_stop"})
    whole: dict[str, Any] = {**first["message"]}
    assert whole["content"] == []
    content: list[Any] = []
    is_open = False
    for each in blocks:
        if each["type"] == "content_block_start":
            assert (is_open, each["index"]) == (False, len(content))
            content.append({**each["content_block"]})
            is_open = True
            continue
        assert (is_open, each["index"]) == (True, len(content) - 1)
        if each["type"] == "content_block_stop":
            is_open = False
            continue
        assert each["type"] == "content_block_delta"
        if each["delta"]["type"] == "citations_delta":
            content[-1].setdefault("citations", []).append(each["delta"]["citation"])
            continue
        kind, field = _DELTAS[each["delta"]["type"]]
        assert content[-1]["type"].endswith(kind)
        content[-1][field] = content[-1].get(field, "") + each["delta"][field]
    assert not is_open, "each start has one stop"
    for block in content:
        if block["type"].endswith("tool_use"):
            block["input"] = _input(block.pop("partial_json", ""))
    used = {**whole["usage"], **delta["usage"]}
    return {**whole, "content": content, **delta["delta"], "usage": used}


def _input(text: str) -> Any:
    """Return what a call was made with; nothing where a model has written something else."""
    try:
        read = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return read if isinstance(read, dict) else {}
