"""`text.format`: the shape of the answer; and `structured_outputs`, vLLM's own way to say it in that field's place."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from engine import orjson
from engine.contents.regexes import check_regex
from engine.errors import GrammarRefused
from engine.types import AnyObject, AnyText, Content, JsonSchema, Lark, Regex
from responses_app.protocol.errors import JsonObject, invalid_value
from responses_app.protocol.fields import ClientModel, Refused, missing, validate, wrong_type

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
    # Another name, since `schema` is a method of pydantic's models.
    json_schema: dict[str, object] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None  # echoed; the answer fits in any case

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
    kind = value.get("type")
    if kind is None:
        raise missing(f"{AT}.type")
    if not isinstance(kind, str):
        raise wrong_type(f"{AT}.type", "a string", kind)
    if kind not in FORMATS:
        raise invalid_value(
            f"{AT}.type", f"{kind[:80]!r}. Supported values are: {', '.join(repr(each) for each in FORMATS)}."
        )
    return validate(FORMATS[kind], value, at=AT)


AT_STRUCTURED = "structured_outputs"
MAX_CHOICES = 1000  # they become one regular expression
_KINDS = ("json", "regex", "choice", "grammar", "json_object")  # of which a request sets exactly one
_ONE = Refused("The engine here writes JSON in its own way; leave it out.")


class StructuredOutputs(ClientModel):
    """What an answer is held to: exactly one of the fields says it. `grammar` is one of Lark."""

    json_schema: dict[str, Any] | str | None = Field(default=None, alias="json")  # an object, or its text
    regex: str | None = Field(default=None, min_length=1)
    choice: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=MAX_CHOICES)] | None = (
        None
    )
    grammar: str | None = Field(default=None, min_length=1)
    json_object: bool | None = None

    refused: ClassVar = {
        **dict.fromkeys(("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern"), _ONE),
        "structural_tag": Refused("Declare tools, or send 'json'."),
    }
    own: ClassVar = (*_KINDS, *refused)


class HeldText:
    """An answer that is held to something else than a format of `text`. It is a format of its own to the model."""

    at = schema_at = AT_STRUCTURED  # where the request says it

    def __init__(self, content: Content) -> None:
        self.content = content


def held_text(outputs: StructuredOutputs) -> HeldText:
    """Return what an answer is held to. Raises `ApiError`."""
    # `json` is a method of pydantic's models, so its field has another name here.
    names = [name for name in ("json_schema", *_KINDS[1:]) if getattr(outputs, name) not in (None, False)]
    if len(names) != 1:
        raise invalid_value(AT_STRUCTURED, f"exactly one of {', '.join(map(repr, _KINDS))} says what the answer is.")
    return HeldText(_content(outputs))


def _content(outputs: StructuredOutputs) -> Content:
    if outputs.json_object:
        return AnyObject()
    if outputs.grammar is not None:
        return Lark(outputs.grammar)
    if outputs.json_schema is not None:
        return JsonSchema(_schema(outputs.json_schema))
    # A choice is a regular expression of texts that mean themselves.
    pattern = outputs.regex or "|".join(map(re.escape, outputs.choice or ()))
    try:
        check_regex(pattern)
    except GrammarRefused as refused:
        name = "regex" if outputs.regex else "choice"
        raise invalid_value(f"{AT_STRUCTURED}.{name}", f"{refused.reason.rstrip('.')}.") from refused
    return Regex(pattern)


def _schema(schema: dict[str, Any] | str) -> str:
    if isinstance(schema, str):
        try:
            read = orjson.loads(schema)
        except orjson.JSONDecodeError:
            read = None
        if not isinstance(read, dict):
            raise invalid_value(f"{AT_STRUCTURED}.json", "it should be a JSON schema: an object, or the text of one.")
        return schema
    return orjson.dumps(schema).decode()
