"""What OpenAI's unmodified SDK asks for in types of Python comes back in them: answers, arguments, demanded calls."""

from enum import Enum
from typing import Any

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.clients.python_clients.trip import REPEAT, WISHED, Trip
from tests.kit.sdk import MODEL


class Mood(Enum):
    """How somebody feels."""

    GOOD = "good"
    BAD = "bad"


class Person(BaseModel):
    """Somebody."""

    name: str
    age: int
    mood: Mood
    friends: list["Person"]
    note: str | None


class Weather(BaseModel):
    """Tell the weather of a city."""

    city: str
    days: int


TOOL = openai.pydantic_function_tool(Weather)


def test_an_answer_is_parsed(client: OpenAI) -> None:
    response: Any = client.responses.parse(model=MODEL, input="Who is there?", text_format=Person)
    assert isinstance(response.output_parsed, Person)
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert response.text.format.type == "json_schema"
    assert response.text.format.strict is True
    again = client.responses.parse(model=MODEL, input="Well?", text_format=Person, previous_response_id=response.id)
    assert isinstance(again.output_parsed, Person)


def test_a_streamed_answer_is_parsed(client: OpenAI) -> None:
    with client.responses.stream(model=MODEL, input="Who is there?", text_format=Person) as stream:
        kinds = [event.type for event in stream]
        assert isinstance(stream.get_final_response().output_parsed, Person)
    assert kinds.count("response.output_text.delta") > 1


def test_arguments_are_parsed(client: OpenAI) -> None:
    response = client.responses.parse(model=MODEL, input="Well?", tools=[TOOL], tool_choice="required")  # type: ignore[list-item]
    (call,) = [item for item in response.output if item.type == "function_call"]
    assert isinstance(call.parsed_arguments, Weather)
    assert Weather.model_validate_json(call.arguments) == call.parsed_arguments


@pytest.mark.parametrize("name", ["Weather", "other"])
def test_a_named_function_is_called(client: OpenAI, name: str) -> None:
    other = {"type": "function", "name": "other", "parameters": {"type": "object", "properties": {}}}
    response = client.responses.create(
        model=MODEL,
        input="Well?",
        tools=[TOOL, other],  # type: ignore[list-item]
        tool_choice={"type": "function", "name": name},
    )
    assert [item.name for item in response.output if item.type == "function_call"] == [name]


def test_a_custom_tool_gets_what_its_grammar_derives(client: OpenAI) -> None:
    days = {"type": "grammar", "syntax": "regex", "definition": "(mon|tues)day"}
    with client.responses.stream(
        model=MODEL,
        input="Well?",
        tools=[{"type": "custom", "name": "plan", "format": days}],  # type: ignore[typeddict-item]
        tool_choice={"type": "custom", "name": "plan"},
    ) as stream:
        told = [event.delta for event in stream if event.type == "response.custom_tool_call_input.delta"]
        (call,) = [item for item in stream.get_final_response().output if item.type == "custom_tool_call"]
    assert call.input in ("monday", "tuesday")
    assert "".join(told) == call.input


def test_json_mode(client: OpenAI) -> None:
    response = client.responses.create(model=MODEL, input=REPEAT, text={"format": {"type": "json_object"}})
    assert Trip.model_validate_json(response.output_text) == Trip.model_validate_json(WISHED)
