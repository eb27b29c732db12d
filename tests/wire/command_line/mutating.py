"""A server between a client and ours, which changes what is said: what a check is for is done wrong there.

with mutating_server(server, Mutation(request=without("usage"))) as base_url:
    ...
"""

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web

from tests.kit.server import Server, free_port
from tests.kit.threads import in_a_thread

Json = dict[str, Any]
FRAMING = ("content-length", "transfer-encoding", "content-encoding", "connection", "date", "server")
PASSED_ON = ("authorization", "x-api-key", "anthropic-version", "anthropic-beta", "content-type")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """What is done wrong. Each function gets what was meant, and returns what is said instead."""

    request: Callable[[str, Any], Any] = lambda path, body: body  # of a body in JSON; bytes are passed on
    path: Callable[[str], str] = lambda path: path  # of a path with its query, by `METHOD /path`
    answer: Callable[[str, int, Any], tuple[int, Any]] = lambda path, status, body: (status, body)  # JSON
    headers: Callable[[Json], Json] = lambda headers: headers
    events: Callable[[list[Json]], list[Json]] = lambda events: events  # of a stream, or of frames one by one
    named: bool = True  # streams have lines `event:`
    binary: bool = False  # frames are binary


@contextmanager
def mutating_server(server: Server, mutation: Mutation) -> Iterator[str]:

    @asynccontextmanager
    async def serving() -> AsyncIterator[str]:
        async with aiohttp.ClientSession() as session:
            app = web.Application(client_max_size=64 * 1024 * 1024)
            app.router.add_route("*", "/{rest:.*}", _Between(server, mutation, session).handle)
            runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", port := free_port(), reuse_address=True)
            await site.start()
            yield f"http://127.0.0.1:{port}/v1"
            await runner.cleanup()

    with in_a_thread(serving()) as base_url:
        yield base_url


class _Between:
    def __init__(self, server: Server, mutation: Mutation, session: aiohttp.ClientSession) -> None:
        self._server, self._mutation, self._session = server, mutation, session

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if "websocket" in request.headers.get("upgrade", "").lower():
            return await self._relay(request)
        body: Any = await request.read()
        with contextlib.suppress(ValueError, RecursionError):  # what is no JSON is passed on
            body = json.dumps(self._mutation.request(request.path, json.loads(body))).encode()
        method, _, path = self._mutation.path(f"{request.method} {request.path_qs}").partition(" ")
        headers = {name: value for name, value in request.headers.items() if name.lower() in PASSED_ON}
        async with self._session.request(
            method, f"{self._server.url}{path}", data=io.BytesIO(body), headers=headers, allow_redirects=False
        ) as came:
            raw = await came.read()
            kept = {name.lower(): value for name, value in came.headers.items() if name.lower() not in FRAMING}
            told = self._mutation.headers(kept)
            if came.content_type == "text/event-stream":
                return web.Response(body=self._stream(raw), status=came.status, headers=told)
            status, value = came.status, raw
            if came.content_type == "application/json":
                status, value = self._mutation.answer(f"{method} {path}", came.status, json.loads(raw))
                value = value if isinstance(value, bytes) else json.dumps(value).encode()
            return web.Response(body=value, status=status, headers=told)

    def _stream(self, raw: bytes) -> bytes:
        data = [line[5:].strip() for line in raw.decode().splitlines() if line.startswith("data:")]
        events = self._mutation.events([json.loads(each) for each in data if each != "[DONE]"])
        done = data and data[-1] == "[DONE]" and not any(event.get("stop") for event in events)
        lines = [
            (f"event: {event['type']}\n" if self._mutation.named and "type" in event else "")
            + f"data: {json.dumps(event)}\n\n"
            for event in events
        ]
        return "".join([*lines, "data: [DONE]\n\n" if done else ""]).encode()

    async def _relay(self, request: web.Request) -> web.StreamResponse:
        inner = web.WebSocketResponse(max_msg_size=0)
        await inner.prepare(request)
        async with self._session.ws_connect(self._server.ws_url, max_msg_size=0) as outer:

            async def back() -> None:
                async for message in outer:
                    for event in self._mutation.events([json.loads(message.data)]):
                        text = json.dumps(event)
                        await (inner.send_bytes(text.encode()) if self._mutation.binary else inner.send_str(text))

            reader = asyncio.create_task(back())
            async for message in inner:
                try:
                    frame = json.dumps(self._mutation.request(request.path, json.loads(message.data)))
                except (ValueError, RecursionError):
                    frame = message.data
                await outer.send_str(frame)
            reader.cancel()
        return inner


def changed(kind: str, change: Callable[[Json], object]) -> Callable[[list[Json]], list[Json]]:
    """Return what changes each event of a type; an event for which `change` returns False is dropped."""

    def events(found: list[Json]) -> list[Json]:
        return [event for event in found if event.get("type") != kind or change(event) is not False]

    return events


def answered(path: str, change: Callable[[Json], object]) -> Callable[[str, int, Any], tuple[int, Any]]:
    """Return what changes good answers to a method and a path's beginning, in place."""

    def answer(asked: str, status: int, body: Any) -> tuple[int, Any]:
        if asked.startswith(path) and status == 200:
            change(body)
        return status, body

    return answer


def replaced(status: int, body: object, *, by: Callable[[str, int, Mapping[str, Any]], object]) -> Any:
    """Return what answers this instead where `by` says so of the path, the status and the body."""

    def answer(asked: str, found: int, told: Any) -> tuple[int, Any]:
        return (status, body) if by(asked, found, told) else (found, told)

    return answer
