"""OpenAI's Agents SDK against a server: its models over each transport, and runs to their end.

It is imported where it is used: that takes seconds, which all who collect tests would wait for.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.sdk import async_sdk_of
from tests.kit.server import Server

if TYPE_CHECKING:
    from agents import OpenAIResponsesModel
    from agents.result import RunResultBase


@pytest.fixture(scope="module", autouse=True)
def no_tracing() -> Iterator[None]:
    """Traces would go to OpenAI."""
    import agents

    agents.set_tracing_disabled(True)
    yield
    agents.set_tracing_disabled(False)


@asynccontextmanager
async def model_of(server: Server, name: str, transport: str) -> AsyncIterator["OpenAIResponsesModel"]:
    """Return a server's model over its WebSocket, or over HTTP."""
    import agents

    async with async_sdk_of(server) as client:
        kind = agents.OpenAIResponsesWSModel if transport == "websocket" else agents.OpenAIResponsesModel
        model = kind(model=name, openai_client=client)
        yield model
        await model.close()


async def run_of(agent: Any, input: Any, *, streamed: bool, **options: Any) -> tuple["RunResultBase", list[Any]]:
    """Run an agent to its end; return its result, and the events of a streamed run."""
    import agents

    if not streamed:
        return await agents.Runner.run(agent, input, **options), []
    result = agents.Runner.run_streamed(agent, input, **options)
    return result, [event async for event in result.stream_events()]
