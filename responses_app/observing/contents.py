"""Contents of a response in spans or events, where TRACES_CONTENT asks for them, as the conventions write messages.

    {"type": "message", "role": "user", …}      ->  {"role": "user", "parts": [{"type": "text", "content": "…"}]}
    {"type": "function_call", …}                ->  {"role": "assistant", "parts": [{"type": "tool_call", …}]}

Texts are cut, and what has no room is left out, oldest first: a span waits in memory until it is exported, up to
2048 of them (OTEL_BSP_MAX_QUEUE_SIZE; of events OTEL_BLRP_MAX_QUEUE_SIZE). Of images, files and audio only their types
are shown.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

from engine import orjson
from responses_app.protocol.errors import JsonObject

MAX_CHARACTERS = 16_384  # of one attribute, about
MAX_PARTS = 256  # of one attribute; a message counts as one, too, as it may have none
MAX_TYPE = 64  # characters of the type of a part
# Levels of a call's arguments; what is nested deeper stays a text. OpenTelemetry's exporter drops all events that it
# has at hand, whoever's they are, where one has some 30 levels: protobuf reads 100, and each of these takes three.
MAX_DEPTH = 16
MAX_SHOWN_DEPTH = 500  # of a value that is shown as JSON in a text: every version of Python can write it
_ROLES = {"developer": "system"}  # the conventions know system, user, assistant and tool
_TEXTS = ("input_text", "output_text", "text", "refusal", "summary_text", "reasoning_text")  # parts that are texts


class _Room:
    """What of an attribute is left."""

    def __init__(self) -> None:
        self.characters = MAX_CHARACTERS
        self.parts = MAX_PARTS

    @property
    def is_full(self) -> bool:
        return self.characters <= 0 or self.parts <= 0

    def text(self, value: object) -> str:
        """Return a text, cut to what is left."""
        if isinstance(value, str):
            whole = value
        else:  # as JSON, or only its kind where it is nested too deep for that
            whole = f"[{type(value).__name__}]" if _is_deeper(value, MAX_SHOWN_DEPTH) else _json(value)
        kept = cut(whole, max(0, self.characters))
        self.characters -= len(kept)
        return kept

    def part(self, kind: str, **fields: object) -> JsonObject:
        """Return a part of a message."""
        self.frame()
        return {"type": kind[:MAX_TYPE], **fields}

    def frame(self) -> None:
        """Take the room of what is around a part or a message."""
        self.parts -= 1
        self.characters -= 32  # its names and quotes, about


def cut(text: str, characters: int = MAX_CHARACTERS) -> str:
    """Return a text of at most so many characters, and behind it how many are missing, if any are."""
    missing = len(text) - characters
    return _written(text if missing <= 0 else f"{text[:characters]}… [{missing} more characters]")


def instructions(text: str) -> str:
    """Return `gen_ai.system_instructions`."""
    return _json([{"type": "text", "content": cut(text)}])


def input_messages(items: Sequence[Mapping[str, Any]]) -> str:
    """Return `gen_ai.input.messages`: the last items of an input, as many as have room."""
    room, messages = _Room(), []
    for item in reversed(items):
        if room.is_full:
            break
        room.frame()
        role, parts = _read(item, room)
        messages.append({"role": role, "parts": parts})
    return _json(messages[::-1])


def output_messages(items: Iterable[Mapping[str, Any]], finish_reason: str | None) -> str:
    """Return `gen_ai.output.messages`: all items of an output are one message.

    What came of its calls of this server's tools is left out: the model has read it, not said it.
    """
    room, parts = _Room(), []
    for item in items:
        if room.is_full:
            break
        if not str(item.get("type")).endswith("_output"):
            parts += _read(item, room)[1]
    reason = {} if finish_reason is None else {"finish_reason": finish_reason}
    return _json([{"role": "assistant", "parts": parts, **reason}])


def _read(item: Mapping[str, Any], room: _Room) -> tuple[str, list[JsonObject]]:
    """Return the role of an item, and its parts."""
    kind = str(item.get("type") or "message")
    match kind:
        case "message":
            role = str(item.get("role") or "user")
            return _ROLES.get(role, role), _parts(item.get("content"), room)
        case "reasoning":
            texts = item.get("content") or item.get("summary")
            said = [str(part["content"]) for part in _parts(texts, room) if "content" in part]
            return "assistant", [room.part("reasoning", content="\n".join(said))]
        case "function_call" | "custom_tool_call":
            given = item.get("arguments", item.get("input", ""))
            named = {"id": _id(item, "call_id", room), "name": room.text(str(item.get("name") or kind))}
            return "assistant", [room.part("tool_call", **named, arguments=_arguments(room.text(given)))]
    if kind.endswith("_output"):
        given, call_id = item.get("output"), _id(item, "call_id", room)
        given = [given] if isinstance(given, dict) else given  # a screenshot
        response = _parts(given, room) if isinstance(given, list) else room.text(given)
        return "tool", [room.part("tool_call_response", id=call_id, response=response)]
    # Calls of this server's tools: what they were asked, and what came of it, stands in their own spans.
    call: JsonObject = {"type": kind[:MAX_TYPE]}
    named = {"id": _id(item, "id", room), "name": kind[:MAX_TYPE]}
    return "assistant", [room.part("server_tool_call", **named, server_tool_call=call)]


def _id(item: Mapping[str, Any], field: str, room: _Room) -> str | None:
    """Return an id, which a client may have given."""
    value = item.get(field)
    return room.text(value) if isinstance(value, str) else None


def _parts(content: object, room: _Room) -> list[JsonObject]:
    if isinstance(content, str):
        return [room.part("text", content=room.text(content))]
    parts: list[JsonObject] = []
    for part in content if isinstance(content, list) else ():
        if room.is_full:
            break
        kind = str(part.get("type") or "unknown") if isinstance(part, dict) else "unknown"
        if kind in _TEXTS:
            parts.append(room.part("text", content=room.text(part.get("text", part.get("refusal", "")))))
        else:
            parts.append(room.part(kind))
    return parts


def _arguments(text: str) -> object:
    """Return arguments as an object, as the conventions want it, where they are one that every reader can read."""
    try:
        read = orjson.loads(text)
    except ValueError:  # another kind of input, or cut
        return text
    return read if isinstance(read, dict) and _is_plain(read, MAX_DEPTH) else text


def _is_plain(value: object, depth: int) -> bool:
    """Whether a value is nested no deeper than that, and has only numbers that OTLP has."""
    match value:
        case dict() | list():
            inner = value.values() if isinstance(value, dict) else value
            return depth > 0 and all(_is_plain(each, depth - 1) for each in inner)
        case int():
            return -(2**63) <= value < 2**63
        case float():
            return isfinite(value)
    return True


def _is_deeper(value: object, depth: int) -> bool:
    """Whether a value is nested deeper than that, however deep it is."""
    level = [value]
    while level and depth > 0:
        nested = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        level = [inner for each in nested for inner in each]
        depth -= 1
    return bool(level)


def _json(value: object) -> str:
    return _written(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str))


def _written(text: str) -> str:
    # A lone surrogate, which JSON of clients may have, cannot be written as UTF-8: it becomes "?".
    return text.encode(errors="replace").decode()
