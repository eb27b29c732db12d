"""What stands behind the question mark, or in a header: the parameters that several endpoints take."""

from dataclasses import dataclass

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.events.dialects import DIALECT_HEADER, PRESETS, Switch
from responses_app.protocol.requests.create_fields import KNOWN_INCLUDES
from responses_app.protocol.requests.pages import DEFAULT_LIMIT, MAX_LIMIT


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of an endpoint, as the OpenAPI document shows it."""

    name: str
    about: str
    schema: JsonObject
    where: str = "query"
    required: bool = False


def text(**more: object) -> JsonObject:
    """Return the schema of a text."""
    return {"type": "string", **more}


def limit_of(what: str, *, maximum: int, default: int) -> Parameter:
    """Return the parameter that bounds a part of a list."""
    schema: JsonObject = {"type": "integer", "minimum": 1, "maximum": maximum, "default": default}
    return Parameter("limit", f"The maximum number of {what}.", schema)


_DIALECTS = "|".join((*PRESETS, *Switch))

LIMIT = limit_of("items", maximum=MAX_LIMIT, default=DEFAULT_LIMIT)
ORDER = Parameter("order", "Whether the newest or the oldest come first.", text(enum=["asc", "desc"], default="desc"))
AFTER = Parameter("after", "The id of the item after which the list begins.", text())
PAGED = (LIMIT, ORDER, AFTER)
INCLUDE = Parameter(
    "include",
    "Additional data to return; `include[]` is the same.",
    {"type": "array", "items": {"type": "string", "enum": sorted(KNOWN_INCLUDES)}},
)
DIALECT = Parameter(
    DIALECT_HEADER,
    f"How events are worded: {', '.join(PRESETS)}, or switches of these; several are separated by commas.",
    text(pattern=f"^({_DIALECTS})(,({_DIALECTS}))*$"),
    where="header",
)
