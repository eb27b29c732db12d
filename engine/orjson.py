"""orjson's reader and writer, for numbers of any size: all JSON that comes from outside is read and written here.

orjson reads an integer of more than 64 bits as a float, refuses a number that is too large for a float, and writes no
integer of more than 64 bits. JSON has all of them: uint256 bounds in schemas, amounts in results. Here they leave as
they came: such integers are Python's, and a number that neither an integer nor a float holds is a `LongNumber`. A
fraction of at most 18 digits is a float, even if that rounds it, and `1e-400` is 0.

Ordinary JSON is read and written by orjson alone. A text that was read is searched for so many digits in a row, in half
a millisecond a megabyte; only where there are, it is read a second time.
"""

import json
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from math import isfinite
from typing import Any, Never

import orjson
from orjson import OPT_APPEND_NEWLINE, OPT_NON_STR_KEYS, OPT_SORT_KEYS, Fragment, JSONDecodeError, JSONEncodeError

__all__ = [
    "OPT_APPEND_NEWLINE",
    "OPT_NON_STR_KEYS",
    "OPT_SORT_KEYS",
    "Fragment",
    "JSONDecodeError",
    "JSONEncodeError",
    "LongNumber",
    "dumps",
    "loads",
    "loads_kept",
    "text_kept",
]

MAX_DIGITS = 4300  # of an integer that Python makes of a text; longer ones stay texts
_SHAPES = bytes(48 if 48 <= each <= 57 else 32 for each in range(256))  # digits become 0, and all else spaces
_LONG = b"0" * 19  # so many digits has the shortest integer of more than 64 bits
_EXACT = 16  # characters of a float that are always exact


class LongNumber(float):
    """A number that neither a float nor an integer of Python's holds, with the text that it came as."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> "LongNumber":
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __getnewargs__(self) -> tuple[str]:  # type: ignore[override]
        return (self.text,)


def loads(content: bytes | bytearray | memoryview | str) -> Any:
    """Parse a JSON text. Raises `JSONDecodeError`."""
    try:
        value = orjson.loads(content)
    except JSONDecodeError as error:
        if "infinity" not in error.msg:
            raise
        return _beyond_infinity(content, error)
    if len(content) < 19:
        return value
    text = content.encode() if isinstance(content, str) else bytes(content)  # bytes are not copied
    if _LONG not in text.translate(_SHAPES):
        return value
    try:
        return _exact(content)
    except RecursionError:  # it is nested too deeply to be written
        return value


def loads_kept(text: str | bytes) -> Any:
    """Parse a JSON text that may have lone surrogates, which stores keep. Raises `ValueError`."""
    try:
        return loads(text)
    except JSONDecodeError:
        return _exact(text)


def dumps(value: object, default: Callable[[Any], Any] | None = None, option: int | None = None) -> bytes:
    """Write a value as JSON without white space. Raises `JSONEncodeError`."""
    plain = _plain if default is None else lambda each: _plain(each) if type(each) is LongNumber else default(each)
    try:
        return orjson.dumps(value, plain, option)
    except JSONEncodeError as error:
        if "64-bit" not in str(error):
            raise
        try:
            return orjson.dumps(_with_fragments(value), plain, option)
        except RecursionError:
            raise error from None


def text_kept(value: object) -> str:
    """Write a value that may have lone surrogates, which are escaped. NaN and infinities become null.

    Raises `TypeError` or `ValueError` for what is not JSON.
    """
    try:
        return orjson.dumps(value, _plain).decode()
    except JSONEncodeError:  # it has long integers, or lone surrogates, or both
        pass
    try:
        return dumps(value).decode()
    except JSONEncodeError:
        pass
    try:
        return orjson.dumps(_with_fragments(value, surrogates=True), _plain).decode()
    except JSONEncodeError:  # a name has them, or it is nested more deeply than orjson writes
        return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _exact(content: bytes | bytearray | memoryview | str) -> Any:
    text = content if isinstance(content, str) else bytes(content)
    return json.loads(text, parse_int=_integer, parse_float=_float, parse_constant=_no_constant)


def _integer(text: str) -> int | LongNumber:
    return int(text) if len(text) <= MAX_DIGITS else LongNumber(text)


def _float(text: str) -> float:
    number = float(text)
    try:
        is_exact = len(text) <= _EXACT or Decimal(text) == Decimal(repr(number))
    except InvalidOperation:
        is_exact = False
    return number if is_exact and isfinite(number) else LongNumber(text)


def _no_constant(name: str) -> Never:
    raise JSONDecodeError(f"{name} is no JSON", "", 0)


def _beyond_infinity(content: bytes | bytearray | memoryview | str, error: JSONDecodeError) -> Any:
    """Return the value of JSON with a number that orjson takes for infinity. Raises orjson's error else."""
    try:
        value = _exact(content)
        dumps(value)  # orjson reads no halves of characters, and Python does
    except (ValueError, TypeError, RecursionError):
        raise error from None
    return value


def _plain(value: object) -> Fragment:
    if type(value) is LongNumber:
        return Fragment(value.text)
    raise TypeError(f"Type is not JSON serializable: {type(value).__name__}")


def _with_fragments(value: Any, *, surrogates: bool = False) -> Any:
    """Return a value whose long integers are JSON that orjson takes as it is, and texts that have `surrogates`."""
    if isinstance(value, Mapping):
        return {name: _with_fragments(each, surrogates=surrogates) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_with_fragments(each, surrogates=surrogates) for each in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return Fragment(str(value))
    return Fragment(json.dumps(value)) if surrogates and isinstance(value, str) and not value.isascii() else value
