"""Fixtures: SDK clients of the shared demo server, closed behind each test."""

from collections.abc import AsyncIterator, Iterator

import pytest
from openai import AsyncOpenAI, OpenAI

from tests.kit.sdk import AsyncChat, Chat, async_sdk_of, sdk_of
from tests.kit.server import Server


@pytest.fixture
def client(demo_server: Server) -> Iterator[OpenAI]:
    """An unmodified SDK."""
    with sdk_of(demo_server) as client:
        yield client


@pytest.fixture
async def async_client(demo_server: Server) -> AsyncIterator[AsyncOpenAI]:
    """An unmodified SDK."""
    async with async_sdk_of(demo_server) as client:
        yield client


@pytest.fixture
def chat(client: OpenAI) -> Iterator[Chat]:
    """A WebSocket of the synchronous SDK."""
    with client.responses.connect() as connection:
        yield Chat(connection)


@pytest.fixture
async def async_chat(async_client: AsyncOpenAI) -> AsyncIterator[AsyncChat]:
    """A WebSocket of the asynchronous SDK."""
    async with async_client.responses.connect() as connection:
        yield AsyncChat(connection)
