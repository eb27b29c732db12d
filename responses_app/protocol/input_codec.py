"""Inputs ⇄ bytes: what a log keeps of a run, about 4 bytes a token where each comes by itself.

A log is records, one behind the other, and so are two logs:

    1nnnnnnn  n × 3 bytes      n tokens (1 to 127) that came at once, and nothing else: nearly every record
    00000001  length  JSON     any other input; the length is 4 bytes, and the JSON is `[kind, …its fields]`

All numbers are little-endian. What a kind means never changes, since logs are read by later versions of this program.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import orjson

from engine.types import FinishReason, TokenLogprob
from responses_app.protocol.inputs import (
    Declared,
    Ended,
    Enqueued,
    Failed,
    Input,
    Mode,
    Prefilled,
    Sampled,
    Sealed,
    Started,
    Stopped,
    StopReason,
    ToolReturned,
    TurnBegan,
)

_SHORT = 0x80  # the bit of a record of tokens alone
_LONG = 0x01
_MAX_SHORT = 0x7F  # tokens in such a record
_TOKEN_BYTES = 3
_MAX_TOKEN = 1 << 8 * _TOKEN_BYTES


class BrokenLog(Exception):
    """Bytes that no version of this program has written."""


def encode(inputs: Iterable[Input]) -> bytes:
    """Write inputs."""
    return b"".join(map(encode_one, inputs))


def decode(data: bytes) -> Iterator[Input]:
    """Read what `encode` wrote. Raises `BrokenLog`."""
    position, end = 0, len(data)
    while position < end:
        head = data[position]
        position += 1
        if head & _SHORT:
            begin, size = position, (head & _MAX_SHORT) * _TOKEN_BYTES
        elif head == _LONG:
            begin, size = position + 4, 4 + int.from_bytes(data[position : position + 4], "little")
        else:
            raise BrokenLog(f"a record begins with {head}")
        position += size
        if position > end:
            raise BrokenLog("the last record is cut")
        content = data[begin:position]
        yield Sampled(_tokens(content)) if head & _SHORT else _decode_long(content)


def encode_one(given: Input) -> bytes:
    """Write one input."""
    if isinstance(given, Sampled) and _is_short(given):
        tokens = given.token_ids
        if len(tokens) == 1:  # nearly always: head and token are one number
            return (_SHORT | 1 | tokens[0] << 8).to_bytes(1 + _TOKEN_BYTES, "little")
        packed = b"".join([token.to_bytes(_TOKEN_BYTES, "little") for token in tokens])
        return bytes((_SHORT | len(tokens),)) + packed
    kind, write = _WRITERS[type(given)]
    content = orjson.dumps([kind, *write(given)])
    return bytes((_LONG,)) + len(content).to_bytes(4, "little") + content


def _is_short(chunk: Sampled) -> bool:
    if chunk.finish is not None or chunk.cached_tokens is not None or chunk.logprobs is not None:
        return False
    return 0 < len(chunk.token_ids) <= _MAX_SHORT and max(chunk.token_ids) < _MAX_TOKEN


def _tokens(data: bytes) -> list[int]:
    return [int.from_bytes(data[start : start + _TOKEN_BYTES], "little") for start in range(0, len(data), _TOKEN_BYTES)]


def _decode_long(content: bytes) -> Input:
    try:
        kind, *fields = orjson.loads(content)
        return _READERS[kind](*fields)
    except (ValueError, KeyError, TypeError) as error:
        raise BrokenLog("a record cannot be read") from error


def _write_sampled(chunk: Sampled) -> tuple[object, ...]:
    logprobs = chunk.logprobs
    return (
        list(chunk.token_ids),
        chunk.finish.value if chunk.finish else None,
        chunk.cached_tokens,
        None if logprobs is None else [[each.token_id, each.logprob, each.top] for each in logprobs],
    )


def _read_sampled(tokens: list[int], finish: str | None, cached: int | None, logprobs: list[Any] | None) -> Sampled:
    return Sampled(
        tokens,
        FinishReason(finish) if finish else None,
        cached,
        None
        if logprobs is None
        else [
            TokenLogprob(token, _logprob(own), tuple((each, _logprob(its)) for each, its in top))
            for token, own, top in logprobs
        ],
    )


def _logprob(written: float | None) -> float:
    """Read a log probability: JSON has no minus infinity, so that was written as null."""
    return -math.inf if written is None else written


_Writer = tuple[str, Callable[[Any], tuple[object, ...]]]
_WRITERS: Mapping[type[Any], _Writer] = {
    Enqueued: ("enqueued", lambda _: ()),
    Declared: ("declared", lambda given: (list(given.tools),)),
    Started: ("started", lambda given: (given.mode.value, given.budget)),
    TurnBegan: ("turn", lambda given: (given.prompt_tokens,)),
    Sampled: ("sampled", _write_sampled),
    Prefilled: ("prefilled", lambda _: ()),
    Sealed: ("sealed", lambda given: (given.text, given.budget)),
    ToolReturned: ("tool", lambda given: (given.text, given.failed)),
    Failed: ("failed", lambda given: (given.error,)),
    Stopped: ("stopped", lambda given: (given.reason.value,)),
    Ended: ("ended", lambda given: (given.at, given.error)),
}
_READERS: Mapping[str, Callable[..., Input]] = {
    "enqueued": Enqueued,
    "declared": Declared,
    "started": lambda mode, budget: Started(Mode(mode), budget),
    "turn": TurnBegan,
    "sampled": _read_sampled,
    "prefilled": Prefilled,
    "sealed": Sealed,
    "tool": ToolReturned,
    "failed": Failed,
    "stopped": lambda reason: Stopped(StopReason(reason)),
    "ended": Ended,
}
