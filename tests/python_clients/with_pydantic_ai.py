"""pydantic-ai asks for a model in each way that it has: python with_pydantic_ai.py BASE_URL API, responses or chat.

Prints a line of JSON for each: what came, and how many requests that took. One is right; more are retries.
"""

import asyncio
import json
import sys
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.messages import ThinkingPart
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from trip import ASKED, REPEAT, Stop, Trip

WAYS: dict[str, tuple[Any, str]] = {
    "tool": (Trip, ASKED),
    "loose tool": (ToolOutput(Stop, strict=False), ASKED),
    "native": (NativeOutput(Trip), ASKED),
    "prompted": (PromptedOutput(Trip), REPEAT),
}


def told(way: str, output: BaseModel, requests: int) -> str:
    """Return what a test reads."""
    return json.dumps({"way": way, "output": output.model_dump(), "requests": requests})


async def main(base_url: str, api: str) -> None:
    """Ask in each way, whole and as a stream, and with a tool of the agent's own beside it."""
    kind = {"responses": OpenAIResponsesModel, "chat": OpenAIChatModel}[api]
    model = kind("demo", provider=OpenAIProvider(base_url=base_url, api_key="none"))
    for way, (output_type, prompt) in WAYS.items():
        agent = Agent(model, output_type=output_type, retries=0)
        whole = await agent.run(prompt)
        print(told(way, whole.output, whole.usage.requests))
        async with agent.run_stream(prompt) as stream:
            print(told(f"{way}, streamed", await stream.get_output(), stream.usage.requests))

    agent = Agent(model, output_type=Trip, retries=0)

    @agent.tool_plain
    def find_hotel(city: str) -> str:
        """Find a hotel in a city."""
        return f"a hotel in {city}"

    helped = await agent.run("call find_hotel for Paris")
    calls = [
        part.tool_name for message in helped.all_messages() for part in message.parts if hasattr(part, "tool_name")
    ]
    thoughts = [
        part.content for message in helped.all_messages() for part in message.parts if isinstance(part, ThinkingPart)
    ]
    helped_by = {"calls": calls, "thoughts": thoughts}
    print(json.dumps({"way": "beside a tool", "output": helped.output.model_dump(), **helped_by}))


asyncio.run(main(*sys.argv[1:]))
