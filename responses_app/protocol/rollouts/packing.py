"""Tokens and log probabilities as bytes: 7 bytes a sampled token, where log probabilities are 32-bit floats.

    tokens              b"\\x03" and 3 bytes each, or b"\\x04" and 4 bytes each where an id does not fit into 3
    log probabilities   b"\\x04" and 32-bit floats where these are exactly what the engine has sent, else b"\\x08" and
                        64-bit floats; empty where the engine has sent none

All is little-endian. A log probability that the engine did not tell of a token is NaN.
"""

import math
import sys
from array import array
from collections.abc import Iterable

from engine.formats.base import Tokens, as_tokens

_LITTLE = sys.byteorder == "little"


def pack_tokens(tokens: "Tokens[int]") -> bytes:
    """Return tokens as bytes."""
    data = _as_bytes(tokens)
    # The highest byte of every token is 0: three of four are kept.
    if data[3::4].count(0) == len(tokens):
        packed = bytearray(3 * len(tokens))
        for place in range(3):
            packed[place::3] = data[place::4]
        return b"\x03" + packed
    return b"\x04" + data


def unpack_tokens(packed: bytes) -> "Tokens[int]":
    """Read what `pack_tokens` has written."""
    content = packed[1:]
    if packed[:1] == b"\x03":
        wide = bytearray(len(content) // 3 * 4)
        for place in range(3):
            wide[place::4] = content[place::3]
        content = bytes(wide)
    tokens = as_tokens()
    tokens.frombytes(content)
    if not _LITTLE:
        tokens.byteswap()
    return tokens


def pack_logprobs(logprobs: "array[float] | None") -> bytes:
    """Return log probabilities as bytes, exactly as they are."""
    if logprobs is None:
        return b""
    short = array("f", logprobs)
    # Compared as bytes: so NaN is equal to itself.
    if _as_bytes(array("d", short)) == _as_bytes(logprobs):
        return b"\x04" + _as_bytes(short)
    return b"\x08" + _as_bytes(logprobs)


def unpack_logprobs(packed: bytes) -> "array[float] | None":
    """Read what `pack_logprobs` has written."""
    if not packed:
        return None
    read = array("f" if packed[:1] == b"\x04" else "d")
    read.frombytes(packed[1:])
    if not _LITTLE:
        read.byteswap()
    return array("d", read)


def as_logprobs(values: Iterable[float] = ()) -> "array[float]":
    """Return log probabilities as an array."""
    return array("d", values)


def numbers(values: "array[float]") -> list[float | None]:
    """Return numbers as JSON has them: nothing for NaN, and -9999 for minus infinity, as vLLM's servers say it."""
    if math.isfinite(sum(values)):  # nearly always, for sampled tokens
        return list(values)
    return [number(value) for value in values]


def number(value: float) -> float | None:
    """Return a number as JSON has it."""
    if math.isfinite(value):
        return value
    return None if math.isnan(value) else -9999.0


def _as_bytes(values: "array[int] | array[float]") -> bytes:
    if not _LITTLE:
        values = values[:]
        values.byteswap()
    return values.tobytes()
