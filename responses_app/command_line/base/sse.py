"""Server-sent events of an endpoint, read with bounds: the JSON of each `data:` line."""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp

from responses_app.command_line.base.endpoint import MAX_ERROR_BYTES, Endpoint

MAX_LINE = 64 * 1024 * 1024  # bytes: an event may hold a whole response, with its images


async def events_of(
    session: aiohttp.ClientSession,
    endpoint: Endpoint,
    path: str,
    *,
    body: Mapping[str, Any] | None = None,
    params: Mapping[str, str] | None = None,
) -> AsyncIterator[dict[str, Any]]:
    """Post `body`, or get without one, and yield the events; `[DONE]` is none. Raises `CommandFailed`."""
    method = "GET" if body is None else "POST"
    try:
        async with session.request(method, f"{endpoint.base_url}{path}", json=body, params=params) as answer:
            if answer.status != 200:
                raise endpoint.refused(answer.status, await _body(answer))
            async for line in _lines(answer.content):
                if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
                    yield json.loads(data)
    except (aiohttp.ClientError, OSError) as error:
        raise endpoint.unreachable(error) from None


async def fetch(session: aiohttp.ClientSession, endpoint: Endpoint, path: str) -> dict[str, Any]:
    """Return the JSON object at a path. Raises `CommandFailed`."""
    try:
        async with session.get(f"{endpoint.base_url}{path}") as answer:
            if answer.status != 200:
                raise endpoint.refused(answer.status, await _body(answer))
            found: dict[str, Any] = await answer.json(content_type=None)
            return found
    except (aiohttp.ClientError, OSError) as error:
        raise endpoint.unreachable(error) from None


async def _body(answer: aiohttp.ClientResponse) -> object:
    raw = await answer.content.read(MAX_ERROR_BYTES)
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode(errors="replace").strip()


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
        if len(rest) > MAX_LINE:
            raise aiohttp.ClientPayloadError(f"an event has more than {MAX_LINE} bytes")
    if rest:
        yield rest
