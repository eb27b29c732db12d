"""How large what a client sent is when it is written again, inside events and stores, and whether it can be written.

orjson reads JSON of 1024 levels, but writes 254 only. So what can be read cannot always be written.
"""

from collections.abc import Iterator, Mapping

import orjson

from responses_app.protocol.errors import ApiError, invalid_request
from responses_app.protocol.validation import MAX_NESTING, dotted

_Path = tuple[int | str, ...]


def json_size(fields: Mapping[str, object]) -> int:
    """Return the size of a request's fields as JSON, in bytes. Raises `ApiError` for what cannot be written."""
    try:
        return len(_written(fields))
    except orjson.JSONEncodeError:
        raise _unwritable(fields) from None


def _written(value: object) -> bytes:
    """Serialise as deep as it will stand inside events and stores, which put levels of their own around it."""
    return orjson.dumps([[[[[[[value]]]]]]])


def _can_be_written(value: object) -> bool:
    try:
        _written(value)
    except orjson.JSONEncodeError:
        return False
    return True


def _unwritable(fields: Mapping[str, object]) -> ApiError:
    """Say which field is nested too deeply: `tools[0].parameters`, a name, and not the whole way down."""
    path = next((path for path, level in _containers(fields) if level > MAX_NESTING), None)
    if path is None:  # orjson reads such numbers as floats, so they come only from where it did not read
        name = next(name for name, value in fields.items() if not _can_be_written(value))
        message = f"Invalid value for '{name}': a number has more than 64 bits. Send it as a string."
        return invalid_request(message, param=name, code="invalid_value")
    while isinstance(path[-1], int):
        path = path[:-1]
    shown = dotted(tuple(part if isinstance(part, int) else part[:80] for part in path))
    return invalid_request(
        f"Invalid value for '{shown}': it is nested too deeply. This server takes {MAX_NESTING} levels.",
        param=shown,
        code="invalid_value",
    )


def _containers(fields: Mapping[str, object]) -> Iterator[tuple[_Path, int]]:
    """Yield the objects and arrays in a request with their levels; paths go as far as an error shows them."""
    left: list[tuple[_Path, int, object]] = [((), 1, fields)]
    while left:
        path, level, value = left.pop()
        if isinstance(value, Mapping | list):
            yield path, level
            inside = value.items() if isinstance(value, Mapping) else enumerate(value)
            left += [((*path, key) if len(path) < 3 else path, level + 1, each) for key, each in inside]
