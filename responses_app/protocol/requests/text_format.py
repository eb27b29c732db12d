"""`text.format`: the shape of the answer."""

from collections.abc import Mapping
from typing import ClassVar, Literal

import orjson
from pydantic import Field

from engine.grammar import AnyObject, AnyText, Content, JsonSchema
from responses_app.protocol.errors import JsonObject, invalid_request
from responses_app.protocol.fields import ClientModel
from responses_app.protocol.validation import missing, validate, wrong_type

AT = "text.format"


class _Format(ClientModel):
    """What all formats have in common: where the request says it."""

    at: ClassVar = AT
    schema_at: ClassVar = f"{AT}.schema"


class PlainText(_Format):
    """Any text."""

    type: Literal["text"] = "text"

    @property
    def content(self) -> Content:
        """What the answer may be."""
        return AnyText()

    def echoed(self) -> JsonObject:
        """Return it as OpenAI does."""
        return {"type": self.type}


class AnyJson(_Format):
    """Some JSON object."""

    type: Literal["json_object"]

    @property
    def content(self) -> Content:
        """What the answer may be."""
        return AnyObject()

    def echoed(self) -> JsonObject:
        """Return it as OpenAI does."""
        return {"type": self.type}


class FittingJson(_Format):
    """JSON that fits a schema: always, whether it is asked for strictly or not."""

    type: Literal["json_schema"]
    name: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")
    json_schema: dict[str, object] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None

    @property
    def content(self) -> Content:
        """What the answer may be."""
        return JsonSchema(orjson.dumps(self.json_schema).decode())

    def echoed(self) -> JsonObject:
        """Return it as OpenAI does."""
        return {
            "type": self.type,
            "name": self.name,
            "description": self.description,
            "schema": self.json_schema,
            "strict": bool(self.strict),
        }


TextFormat = PlainText | AnyJson | FittingJson
FORMATS: Mapping[str, type[TextFormat]] = {"text": PlainText, "json_object": AnyJson, "json_schema": FittingJson}


def parse_text_format(value: object) -> TextFormat:
    """Validate a request's `text.format`. Raises `ApiError`."""
    if value is None:
        return PlainText()
    if not isinstance(value, dict):
        raise wrong_type(AT, "an object", value)
    kind = value.get("type", "text")
    if kind is None:
        raise missing(f"{AT}.type")
    if not isinstance(kind, str):
        raise wrong_type(f"{AT}.type", "a string", kind)
    if kind not in FORMATS:
        raise invalid_request(
            f"Invalid value for '{AT}.type': {kind[:80]!r}. "
            f"Supported values are: {', '.join(repr(each) for each in FORMATS)}.",
            param=f"{AT}.type",
            code="invalid_value",
        )
    return validate(FORMATS[kind], value, at=AT)
