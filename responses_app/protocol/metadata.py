"""`metadata` as OpenAI has it: up to 16 pairs of short strings that a client attaches to an object."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator
from pydantic_core import PydanticKnownError

from responses_app.protocol.errors import invalid_request

LONGEST_KEY, LONGEST_VALUE = 64, 512  # characters

MOST_PAIRS = 16


def _few(value: object) -> object:
    """Count before each of them is looked at."""
    if isinstance(value, dict) and len(value) > MOST_PAIRS:
        context = {"field_type": "Object", "max_length": MOST_PAIRS, "actual_length": len(value)}
        raise PydanticKnownError("too_long", context)
    return value


Metadata = Annotated[dict[str, str], BeforeValidator(_few)]


def check_metadata(metadata: Mapping[str, str] | None) -> None:
    """Refuse keys and values that are too long."""
    for key, value in (metadata or {}).items():
        if len(key) > LONGEST_KEY or len(value) > LONGEST_VALUE:
            raise invalid_request(
                f"Invalid value for 'metadata': the key {key[:LONGEST_KEY]!r} or its value is too long. Keys take at "
                f"most {LONGEST_KEY} characters, values {LONGEST_VALUE}.",
                param="metadata",
                code="invalid_value",
            )
