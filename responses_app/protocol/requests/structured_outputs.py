"""`structured_outputs`: vLLM's own way to say what an answer is, in the place of `text.format`."""

import re
from typing import Annotated, Any, ClassVar

import orjson
from pydantic import Field

from engine.contents.patterns import check_regex
from engine.errors import GrammarRefused
from engine.grammar import AnyObject, Content, JsonSchema, Lark, Regex
from responses_app.protocol.errors import ApiError, invalid_request
from responses_app.protocol.fields import ClientModel, Refused

AT = "structured_outputs"
MAX_CHOICES = 1000
_KINDS = ("json", "regex", "choice", "grammar", "json_object")
_ONE = Refused("The engine here writes JSON in its own way; leave it out.")


class StructuredOutputs(ClientModel):
    """What an answer is held to: exactly one of the fields says it. `grammar` is one of Lark."""

    json_schema: dict[str, Any] | str | None = Field(default=None, alias="json")
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

    at = schema_at = AT  # where the request says it

    def __init__(self, content: Content) -> None:
        self.content = content


def held_text(wanted: StructuredOutputs) -> HeldText:
    """Return what an answer is held to. Raises `ApiError`."""
    given = [name for name in ("json_schema", *_KINDS[1:]) if getattr(wanted, name)]
    if len(given) != 1:
        raise _invalid(AT, f"exactly one of {', '.join(map(repr, _KINDS))} says what the answer is")
    return HeldText(_content(wanted))


def _content(wanted: StructuredOutputs) -> Content:
    if wanted.json_object:
        return AnyObject()
    if wanted.grammar is not None:
        return Lark(wanted.grammar)
    if wanted.json_schema is not None:
        return JsonSchema(_schema(wanted.json_schema))
    pattern = wanted.regex or "|".join(map(re.escape, wanted.choice or ()))
    try:
        check_regex(pattern)
    except GrammarRefused as refused:
        name = "regex" if wanted.regex else "choice"
        raise _invalid(f"{AT}.{name}", refused.reason.rstrip(".")) from refused
    return Regex(pattern)


def _schema(given: dict[str, Any] | str) -> str:
    if isinstance(given, str):
        try:
            read = orjson.loads(given)
        except orjson.JSONDecodeError:
            read = None
        if not isinstance(read, dict):
            raise _invalid(f"{AT}.json", "it should be a JSON schema: an object, or the text of one")
        return given
    return orjson.dumps(given).decode()


def _invalid(param: str, why: str) -> ApiError:
    return invalid_request(f"Invalid value for '{param}': {why}.", param=param, code="invalid_value")
