"""One streamed request, measured: when its first token came, how far its events are apart, and how much it said."""

import time
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from responses_app.command_line.base.endpoint import Endpoint, message_of
from responses_app.command_line.base.exits import CommandFailed
from responses_app.command_line.base.sse import events_of

Event = Mapping[str, Any]


@dataclass(slots=True)
class Sample:
    """Times are in seconds; `first` is None where no token came, `error` empty where all went well."""

    seconds: float = 0.0
    first: float | None = None
    gaps: "array[float]" = field(default_factory=lambda: array("d"))
    tokens: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Api:
    """How one of the two APIs is asked and read. `said` tells whether an event holds something that the model said."""

    path: str
    body: Callable[[str, str | None, int], dict[str, Any]]
    said: Callable[[Event], bool]
    tokens: Callable[[Event], int | None]
    error: Callable[[Event], str]


def _responses_body(prompt: str, model: str | None, most: int) -> dict[str, Any]:
    named = {"model": model} if model else {}
    return {**named, "input": prompt, "max_output_tokens": most, "stream": True, "store": False}


def _chat_body(prompt: str, model: str | None, most: int) -> dict[str, Any]:
    named = {"model": model} if model else {}
    messages = [{"role": "user", "content": prompt}]
    usage = {"stream_options": {"include_usage": True}}
    return {**named, "messages": messages, "max_completion_tokens": most, "stream": True, **usage}


def _chat_said(event: Event) -> bool:
    choices = event.get("choices") or ()
    fields = ("content", "reasoning", "reasoning_content", "tool_calls", "refusal")
    return any((choice.get("delta") or {}).get(name) for choice in choices for name in fields)


def _responses_tokens(event: Event) -> int | None:
    usage = (event.get("response") or {}).get("usage")
    return usage.get("output_tokens") if usage else None


def _chat_tokens(event: Event) -> int | None:
    usage = event.get("usage")
    return usage.get("completion_tokens") if usage else None


def _responses_error(event: Event) -> str:
    if event.get("type") == "error":
        return message_of(event)
    return message_of(event["response"]) if event.get("type") == "response.failed" else ""


APIS = {
    "responses": Api(
        "/responses",
        _responses_body,
        lambda event: str(event.get("type")).endswith(".delta"),
        _responses_tokens,
        _responses_error,
    ),
    "chat": Api(
        "/chat/completions", _chat_body, _chat_said, _chat_tokens, lambda event: message_of(event) * ("error" in event)
    ),
}


async def ask(session: aiohttp.ClientSession, endpoint: Endpoint, api: Api, body: dict[str, Any]) -> Sample:
    """Send one request and read its stream to the end; what goes wrong is in the sample's `error`."""
    sample = Sample()
    began = time.perf_counter()
    last, counted, told = began, 0, None
    try:
        async for event in events_of(session, endpoint, api.path, body=body):
            if problem := api.error(event):
                sample.error = problem
            told = api.tokens(event) or told
            if not api.said(event):
                continue
            now = time.perf_counter()
            counted += 1
            if sample.first is None:
                sample.first = now - began
            else:
                sample.gaps.append(now - last)
            last = now
    except CommandFailed as problem:
        sample.error = str(problem)
    sample.seconds = time.perf_counter() - began
    sample.tokens = told if told is not None else counted
    if not sample.error and sample.first is None:
        sample.error = "The stream had no tokens."
    return sample
