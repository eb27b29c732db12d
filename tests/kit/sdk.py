"""OpenAI's SDK as these tests use it: every frame it gets is validated before it is parsed."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import pytest
from openai import APIStatusError, AsyncOpenAI, OpenAI
from openai.resources.responses.responses import AsyncResponsesConnection, ResponsesConnection
from openai.types.responses import Response

from responses_app.protocol.errors import JsonObject
from tests.wire.conformance.frames import OUR_OWN, TERMINAL, assert_whole_response, by_lane, validate_frame

MODEL = "demo"
PATIENCE = 60.0  # seconds until a test gives up on a server
_PLAIN: dict[str, Any] = {"api_key": "none", "max_retries": 0, "timeout": PATIENCE}
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Tell the weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
TWO_CALLS = "call get_weather for Paris and get_weather for Rome"


def sdk_of(server: "Served", **options: Any) -> OpenAI:
    """Return an unmodified SDK that tries nothing again."""
    return OpenAI(base_url=server.base_url, **{**_PLAIN, **options})


def async_sdk_of(server: "Served", **options: Any) -> AsyncOpenAI:
    """The same for coroutines."""
    return AsyncOpenAI(base_url=server.base_url, **{**_PLAIN, **options})


def refusal(
    kind: type[APIStatusError], ask: Callable[..., Any], *args: Any, match: str | None = None, **fields: Any
) -> Any:
    """Return the error of this kind, with a message like this, that a request is answered with."""
    with pytest.raises(kind, match=match) as refused:
        ask(*args, **fields)
    return refused.value


class Served(Protocol):
    """What has the API: a server, a balancer, a tap."""

    @property
    def base_url(self) -> str:
        """What an SDK takes as its base URL."""


class Refused(Exception):
    """The server answered with an error frame."""

    def __init__(self, frame: JsonObject) -> None:
        super().__init__(json.dumps(frame))
        self.frame = frame
        self.error: JsonObject = frame["error"]  # type: ignore[assignment]


class Chat:
    """A synchronous SDK connection, one request at a time; `last` is the latest finished response."""

    def __init__(self, connection: ResponsesConnection) -> None:
        self.connection = connection
        self.last: Response | None = None

    def ask(self, input: object, **fields: Any) -> Response:
        """Send a create that continues `last`, and return its response. Raises `Refused`."""
        if self.last is not None:
            fields.setdefault("previous_response_id", self.last.id)
        self.send(input=input, **fields)
        self.last = self.finish()
        return self.last

    def send(self, **fields: Any) -> None:
        self.connection.response.create(**{"model": MODEL, **fields})

    def finish(self) -> Response:
        """Read one response to its end."""
        frames: list[JsonObject] = []
        while True:
            raw = self.connection.recv_bytes()
            ended = _take(raw, frames)
            if ended:
                event = self.connection.parse_event(raw)
                return event.response  # type: ignore[union-attr]


class AsyncChat:
    """An asynchronous SDK connection with lanes; `last` holds the latest finished response of each."""

    def __init__(self, connection: AsyncResponsesConnection) -> None:
        self.connection = connection
        self.last: dict[str | None, Response] = {}
        self.frames: list[JsonObject] = []

    async def send(self, input: object, *, lane: str | None = None, **fields: Any) -> None:
        """Send a create on a lane; without a `previous_response_id` it continues the lane's latest response."""
        if lane is not None:
            fields["stream_id"] = lane
        if lane in self.last:
            fields.setdefault("previous_response_id", self.last[lane].id)
        await self.connection.response.create(**{"model": MODEL, "input": input, **fields})

    async def ask(self, input: object, *, lane: str | None = None, **fields: Any) -> Response:
        """Send a create and return its response. Raises `Refused`."""
        await self.send(input, lane=lane, **fields)
        await self.finish(lane)
        return self.last[lane]

    async def finish(self, *lanes: str | None) -> list[JsonObject]:
        """Read until each of these lanes has finished a response; return all frames, in their order."""
        running, frames = set(lanes), self.frames
        self.frames = []
        while running:
            raw = await self.connection.recv_bytes()
            frame: JsonObject = json.loads(raw)
            _raise_if_error(frame)
            frames.append(frame)
            if frame["type"] in TERMINAL:
                lane = frame.get("stream_id")
                assert lane is None or isinstance(lane, str)
                running.discard(lane)
                self.last[lane] = self.connection.parse_event(raw).response  # type: ignore[union-attr]
        for events in by_lane(frames).values():
            assert_whole_response(events)
        return frames


def run_tools(response: Response) -> list[Any]:
    """Return the outputs of the functions that a response calls."""
    return [
        {
            "type": "function_call_output",
            "call_id": item.call_id,
            "output": f"18 °C in {json.loads(item.arguments)['city']}",
        }
        for item in response.output
        if item.type == "function_call"
    ]


def server_sent(lines: Sequence[str]) -> list[JsonObject]:
    """Return the events of a stream's lines; its last one is `[DONE]`."""
    blocks = [block.split("\n") for block in "\n".join(lines).strip().split("\n\n")]
    assert blocks.pop() == ["data: [DONE]"]
    events: list[JsonObject] = []
    for name, data in blocks:
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return [event for event in events if event["type"] not in OUR_OWN]


def _take(raw: bytes, frames: list[JsonObject]) -> bool:
    """Collect a frame; say whether the response is over, and then hold it to the rules."""
    frame: JsonObject = json.loads(raw)
    _raise_if_error(frame)
    frames.append(frame)
    if frame["type"] not in TERMINAL:
        return False
    assert_whole_response(frames)
    return True


def _raise_if_error(frame: Mapping[str, object]) -> None:
    if frame["type"] == "error":
        validate_frame(frame)
        raise Refused(dict(frame))
