"""What a client sent is written again, inside events and stores: how large that is, and whether it can be done.

orjson reads 1024 levels and writes 254.
"""

from collections.abc import Mapping

import orjson

from responses_app.protocol.errors import invalid_request


def written_size(fields: Mapping[str, object]) -> int:
    """Return the size of a request's fields as JSON, in bytes. Raises `ApiError` for one that is nested too deeply."""
    try:
        return len(_written(fields))
    except orjson.JSONEncodeError:
        name = next(name for name, value in fields.items() if not _can_be_written([value]))
    raise invalid_request(
        f"Invalid value for '{name}': it is nested too deeply. This server takes 240 levels.",
        param=name,
        code="invalid_value",
    )


def _can_be_written(value: object) -> bool:
    try:
        _written(value)
    except orjson.JSONEncodeError:
        return False
    return True


def _written(value: object) -> bytes:
    """Serialise as deep as it will stand inside events and stores, which put levels of their own around it."""
    return orjson.dumps([[[[[[[value]]]]]]])
