"""`metadata` as OpenAI has it: up to 16 pairs of short strings that a client attaches to an object."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema
from pydantic_core import PydanticKnownError

from responses_app.protocol.errors import JsonObject, invalid_request

MAX_KEY, MAX_VALUE = 64, 512  # characters

MAX_PAIRS = 16


def _few(value: object) -> object:
    """Count before each of them is looked at."""
    if isinstance(value, dict) and len(value) > MAX_PAIRS:
        context = {"field_type": "Object", "max_length": MAX_PAIRS, "actual_length": len(value)}
        raise PydanticKnownError("too_long", context)
    return value


_SCHEMA: JsonObject = {
    "type": "object",
    "maxProperties": MAX_PAIRS,
    "propertyNames": {"maxLength": MAX_KEY},
    "additionalProperties": {"type": "string", "maxLength": MAX_VALUE},
}
Metadata = Annotated[dict[str, str], BeforeValidator(_few), WithJsonSchema(_SCHEMA)]


def check_metadata(metadata: Mapping[str, str] | None) -> None:
    """Refuse keys and values that are too long."""
    for key, value in (metadata or {}).items():
        if len(key) > MAX_KEY or len(value) > MAX_VALUE:
            raise invalid_request(
                f"Invalid value for 'metadata': the key {key[:MAX_KEY]!r} or its value is too long. Keys take at "
                f"most {MAX_KEY} characters, values {MAX_VALUE}.",
                param="metadata",
                code="invalid_value",
            )
