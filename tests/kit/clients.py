"""Small clients for tests of real servers: a WebSocket that sorts frames by lane, server-sent events, error readers."""

import asyncio
import json
import re
import socket
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame as WebSocketFrame
from websockets.frames import Opcode
from websockets.protocol import Event

from tests.kit import inprocess_clients
from tests.kit.server import Server

Frame = dict[str, Any]

WAIT_SECONDS = 60.0  # bound of every wait for a frame, on a machine that is busy
TERMINAL = ("response.completed", "response.incomplete", "response.failed", "error")


class _PingedConnection(ClientConnection):
    """Counts the protocol pings it gets."""

    pings = 0

    def process_event(self, event: Event) -> None:
        if isinstance(event, WebSocketFrame) and event.opcode is Opcode.PING:
            self.pings += 1
        super().process_event(event)


class Socket:
    """One WebSocket. Frames are kept by lane until somebody asks for them; `log` holds all of them in order."""

    def __init__(self, raw: "_PingedConnection | inprocess_clients.Connection") -> None:
        self.raw = raw
        self.log: list[Frame] = []
        self._kept: dict[str | None, deque[Frame]] = {}

    @classmethod
    async def open(cls, url: str, **options: Any) -> "Socket":
        """Connect without any limit or heartbeat of the client's own; to a server in this process by ASGI."""
        if (server := inprocess_clients.server_of(url)) is not None:
            return cls(await inprocess_clients.Connection.open(server, url, **options))
        options = {"max_size": None, "ping_interval": None, "compression": None, "close_timeout": 2, **options}
        raw = await connect(url, create_connection=_PingedConnection, **options)
        assert isinstance(raw, _PingedConnection)
        return cls(raw)

    async def __aenter__(self) -> "Socket":
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.raw.close()

    async def send(self, frame: object) -> None:
        """Send a frame: text and bytes as they are, everything else as JSON."""
        await self.raw.send(frame if isinstance(frame, str | bytes) else json.dumps(frame))

    async def create(self, text: object = "Hello", lane: str | None = None, **fields: object) -> None:
        """Send a `response.create`."""
        named = {} if lane is None else {"stream_id": lane}
        await self.send({"type": "response.create", "input": text, **named, **fields})

    async def receive(self) -> Frame:
        """Return the next frame of any lane, heartbeats too."""
        async with asyncio.timeout(WAIT_SECONDS):
            text = await self.raw.recv()
        assert isinstance(text, str), "a frame is text"
        frame: Frame = json.loads(text)
        self.log.append(frame)
        return frame

    async def next(self, lane: str | None = None) -> Frame:
        """Return the next frame of a lane, heartbeats and the warning before the end left out."""
        kept = self._kept.setdefault(lane, deque())
        while not kept:
            frame = await self.receive()
            if frame["type"] not in ("response.ping", "connection_expiring"):
                self._kept.setdefault(frame.get("stream_id"), deque()).append(frame)
        return kept.popleft()

    async def until(self, kind: str, lane: str | None = None) -> list[Frame]:
        """Return a lane's frames up to one of this type; a terminal one before it is a failure."""
        frames = [await self.next(lane)]
        while frames[-1]["type"] != kind:
            assert frames[-1]["type"] not in TERMINAL, frames[-1]
            frames.append(await self.next(lane))
        return frames

    async def answer(self, lane: str | None = None) -> list[Frame]:
        """Return a lane's frames up to the terminal one or an error."""
        frames = [await self.next(lane)]
        while frames[-1]["type"] not in TERMINAL:
            frames.append(await self.next(lane))
        return frames

    async def ask(self, text: object = "Hello", lane: str | None = None, **fields: object) -> Frame:
        """Create a response and return it, completed."""
        await self.create(text, lane, **fields)
        last = (await self.answer(lane))[-1]
        assert last["type"] == "response.completed", last
        response: Frame = last["response"]
        return response

    async def error(self, lane: str | None = None) -> Frame:
        """Return a lane's next frame, which is an error."""
        frame = await self.next(lane)
        assert frame["type"] == "error", frame
        return frame

    async def closed(self) -> int:
        """Wait for the server's close and return its code; frames before it go to `log`."""
        while True:
            try:
                await self.receive()
            except ConnectionClosed:
                return int(self.raw.close_code or 1006)

    def frames(self, kind: str) -> list[Frame]:
        """Return the frames of one type so far."""
        return [frame for frame in self.log if frame["type"] == kind]


def raw_connection(port: int, *, receive_buffer: int = 4096) -> socket.socket:
    """Connect a bare socket that can hold next to nothing which its owner does not read."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    raw.settimeout(WAIT_SECONDS)
    raw.connect(("127.0.0.1", port))
    return raw


def raw_request(body: Frame) -> bytes:
    """Return the bytes of a `POST /v1/responses`."""
    content = json.dumps(body).encode()
    head = "POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


RAW_UPGRADE = (
    b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def raw_frame(frame: Frame) -> bytes:
    """Return the bytes of a text frame, masked with zeros."""
    content = json.dumps(frame).encode()
    length = bytes([0x80 | len(content)]) if len(content) < 126 else b"\xff" + len(content).to_bytes(8, "big")
    return b"\x81" + length + bytes(4) + content


def http_client(server: Server) -> httpx.AsyncClient:
    """Return a client of a server's API. Without TLS: reading the certificates takes 0.1 s for each client."""
    return httpx.AsyncClient(base_url=server.base_url, timeout=WAIT_SECONDS, verify=False)


async def ready(server: Server) -> Frame:
    async with http_client(server) as http:
        answer: Frame = (await http.get(f"{server.url}/ready")).json()
        return answer


async def server_sent(answer: httpx.Response) -> AsyncIterator[tuple[str, Frame | str]]:
    """Yield a stream's events: name and data, `[DONE]` as text."""
    name = ""
    async for line in answer.aiter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            data = line.removeprefix("data: ")
            yield name, data if data == "[DONE]" else json.loads(data)
            name = ""


def text_of(response: Frame) -> str:
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(part["text"] for part in parts)


ERROR_TYPES = {
    **dict.fromkeys((400, 404, 405, 408, 409, 413, 414, 415, 417, 426, 431, 505), "invalid_request_error"),
    403: "permission_error",
    429: "rate_limit_error",
    **dict.fromkeys((500, 503), "server_error"),
}
_LEAKS = re.compile(
    r"Traceback|Exception|\b[A-Z][a-z]+Error\b|\bat 0x|File \"|/work|/tmp|/home|/usr|\.py\b|<class"
    r"|scripted|secret|pydantic|orjson"
)
_AS_SPECIFIED = ("Maximum WebSocket connections reached",)  # word for word in the API's description


def read_error(error: Frame, *, status: int, code: str | None, param: str | None = None) -> str:
    """Check an inner `error` object, read its message, and return that."""
    assert error["code"] == code, error
    assert error["param"] == param, error
    conflict = status == 409 and code != "concurrent_request"  # which the WebSocket has its own word for
    assert error["type"] == ("conflict_error" if conflict else ERROR_TYPES[status]), error
    read_message(error["message"], param)
    message: str = error["message"]
    return message


def read_message(message: str, param: str | None = None) -> None:
    """Check that a message helps: a sentence that names the field, and tells nothing of the server's inside."""
    if message in _AS_SPECIFIED:
        return
    assert len(message) > 20, message
    assert message[0].isupper() or message[0].isdecimal(), message
    assert message[-1] in ".!?", message
    assert not _LEAKS.search(message), message
    if param is not None:
        words = re.split(r"[_.]", param.rpartition(".")[2].removesuffix("_id"))
        assert all(word.lower() in message.lower() for word in words), f"{message!r} does not name {param!r}"


def read_error_frame(frame: Frame, *, status: int, code: str | None, param: str | None = None) -> str:
    """Check a WebSocket's error frame and return its message."""
    assert frame["type"] == "error", frame
    assert frame["status"] == status, frame
    retried = status in (429, 503)
    assert ("headers" in frame) is retried, frame
    if retried:
        assert int(frame["headers"]["retry-after"]) >= 1
        assert frame["error"]["headers"] == frame["headers"]
    return read_error(frame["error"], status=status, code=code, param=param)


def read_error_answer(answer: httpx.Response, *, status: int, code: str | None, param: str | None = None) -> str:
    """Check an HTTP error and return its message."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    assert ("retry-after" in answer.headers) is (status in (429, 503))
    body = answer.json()
    assert set(body) == {"error"}
    return read_error(body["error"], status=status, code=code, param=param)
