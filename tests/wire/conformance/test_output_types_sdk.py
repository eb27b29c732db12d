"""The Agents SDK's `output_type`: beside tools, streamed, and behind a call that had to be made."""

import pytest
from openai import AsyncOpenAI

from tests.clients.python_clients.trip import ASKED, Trip
from tests.kit.sdk import MODEL

MODELS = {"http": "OpenAIResponsesModel", "websocket": "OpenAIResponsesWSModel"}


@pytest.mark.parametrize("transport", sorted(MODELS))
async def test_the_agents_sdks_output_type(async_client: AsyncOpenAI, transport: str) -> None:
    import agents  # takes seconds

    cities: list[str] = []
    untraced = agents.RunConfig(tracing_disabled=True)  # traces would go to OpenAI

    @agents.function_tool
    def find_hotel(city: str) -> str:
        """Find a hotel in a city."""
        cities.append(city)
        return f"a hotel in {city}"

    model = getattr(agents, MODELS[transport])(model=MODEL, openai_client=async_client)
    agent = agents.Agent(name="Travel desk", model=model, tools=[find_hotel], output_type=Trip)
    try:
        result = await agents.Runner.run(agent, "call find_hotel for Paris", run_config=untraced)
        assert (type(result.final_output), cities) == (Trip, ["Paris"])
        streamed = agents.Runner.run_streamed(agent, ASKED, run_config=untraced)
        async for _ in streamed.stream_events():
            pass
        assert isinstance(streamed.final_output, Trip)
        forced = agent.clone(model_settings=agents.ModelSettings(tool_choice="required"))  # of the first request only
        result = await agents.Runner.run(forced, "Where to sleep?", run_config=untraced)
        assert (type(result.final_output), len(cities)) == (Trip, 2)
    finally:
        if isinstance(model, agents.OpenAIResponsesWSModel):
            await model.close()
