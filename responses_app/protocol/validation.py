"""pydantic's findings in OpenAI's words: which field, what it got, what it takes."""

import reprlib
from collections.abc import Mapping
from typing import Annotated, TypeVar

from pydantic import AfterValidator, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from responses_app.protocol.errors import ApiError, invalid_request
from responses_app.protocol.fields import ClientModel, check_fields


def _without_nul(value: str) -> str:
    """PostgreSQL's text does not take it."""
    if "\0" in value:
        raise PydanticCustomError("nul", "It must not have NUL characters.")
    return value


Text = Annotated[str, AfterValidator(_without_nul)]

Model = TypeVar("Model", bound=ClientModel)

_MAX_DIGITS = 18  # of a number in a query or a form
_MAX_SHOWN_NAME = 80  # characters of a field's name in an error
MAX_NESTING = 240  # levels of objects and arrays in a request: what is read, rendered and written again, all of it

_EXPECTED = {
    "string_type": "a string",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "a boolean",
    "bool_parsing": "a boolean",
    "list_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "text_or_parts": "a string or an array of content parts",
}
_JSON_NAMES: dict[type, str] = {
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    list: "an array",
    dict: "an object",
    type(None): "null",
}


def json_name(value: object) -> str:
    """Name the JSON type of a value, with its article."""
    return _JSON_NAMES.get(type(value), "another type")


def wrong_type(param: str, expected: str, value: object) -> ApiError:
    """Say that `param` has a value of the wrong type."""
    return invalid_request(
        f"Invalid type for '{param}': expected {expected}, but got {json_name(value)} instead.",
        param=param,
        code="invalid_type",
    )


def missing(param: str) -> ApiError:
    """Say that a field has to be there."""
    return invalid_request(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")


def whole_number(text: str, minimum: int, maximum: int) -> int | None:
    """Return the number that a text says in ASCII digits; None for any other text, and out of these bounds."""
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        return None
    return int(text) if minimum <= int(text) <= maximum else None


def validate(model: type[Model], data: Mapping[str, object], *, at: str = "") -> Model:
    """Validate `data`, which stands at the path `at` of the request; raise `ApiError` for the first finding.

    The names of its fields come first, for what a client has sent and this server does not know.
    """
    check_fields(model, data, at=at)
    try:
        return model.model_validate(data)
    except ValidationError as error:
        details = min(error.errors(include_url=False), key=lambda found: len(found["loc"]))
        raise _as_api_error(details, at) from None


def dotted(location: tuple[int | str, ...], at: str = "") -> str:
    """Write a location as OpenAI does: `input[2].content[0].text`.

    pydantic puts a union's tag behind the index (`content.0.input_text.text`); it is not a part of the path. A tag is
    never the last part. Of a name that a client has made up, no more than its beginning is written.
    """
    path = at
    for before, part, after in zip((None, *location), location, (*location[1:], None), strict=False):
        if isinstance(part, int):
            path += f"[{part}]"
        elif not isinstance(before, int) or after is None:
            name = part[:_MAX_SHOWN_NAME]
            path += f".{name}" if path else name
    return path


def _as_api_error(details: ErrorDetails, at: str) -> ApiError:
    param = dotted(details["loc"], at)
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    if kind in _EXPECTED:
        return wrong_type(param, _EXPECTED[kind], value)
    if kind in ("missing", "union_tag_not_found"):
        return missing(param if kind == "missing" else f"{param}.type")
    if kind == "union_tag_invalid":
        return invalid_request(
            f"Invalid value for '{param}.type': {_shown(context['tag'])}. "
            f"Supported values are: {context['expected_tags']}.",
            param=f"{param}.type",
            code="invalid_value",
        )
    if kind == "literal_error":
        return invalid_request(
            f"Invalid value for '{param}': {_shown(value)}. Supported values are: {context['expected']}.",
            param=param,
            code="invalid_value",
        )
    return invalid_request(f"Invalid value for '{param}': {_reason(details)}.", param=param, code="invalid_value")


def _reason(details: ErrorDetails) -> str:
    message = details["msg"].replace("Input should", "it should", 1)
    return message[:1].lower() + message[1:].rstrip(".")


def _shown(value: object) -> str:
    text = reprlib.repr(value) if isinstance(value, dict | list) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
