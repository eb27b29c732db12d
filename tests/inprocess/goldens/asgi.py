"""The application in this process, spoken to as a server speaks to it: no network, and no knowledge of its inside."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

WAIT_SECONDS = 30  # bound of every wait here
Message = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What was answered to a request."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def json(self) -> Any:
        """Return the body as it is read."""
        return json.loads(self.body)


class Application:
    """The application of this process's settings, from its start to its end."""

    def __init__(self) -> None:
        from respsite.asgi import application  # settings are read, and everything is built, when this is imported

        self._app: Any = application
        self._life: asyncio.Queue[Message] = asyncio.Queue()
        self._told: asyncio.Queue[Message] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        """Start, and return when it is ready."""
        scope = {"type": "lifespan", "asgi": {"version": "3.0"}}
        self._lifespan = asyncio.create_task(self._app(scope, self._life.get, self._told.put))
        await self._live("startup")
        async with asyncio.timeout(WAIT_SECONDS):
            while (await self.request("GET", "/ready")).status != 200:  # noqa: ASYNC110 (asked as a balancer asks)
                await asyncio.sleep(0.02)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._live("shutdown")
        await self._lifespan

    async def _live(self, step: str) -> None:
        await self._life.put({"type": f"lifespan.{step}"})
        told = await asyncio.wait_for(self._told.get(), WAIT_SECONDS)
        assert told == {"type": f"lifespan.{step}.complete"}

    async def request(
        self, method: str, target: str, body: object = None, headers: Mapping[str, str] | None = None, *,
        heard: Callable[[Message], None] = lambda message: None,
    ) -> Answer:  # fmt: skip
        """Send a request, and read its answer to the end; `heard` is called with each message of it."""
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        given = {"content-type": "application/json", "content-length": str(len(content))} if content else {}
        asked: asyncio.Queue[Message] = asyncio.Queue()
        asked.put_nowait({"type": "http.request", "body": content, "more_body": False})
        sent: list[Message] = []

        async def send(message: Message) -> None:
            heard(message)
            sent.append(message)

        scope = {**_scope("http", target, {**given, **(headers or {})}), "method": method, "scheme": "http"}
        await asyncio.wait_for(self._app(scope, asked.get, send), WAIT_SECONDS)
        start, *parts = sent
        told = [(name.decode().lower(), value.decode()) for name, value in start["headers"]]
        return Answer(start["status"], sorted(told), b"".join(part.get("body", b"") for part in parts))

    def socket(self, target: str, headers: Mapping[str, str] | None = None) -> "Socket":
        """Return a WebSocket that is opened by `async with`."""
        return Socket(self._app, _scope("websocket", target, headers or {}))


class Socket:
    """One WebSocket."""

    def __init__(self, app: Any, scope: Message) -> None:
        self._app = app
        self._scope = {**scope, "scheme": "ws", "subprotocols": []}
        self._in: asyncio.Queue[Message] = asyncio.Queue()
        self._out: asyncio.Queue[Message] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._app(self._scope, self._in.get, self._out.put))
        self._in.put_nowait({"type": "websocket.connect"})
        told = await asyncio.wait_for(self._out.get(), WAIT_SECONDS)
        assert told["type"] == "websocket.accept", told
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._in.put_nowait({"type": "websocket.disconnect", "code": 1000})
        await asyncio.wait_for(self._task, WAIT_SECONDS)

    async def send(self, frame: object) -> None:
        """Send a frame."""
        await self._in.put(
            {"type": "websocket.receive", "text": frame if isinstance(frame, str) else json.dumps(frame)}
        )

    async def receive(self) -> str:
        """Return the text of the next frame."""
        told = await asyncio.wait_for(self._out.get(), WAIT_SECONDS)
        assert told["type"] == "websocket.send", told
        return str(told["text"])

    async def until(self, *ends: str) -> list[str]:
        """Return the frames up to one of these types."""
        frames = [await self.receive()]
        while json.loads(frames[-1])["type"] not in ends:
            frames.append(await self.receive())
        return frames


def _scope(kind: str, target: str, headers: Mapping[str, str]) -> Message:
    path, _, query = target.partition("?")
    given = {"host": "localhost", **headers}
    return {
        "type": kind,
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in given.items()],
        "client": ("127.0.0.1", 50_000),
        "server": ("127.0.0.1", 8000),
    }
