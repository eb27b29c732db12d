"""pydantic-ai over the Responses API and over chats: python with_pydantic_ai.py BASE_URL.

It asks for a model in each way that it has, for texts, calls and embeddings. Prints a line of JSON for each: what came,
and how many requests a model took. One is right; more are retries.
"""

import asyncio
import json
import sys
from typing import Any

from pydantic_ai import Agent, Embedder, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel
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


KINDS = {"responses": OpenAIResponsesModel, "chat": OpenAIChatModel}


def say(api: str, way: str, **told: object) -> None:
    """Print what a test reads."""
    print(json.dumps({"api": api, "way": way, **told}))


async def ask_for_models(model: Any, api: str) -> None:
    """Ask in each way, whole and as a stream."""
    for way, (output_type, prompt) in WAYS.items():
        agent = Agent(model, output_type=output_type, retries=0)
        whole = await agent.run(prompt)
        say(api, way, output=whole.output.model_dump(), requests=whole.usage.requests)
        async with agent.run_stream(prompt) as stream:
            output = await stream.get_output()
        say(api, f"{way}, streamed", output=output.model_dump(), requests=stream.usage.requests)


def helped(model: Any, output_type: Any) -> Agent[None, Any]:
    """Return an agent with a tool of its own."""
    agent = Agent(model, output_type=output_type, retries=0)

    @agent.tool_plain
    def find_hotel(city: str) -> str:
        """Find a hotel in a city."""
        return f"a hotel in {city}"

    return agent


async def talk(model: Any, api: str) -> None:
    """Let it count, and call a tool: for a text, whole and as a stream, and for a model."""
    prompt = "call find_hotel for Paris"
    talker, helper = Agent(model, retries=0), helped(model, str)
    texts = [(await agent.run(asked)).output for agent, asked in ((talker, "count to 5"), (helper, prompt))]
    say(api, "loop", how="whole", texts=texts)
    texts = []
    for agent, asked in ((talker, "count to 5"), (helper, prompt)):
        async with agent.run_stream(asked) as stream:
            texts.append("".join([text async for text in stream.stream_text(delta=True)]))
    say(api, "loop", how="streamed", texts=texts)

    done = await helped(model, Trip).run(prompt)
    parts = [part for message in done.all_messages() for part in message.parts]
    calls = [part.tool_name for part in parts if hasattr(part, "tool_name")]
    thoughts = [part.content for part in parts if isinstance(part, ThinkingPart)]
    say(api, "beside a tool", output=done.output.model_dump(), calls=calls, thoughts=thoughts)


async def main(base_url: str) -> None:
    """Ask over both APIs, and for an embedding."""
    provider = OpenAIProvider(base_url=base_url, api_key="none")
    for api, kind in KINDS.items():
        model = kind("demo", provider=provider)
        await ask_for_models(model, api)
        await talk(model, api)
    found = await Embedder(OpenAIEmbeddingModel("hashing-256", provider=provider)).embed_query("Paris")
    say("others", "others", dimensions=len(found["Paris"]))


asyncio.run(main(*sys.argv[1:]))
