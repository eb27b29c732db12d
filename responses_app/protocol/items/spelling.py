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
from decimal import Decimal
from typing import Any

import orjson

MAX_CANONICAL = 256 * 1024  # characters of arguments; longer ones are known only as they were spelled
_MAX_ZEROS = 400  # digits behind the last one that is not zero, in a number that is written out


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
    except (ValueError, ArithmeticError, RecursionError, orjson.JSONEncodeError):
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
    """Return a whole number, whose digits are all kept."""
    return 0 if text == "-0" else int(text) if len(text) < 19 else orjson.Fragment(text)


def _number(text: str) -> int | float | orjson.Fragment:
    """Return a number that was written with a point or an exponent. Raises `ArithmeticError`."""
    near = float(text)
    if repr(near) == text and not near.is_integer():  # nearly always: the slow way is for all others
        return near
    value = Decimal(text)
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), "JSON has no infinity"
    written = "".join(map(str, digits)).lstrip("0")
    short = written.rstrip("0")
    if not short:
        return 0
    exponent += len(written) - len(short)
    minus = "-" if sign else ""
    if 0 <= exponent <= _MAX_ZEROS:
        return _whole(f"{minus}{short}{'0' * exponent}")
    # One that a float is written as is written so; any other has too many digits for one.
    return near if Decimal(repr(near)) == value else orjson.Fragment(f"{minus}{short}e{exponent}")


def _constant(text: str) -> object:
    raise ValueError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_whole, parse_float=_number, parse_constant=_constant)
