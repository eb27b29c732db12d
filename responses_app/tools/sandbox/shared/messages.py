"""What workers of one machine say to each other about containers: a value as JSON, and the bytes that lie behind it.

length of the JSON, how many bytes behind it │ JSON │ bytes
"""

import asyncio
import json
import struct
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from responses_app.tools.sandbox.inside.respsite_kernel.frames import MAX_PAYLOAD

MAX_JSON = 64 * 1024 * 1024  # the files of a container, listed
_HEAD = struct.Struct(">IQ")
_PLACE = "\0bytes"  # where bytes stand, the JSON has their first and their last place


class MessageError(Exception):
    """What came is not a message, or is too long."""


def packed(value: object) -> bytes:
    """Return a value as it is sent: what JSON knows, bytes, and dataclasses and enumerations, which become plain."""
    parts: list[bytes] = []
    size = 0

    def plain(each: object) -> object:
        nonlocal size
        if isinstance(each, bytes):
            parts.append(each)
            size += len(each)
            return {_PLACE: [size - len(each), size]}
        if is_dataclass(each):
            return {field.name: getattr(each, field.name) for field in fields(each)}
        if isinstance(each, Enum):
            return each.value
        raise TypeError(f"{type(each).__name__} cannot be sent")

    text = json.dumps(value, default=plain).encode()
    return b"".join((_HEAD.pack(len(text), size), text, *parts))


async def received(reader: asyncio.StreamReader) -> Any:
    """Return the next value. Raises `MessageError`, and `asyncio.IncompleteReadError` where the other side is gone."""
    text, size = _HEAD.unpack(await reader.readexactly(_HEAD.size))
    if text > MAX_JSON or size > MAX_PAYLOAD:
        raise MessageError("it is too long")
    said = await reader.readexactly(text)
    behind = await reader.readexactly(size)

    def whole(each: dict[str, Any]) -> Any:
        if each.keys() != {_PLACE}:
            return each
        start, end = each[_PLACE]
        return behind[start:end]

    try:
        return json.loads(said, object_hook=whole)
    except (ValueError, TypeError) as problem:
        raise MessageError(str(problem)) from None
