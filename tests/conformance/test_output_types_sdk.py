"""OpenAI's SDKs for Python ask for models: `responses.parse`, its stream, and the Agents SDK's `output_type`."""

from typing import Any

import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIResponsesModel,
    OpenAIResponsesWSModel,
    RunConfig,
    Runner,
    function_tool,
)
from openai import AsyncOpenAI, OpenAI, pydantic_function_tool
from pydantic import BaseModel

from tests.conformance.sdk import MODEL
from tests.python_clients.trip import ASKED, REPEAT, WISHED, Trip

UNTRACED = RunConfig(tracing_disabled=True)  # traces would go to OpenAI
MODELS = {"http": OpenAIResponsesModel, "websocket": OpenAIResponsesWSModel}


class FindHotel(BaseModel):
    """Find a hotel."""

    city: str
    stars: int


def find_hotel_tool() -> Any:
    """Return the Responses API's form of a tool that `pydantic_function_tool` makes for Chat Completions."""
    return {"type": "function", **pydantic_function_tool(FindHotel, name="find_hotel")["function"]}


def test_responses_parse(client: OpenAI) -> None:
    response = client.responses.parse(model=MODEL, input=ASKED, text_format=Trip)
    assert isinstance(response.output_parsed, Trip)
    assert [item.type for item in response.output] == ["reasoning", "message"]
    again = client.responses.parse(model=MODEL, input="And back.", text_format=Trip, previous_response_id=response.id)
    assert isinstance(again.output_parsed, Trip)


def test_a_stream_is_parsed(client: OpenAI) -> None:
    with client.responses.stream(model=MODEL, input=ASKED, text_format=Trip) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert isinstance(final.output_parsed, Trip)
    assert kinds.count("response.output_text.delta") > 1


def test_some_json_object(client: OpenAI) -> None:
    text: Any = {"format": {"type": "json_object"}}
    response = client.responses.create(model=MODEL, input=REPEAT, text=text)
    assert Trip.model_validate_json(response.output_text) == Trip.model_validate_json(WISHED)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "find_hotel"}])
def test_a_call_that_has_to_be_made(client: OpenAI, choice: Any) -> None:
    response = client.responses.parse(model=MODEL, input="Hello", tools=[find_hotel_tool()], tool_choice=choice)
    (call,) = [item for item in response.output if item.type == "function_call"]
    assert call.name == "find_hotel"
    assert FindHotel.model_validate_json(call.arguments).model_dump() == call.parsed_arguments


@pytest.mark.parametrize("transport", sorted(MODELS))
async def test_the_agents_sdks_output_type(async_client: AsyncOpenAI, transport: str) -> None:
    cities: list[str] = []

    @function_tool
    def find_hotel(city: str) -> str:
        """Find a hotel in a city."""
        cities.append(city)
        return f"a hotel in {city}"

    model = MODELS[transport](model=MODEL, openai_client=async_client)
    agent = Agent(name="Travel desk", model=model, tools=[find_hotel], output_type=Trip)
    try:
        result = await Runner.run(agent, "call find_hotel for Paris", run_config=UNTRACED)
        assert (type(result.final_output), cities) == (Trip, ["Paris"])
        streamed = Runner.run_streamed(agent, ASKED, run_config=UNTRACED)
        async for _ in streamed.stream_events():
            pass
        assert isinstance(streamed.final_output, Trip)
        forced = agent.clone(model_settings=ModelSettings(tool_choice="required"))  # of the first request only
        result = await Runner.run(forced, "Where to sleep?", run_config=UNTRACED)
        assert (type(result.final_output), len(cities)) == (Trip, 2)
    finally:
        if isinstance(model, OpenAIResponsesWSModel):
            await model.close()
