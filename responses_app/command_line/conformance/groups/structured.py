"""Answers that have to fit a schema."""

import json

from responses_app.command_line.conformance.asking import sources
from responses_app.command_line.conformance.asking.checks import Group
from responses_app.command_line.conformance.asking.facts import (
    ASK_SURE,
    ASK_WEATHER,
    HELLO,
    SURE_SCHEMA,
    WEATHER,
    misfit,
)
from responses_app.command_line.conformance.asking.shapes import Json, finished, text_of
from responses_app.command_line.conformance.asking.talk import Talk
from responses_app.command_line.conformance.asking.verdicts import expect

GROUP = Group("structured", "Responses: structured output")
SURE: Json = {"format": {"type": "json_schema", "name": "sure", "schema": SURE_SCHEMA, "strict": True}}
ASK_NESTED = "List one thing, in JSON."
NESTED: Json = {
    "type": "object",
    "properties": {
        "items": {"type": "array", "items": {"$ref": "#/$defs/item"}, "minItems": 1, "maxItems": 3},
        "kind": {"anyOf": [{"type": "null"}, {"type": "string", "enum": ["a", "b"]}]},
    },
    "required": ["items", "kind"],
    "additionalProperties": False,
    "$defs": {
        "item": {
            "type": "object",
            "properties": {"size": {"type": "integer", "enum": [1, 2]}},
            "required": ["size"],
            "additionalProperties": False,
        }
    },
}


def _fits(text: str, schema: Json) -> None:
    problem = misfit(text, schema)
    expect(not problem, problem)


@GROUP.check("taken", sources.STRUCTURED)
async def _taken(talk: Talk) -> None:
    """A request with `text.format` of type `json_schema` is answered."""
    await talk.create(input=ASK_SURE, text=SURE)


@GROUP.check("schema", sources.STRUCTURED)
async def _schema(talk: Talk) -> None:
    """With `text.format` of type `json_schema` the answer is JSON that fits the schema."""
    _fits(text_of(finished(await talk.create(input=ASK_SURE, text=SURE))), SURE_SCHEMA)


@GROUP.check("in_stream", sources.STRUCTURED)
async def _in_stream(talk: Talk) -> None:
    """The same in a stream."""
    events = await talk.events(input=ASK_SURE, text=SURE)
    finished(events[-1]["response"])
    _fits("".join(event["delta"] for event in events if event["type"] == "response.output_text.delta"), SURE_SCHEMA)


@GROUP.check("nested", sources.STRUCTURED)
async def _nested(talk: Talk) -> None:
    """Schemas may have arrays, `$defs`, `anyOf`, `enum` and null."""
    shape = {"format": {"type": "json_schema", "name": "nested", "schema": NESTED, "strict": True}}
    _fits(text_of(finished(await talk.create(input=ASK_NESTED, text=shape))), NESTED)


@GROUP.check("object", sources.STRUCTURED)
async def _object(talk: Talk) -> None:
    """With `json_object` the answer is a JSON object."""
    response = finished(await talk.create(input=ASK_SURE, text={"format": {"type": "json_object"}}))
    said = text_of(response)
    expect(isinstance(json.loads(said), dict), f"the answer is {said[:200]}")


@GROUP.check("echo", sources.RESPONSE)
async def _echo(talk: Talk) -> None:
    """A response repeats the format with its name and its schema."""
    told = (await talk.create(input=ASK_SURE, text=SURE))["text"]["format"]
    given = {name: told.get(name) for name in SURE["format"]}
    expect(given == SURE["format"], f"the format is {told}")


@GROUP.check("with_tools", sources.STRUCTURED)
async def _with_tools(talk: Talk) -> None:
    """A schema holds also where tools are declared."""
    asked = {"text": SURE, "tools": [WEATHER], "tool_choice": "none"}
    _fits(text_of(finished(await talk.create(input=f"{ASK_WEATHER} {ASK_SURE}", **asked))), SURE_SCHEMA)


@GROUP.check("bad_schema", sources.STRUCTURED)
async def _bad_schema(talk: Talk) -> None:
    """A schema that is none is a 400."""
    shape = {"format": {"type": "json_schema", "name": "bad", "schema": {"type": "nonsense"}, "strict": True}}
    error = await talk.refused(talk.body({"input": HELLO, "text": shape}))
    expect(error["message"], "the error has no message")


@GROUP.check("no_name", sources.STRUCTURED)
async def _no_name(talk: Talk) -> None:
    """A schema without a name is a 400."""
    shape = {"format": {"type": "json_schema", "schema": SURE_SCHEMA}}
    error = await talk.refused(talk.body({"input": HELLO, "text": shape}))
    expect(error["message"], "the error has no message")
