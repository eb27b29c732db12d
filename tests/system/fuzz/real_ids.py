"""Hooks of schemathesis: most of the ids in its requests are of things that exist, else nearly all answers were 404.

It reads them from FUZZ_IDS: JSON, lists of ids by the names of the parameters. What a chain of requests has made stays.
"""

import json
import os
import zlib
from typing import Any

import schemathesis

IDS: dict[str, list[str]] = json.loads(os.environ["FUZZ_IDS"])
BODIES = {"previous_response_id": "response_id", "conversation": "conversation_id", "model": "model"}
MADE = ("resp_", "conv_", "msg_")


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Put an id that exists into a path, if nothing is deleted by it, and into a body."""
    if case.method != "DELETE":
        for name, value in case.path_parameters.items():
            case.path_parameters[name] = chosen(name, value)
    if isinstance(case.body, dict):
        for field, name in BODIES.items():
            if isinstance(case.body.get(field), str):
                case.body[field] = chosen(name, case.body[field])
        if case.operation.definition.raw["operationId"] in ("createResponse", "getInputTokenCounts"):
            case.body.setdefault("input", "Hello")


def chosen(name: str, value: Any) -> Any:
    """Return one of the ids that exist in three cases of four; which one, the value itself decides."""
    ids = IDS.get(name, [])
    number = zlib.crc32(str(value).encode(errors="replace"))
    if not ids or number % 4 == 0 or str(value).startswith(MADE):
        return value
    return ids[number % len(ids)]
