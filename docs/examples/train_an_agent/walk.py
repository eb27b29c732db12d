"""The agent, which is to walk to the right: OpenAI's Agents SDK, as it is."""

from contextlib import suppress
from typing import Literal, get_args

from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner, ToolsToFinalOutputResult, function_tool
from agents.exceptions import AgentsException
from agents.run import RunConfig
from openai import AsyncOpenAI

Direction = Literal["left", "right", "up", "down"]
DIRECTIONS = get_args(Direction)
STEPS = 3
TASK = "Walk."


async def walk(base_url: str) -> float:
    """Let the agent take its steps; return the reward: how far it has come to the right, from -1 to 1."""
    path: list[Direction] = []

    @function_tool(strict_mode=False)  # no grammar holds the model to it: all log probabilities are the model's own
    def step(direction: Direction) -> str:
        """Take a step."""
        path.append(direction)
        return str(len(path))

    async with AsyncOpenAI(base_url=base_url, api_key="none") as client:
        agent = Agent(
            name="walker",
            tools=[step],
            tool_use_behavior=lambda context, results: ToolsToFinalOutputResult(len(path) == STEPS, path),
            model=OpenAIResponsesModel("tiny", client),
            model_settings=ModelSettings(max_tokens=64),
        )
        with suppress(AgentsException):  # a turn that is not a step ends the walk
            await Runner.run(agent, TASK, max_turns=STEPS, run_config=RunConfig(tracing_disabled=True))
    return (path.count("right") - path.count("left")) / STEPS
