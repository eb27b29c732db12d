"""The load: clients that do as little as possible for each event, and note when it came."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.system.vllm.server import SERVED_MODEL

JsonObject = dict[str, Any]
TIMEOUT = aiohttp.ClientTimeout(total=300)
DELTA = b'.delta"'
WAKE: JsonObject = {"when": "wake up", "say": "<|channel|>final<|message|>I have been awake all the time.<|return|>"}
JSON = {"content-type": "application/json"}
COMPLETED = "response.completed"
ENDS = tuple(f'{{"type":"{name}"' for name in (COMPLETED, "response.failed", "response.incomplete", "error"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A response, and when it came: seconds from the request to the first delta and to the end."""

    response: JsonObject
    first: float
    total: float

    @property
    def input_tokens(self) -> int:
        """Return the length of the prompt."""
        return int(self.response["usage"]["input_tokens"])

    @property
    def output_tokens(self) -> int:
        """Return how much was sampled."""
        return int(self.response["usage"]["output_tokens"])

    @property
    def cached_tokens(self) -> int:
        """Return how much of the prompt came from the prefix cache."""
        return int(self.response["usage"]["input_tokens_details"]["cached_tokens"])


@asynccontextmanager
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """Open a session whose connections are kept, without a limit of their number."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=TIMEOUT) as session:
        yield session


async def post(session: aiohttp.ClientSession, url: str, **fields: object) -> Answer:
    """Create a response over HTTP, and read its server-sent events to their end."""
    body = _body(fields)
    parts: list[bytes] = []
    first, began = 0.0, time.perf_counter()
    async with session.post(f"{url}/responses", data=body, headers=JSON) as answer:
        async for part in answer.content.iter_any():
            if not first and DELTA in part:
                first = time.perf_counter() - began
            parts.append(part)
    total = time.perf_counter() - began
    text = b"".join(parts).decode()
    assert answer.status == 200, f"{answer.status}: {text[:2000]}"
    event = json.loads(text[text.rindex("data: {") + 6 :].partition("\n")[0])
    return Answer(response=_completed(event), first=first, total=total)


async def wake(session: aiohttp.ClientSession, url: str, number: int = 1) -> None:
    """Have a server say something first: one that was idle for some seconds can take another second to begin."""
    await asyncio.gather(*(post(session, url, input=WAKE["when"], store=False) for _ in range(number)))


async def begin(session: aiohttp.ClientSession, url: str, **fields: object) -> aiohttp.ClientResponse:
    """Create a response over HTTP and read to its first delta. Closing what is returned disconnects."""
    answer = await session.post(f"{url}/responses", data=_body(fields), headers=JSON)
    async for part in answer.content.iter_any():
        if DELTA in part:
            return answer
    raise AssertionError(f"{answer.status}: nothing was said")


def _body(fields: JsonObject) -> bytes:
    return json.dumps({"model": SERVED_MODEL, "stream": True, **fields}).encode()


async def ask(socket: aiohttp.ClientWebSocketResponse, **fields: object) -> Answer:
    """Create a response over a WebSocket, and read its events to their end."""
    first, began = 0.0, time.perf_counter()
    await socket.send_str(json.dumps({"type": "response.create", "model": SERVED_MODEL, **fields}))
    while True:
        text = await socket.receive_str()
        if '.delta"' in text[:80]:
            first = first or time.perf_counter() - began
        elif text.startswith(ENDS):
            total = time.perf_counter() - began
            return Answer(response=_completed(json.loads(text)), first=first, total=total)


def _completed(event: JsonObject) -> JsonObject:
    assert event["type"] == COMPLETED, event
    response: JsonObject = event["response"]
    return response
