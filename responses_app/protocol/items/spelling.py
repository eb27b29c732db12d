"""One spelling for the arguments of calls: the same JSON is the same, however a client writes it.

Clients read the arguments of a call and write them again: JavaScript's `JSON.stringify` without white space, with other
escapes, perhaps with the keys in another order. The model has to read what it wrote. Two texts are the same where their
values are, and where that is not certain they are not:

    1, 1.0, 1e0                     the same number, as mathematics has it: JavaScript writes all of them as 1
    9007199254740993 and …992       two numbers, though JavaScript reads both as the second
    0.1 and 0.1000000000000000055   two numbers, likewise
    {"a": 1, "a": 2}                readers disagree about what it says: it is only what it is, letter by letter
"""

import json
from collections.abc import Callable
from typing import Any

from engine import orjson

MAX_CANONICAL = 256 * 1024  # characters of arguments; longer ones are known only as they were spelled
_LONG = 19  # characters of a whole number that may be too large for orjson


def canonical(arguments: str) -> str:
    """Return JSON in one spelling; what is not JSON, has a key twice, or is long, as it is.

    Arguments that are null or false are left out: clients fill in the defaults of their tools.
    """
    return _spelled(arguments, _telling)


def respelled(arguments: str) -> set[str]:
    """Return JSON as it comes back from clients that read it and write it again, without white space.

    They keep the order of keys or sort them. What is not JSON, has a key twice, or is long, stays as it is.
    """
    return {_spelled(arguments, option=0), _spelled(arguments)}


def is_same_json(one: str, other: str) -> bool:
    """Whether two texts are the same JSON, or the same letter by letter."""
    return one == other or _spelled(one) == _spelled(other)


def _spelled(
    arguments: str, change: Callable[[object], object] = lambda read: read, *, option: int = orjson.OPT_SORT_KEYS
) -> str:
    if len(arguments) > MAX_CANONICAL:
        return arguments
    try:
        return orjson.dumps(change(_DECODER.decode(arguments)), option=option).decode()
    except (ValueError, RecursionError, orjson.JSONEncodeError):
        return arguments


def _telling(arguments: object) -> object:
    if not isinstance(arguments, dict):
        return arguments
    return {name: value for name, value in arguments.items() if value is not None and value is not False}


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object. Raises `ValueError` where a key comes twice."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key comes twice")
    return made


def _whole(text: str) -> int | orjson.Fragment:
    """Return a whole number, whose digits are all kept; zeros at the end of a long one become its exponent."""
    if text == "-0":
        return 0
    if len(text) < _LONG:
        return int(text)
    digits = text.rstrip("0")
    return _with_zeros(digits, len(text) - len(digits))


def _number(text: str) -> int | float | orjson.Fragment:
    """Return a number that was written with a point or an exponent. Raises `ValueError`."""
    near = float(text)
    if repr(near) == text and not near.is_integer():  # nearly always: the slow way is for all others
        return near
    minus, digits, power = _parts(text)
    if not digits:
        return 0
    if power >= 0:
        is_short = len(minus) + len(digits) + power < _LONG
        return int(minus + digits + "0" * power) if is_short else _with_zeros(minus + digits, power)
    # One that a float is written as is written so; any other has too many digits for one.
    return near if _parts(repr(near)) == (minus, digits, power) else orjson.Fragment(f"{minus}{digits}e{power}")


def _with_zeros(digits: str, zeros: int) -> orjson.Fragment:
    return orjson.Fragment(f"{digits}e{zeros}" if zeros else digits)


def _parts(text: str) -> tuple[str, str, int]:
    """Return the sign of a number, its digits from the first to the last that is not zero, and their power of ten.

    Raises `ValueError` for an exponent of thousands of digits.
    """
    mantissa, _, exponent = text.lower().partition("e")
    whole, _, fraction = mantissa.removeprefix("-").partition(".")
    written = (whole + fraction).lstrip("0")
    digits = written.rstrip("0")
    power = int(exponent or "0") - len(fraction) + len(written) - len(digits)
    return "-" if text.startswith("-") else "", digits, power


def _constant(text: str) -> object:
    raise ValueError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_whole, parse_float=_number, parse_constant=_constant)
