"""What workers and hosts of containers send each other: a JSON header, and the bytes that lie behind it.

    length of the JSON, how many bytes behind it │ JSON │ bytes

Values are what JSON knows, bytes, dataclasses and enumerations; `read_as` makes them again by their type.
"""

import asyncio
import json
import struct
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from responses_app.protocol.setting import MIB

# Of this protocol: a host refuses a worker that has another one. A host outlives a rolling restart, so workers of a
# newer release talk to an older host; where they are two machines, it may be the other way round. A new action needs no
# new version: an older host answers that it does not know it. A new field needs one: `read_as` refuses unknown fields.
VERSION = 2
MAX_JSON = 8 * MIB  # bytes of a header: the files of a container, listed, take 1.5 MB
MAX_BYTES = 64 * MIB  # behind it: the images of a cell take 20, and SKILL_MAX_BYTES is at most so much
MAX_HELLO = 4096  # bytes of the first header, before anybody is known; nothing lies behind it
FRAME_SECONDS = 60.0  # in which a message comes whole, once it has begun
_HEAD = struct.Struct(">II")  # of the JSON and of the bytes; big-endian, 32 bits each
_PLACE = "\0bytes"  # where bytes stand, the JSON has their first and their last place


class MessageError(Exception):
    """What came is not a message, or is too long, or is not of the type that it should have."""


def packed(value: Mapping[str, object]) -> bytes:
    """Return a message as it is sent. Raises `MessageError` for one that is too long."""
    parts: list[bytes] = []
    size = 0

    def plain(each: object) -> object:
        nonlocal size
        if isinstance(each, bytes):
            parts.append(each)
            size += len(each)
            # The place among the bytes stands in for them.
            return {_PLACE: [size - len(each), size]}
        if is_dataclass(each):
            return {field.name: getattr(each, field.name) for field in fields(each)}
        if isinstance(each, Enum):
            return each.value
        raise TypeError(f"{type(each).__name__} cannot be sent")

    text = json.dumps(value, default=plain).encode()
    if len(text) > MAX_JSON or size > MAX_BYTES:
        raise MessageError("it is too long to be sent")
    return b"".join((_HEAD.pack(len(text), size), text, *parts))


async def received(
    reader: asyncio.StreamReader, *, max_json: int = MAX_JSON, max_bytes: int = MAX_BYTES
) -> dict[str, Any]:
    """Return the next message; one that has begun comes within `FRAME_SECONDS`.

    Raises `MessageError`, `TimeoutError`, `OSError`, and `asyncio.IncompleteReadError` where the other side is gone.
    """
    begin = await reader.readexactly(1)
    async with asyncio.timeout(FRAME_SECONDS):
        text, size = _HEAD.unpack(begin + await reader.readexactly(_HEAD.size - 1))
        # Before anything of it is read: whoever sends it may say anything.
        if text > max_json or size > max_bytes:
            raise MessageError("it is too long")
        content = await reader.readexactly(text)
        behind = await reader.readexactly(size)

    def whole(each: dict[str, Any]) -> Any:
        if each.keys() != {_PLACE}:
            return each
        match each[_PLACE]:
            case [int(start), int(end)] if 0 <= start <= end <= len(behind):
                return behind[start:end]
        raise ValueError("bytes that are not there")

    try:
        message = json.loads(content, object_hook=whole)
    except (ValueError, RecursionError):
        raise MessageError("it is not JSON") from None
    if not isinstance(message, dict):
        raise MessageError("it is not an object")
    return message


def read_as(kind: Any, value: Any) -> Any:
    """Return a value that came as JSON as what it was: a dataclass, an enumeration, a sequence of them, or itself.

    Raises `MessageError`.
    """
    try:
        return _read(kind, value)
    except (TypeError, ValueError, KeyError, AttributeError) as problem:
        raise MessageError(f"it is no {getattr(kind, '__name__', kind)}: {problem}") from None


def _read(kind: Any, value: Any) -> Any:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        inner = [each for each in get_args(kind) if each is not type(None)]
        return None if value is None else _read(inner[0], value)
    if isinstance(kind, type) and is_dataclass(kind):
        hints = _fields_of(kind)
        return kind(**{name: _read(hints[name], each) for name, each in value.items()})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if origin is tuple:
        return tuple(_read(each, one) for each, one in zip(get_args(kind), value, strict=True))
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return [_read(get_args(kind)[0], each) for each in value]
    plain = {Literal: str, Any: object}.get(origin or kind, origin or kind)
    wanted = (int, float) if plain is float else plain
    if plain is None or plain is type(None):
        wanted = type(None)
    if not isinstance(value, wanted):
        raise TypeError(f"{type(value).__name__} instead of {kind}")
    return value


@cache
def _fields_of(kind: type) -> dict[str, Any]:
    from responses_app.protocol.files.containers import MemoryLimit  # which records name, and do not import

    return get_type_hints(kind, localns={"MemoryLimit": MemoryLimit})
