"""How a check talks to the server: JSON and server-sent events over HTTP, frames over its WebSocket.

All of it is bounded, and written down.
Redirects are not followed: a key is for the server that was named.
"""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiohttp

from engine.errors import reason_of
from responses_app.command_line.endpoint import RemoteServer
from responses_app.extensions.conformance.shapes import (
    TERMINAL,
    Absent,
    Json,
    Lost,
    RoundTrip,
    RuleBroken,
    Skipped,
    Unmet,
    Unreachable,
    response_of,
)

MAX_BODY = 16 * 1024 * 1024  # bytes of an answer or a stream
MAX_EVENTS = 50_000  # of a stream
PIECE = 256 * 1024  # bytes of a body that are sent at once
MAX_TOLD = 2000  # characters of each text of an exchange
MAX_EXCHANGES = 8  # of a check that are told: the last ones
MOST_TOKENS = 2048  # of an answer: enough for a model that reasons
NOT_THERE = (404, 405, 501)
# What reading an answer of any server may raise: a check that trips over an answer has failed.
TRIPPED = (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError)
LOST = (aiohttp.ClientError, OSError, EOFError)

T = TypeVar("T")
Made = tuple[object, Unmet | None, list[RoundTrip]]


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What came back over HTTP."""

    status: int
    headers: Mapping[str, str]
    raw: bytes

    @property
    def kind(self) -> str:
        """The media type."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def json(self) -> Any:
        """The body as JSON. Raises `RuleBroken`."""
        return read_json(self.raw, "the body")

    @property
    def error(self) -> Json:
        """The error, in OpenAI's shape. Raises `RuleBroken`."""
        body = self.json
        error = body.get("error") if isinstance(body, dict) else None
        if not isinstance(error, dict) or not isinstance(error.get("message"), str):
            raise RuleBroken(f"{self.status} without an error object: {self.told}")
        return error

    @property
    def told(self) -> str:
        """The beginning of the body."""
        return self.raw[:MAX_TOLD].decode(errors="replace")


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One server-sent event."""

    name: str  # of its `event:` line; "" for none
    data: str

    @property
    def json(self) -> Json:
        """Its data as an object. Raises `RuleBroken`."""
        value = read_json(self.data, "an event's data")
        if not isinstance(value, dict):
            raise RuleBroken(f"an event is not an object: {self.data[:200]}")
        return value


@dataclass(frozen=True, slots=True)
class Stream:
    """What came back where a stream was asked for."""

    answer: HttpAnswer  # its body is that of the stream
    events: list[ServerSentEvent]

    @property
    def objects(self) -> list[Json]:
        """All events but `[DONE]`. Raises `RuleBroken` where no stream came."""
        if self.answer.status != 200:
            raise RuleBroken(f"answered {self.answer.status}: {self.answer.told}")
        found = [event.json for event in self.events if event.data != "[DONE]"]
        if not found:
            raise RuleBroken(f"the stream has no events: {self.answer.told or 'it is empty'}")
        return found


def read_json(text: str | bytes, what: str) -> Any:
    """Return JSON, read strictly. Raises `RuleBroken`."""

    def no_number(name: str) -> object:
        raise ValueError(f"{name} is not JSON")

    try:
        return json.loads(text, parse_constant=no_number)
    except (ValueError, RecursionError) as error:
        shown = text[:200] if isinstance(text, str) else text[:200].decode(errors="replace")
        raise RuleBroken(f"{what} is not JSON ({error}): {shown or 'nothing'}") from None


@dataclass(slots=True)
class Server:
    """The server that is checked, and what checks share of it."""

    session: aiohttp.ClientSession
    endpoint: RemoteServer
    model: str
    seconds: float  # for one check
    made: dict[object, "asyncio.Task[Made]"] = field(default_factory=dict)  # by the functions that make it
    there: set[tuple[str, str]] = field(default_factory=set)  # methods and paths that have answered with 200

    async def once(self, make: Callable[["Talk"], Awaitable[object]]) -> Made:
        """Have something made that several checks need, once in a run; also return what was asked for it."""
        if make not in self.made:
            self.made[make] = asyncio.create_task(self._make(make), name="a precondition of checks")
        # Others wait for it, too: a check that gives up leaves it be.
        return await asyncio.shield(self.made[make])

    async def _make(self, make: Callable[["Talk"], Awaitable[object]]) -> Made:
        talk = Talk(self)
        try:
            return await attempt(make(talk), self.seconds), None, talk.exchanges
        except Unmet as problem:
            return None, problem, talk.exchanges


async def attempt(work: Awaitable[T], seconds: float) -> T:
    """Return what comes of work with a server. Whatever goes wrong is an `Unmet`."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise Lost(f"no end within {seconds:.0f} s") from None
    except aiohttp.ClientConnectorError as error:
        raise Unreachable(f"cannot be reached ({reason_of(error)})") from None
    except LOST as error:
        raise Lost(f"the connection was lost ({reason_of(error)})") from None
    except TRIPPED as error:
        raise RuleBroken(f"the answer has another form ({type(error).__name__}: {error})") from None


class Talk:
    """What one check says to the server, and hears."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.model = server.model
        self.exchanges: list[RoundTrip] = []

    async def once(self, make: Callable[["Talk"], Awaitable[Any]]) -> Any:
        """Return what a function makes of a talk, once in a run. Raises `Skipped` where that fails."""
        value, problem, exchanges = await self.server.once(make)
        self.exchanges += exchanges
        if isinstance(problem, RuleBroken):
            raise Skipped(f"what it needs could not be had: {problem}")
        if problem is not None:
            raise type(problem)(str(problem))
        return value

    def note(self, sent: str, body: object, status: int | None, came: str) -> None:
        """Write down an exchange."""
        text = body if isinstance(body, str) else "" if body is None else json.dumps(body, ensure_ascii=False)
        self.exchanges.append(RoundTrip(sent, text[:MAX_TOLD], status, came[:MAX_TOLD]))
        del self.exchanges[:-MAX_EXCHANGES]

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> HttpAnswer:
        """Return the answer to one request, whatever it is. A body of bytes is sent as it is."""
        return (await self._exchange(method, path, body, headers)).answer

    async def stream(
        self,
        path: str,
        body: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        until: Callable[[ServerSentEvent], bool] | None = None,
    ) -> Stream:
        """Return a stream, to its end, or to the event that `until` says it is enough with: then it is dropped."""
        method = "GET" if body is None else "POST"
        return await self._exchange(method, path, body, headers, until=until)

    async def there(self, method: str, path: str, body: object = None, **how: Any) -> HttpAnswer:
        """Return an answer that is not that of a missing path. Raises `Absent`.

        What has answered with 200 before is not missing, nor what says something of the model.
        """
        answer = await self.ask(method, path, body, **how)
        if answer.status == 200:
            self.server.there.add((method, path))
        elif answer.status in NOT_THERE and (method, path) not in self.server.there and self.model not in answer.told:
            raise Absent(f"{method} {path} answered {answer.status}")
        return answer

    async def create(self, **fields: Any) -> Json:
        """Return a new response. Raises `Absent`, or `RuleBroken` where none came."""
        answer = await self.there("POST", "/responses", self.body(fields))
        return response_of(good(answer))

    def body(self, fields: Mapping[str, Any]) -> Json:
        """Return the body of a create."""
        return {"model": self.model, "max_output_tokens": MOST_TOKENS, **fields}

    async def events(self, **fields: Any) -> list[Json]:
        """Return the events of a new response that is streamed."""
        stream = await self.stream("/responses", self.body({**fields, "stream": True}))
        if stream.answer.status in NOT_THERE:
            raise Absent(f"POST /responses answered {stream.answer.status}")
        return stream.objects

    async def refused(self, body: object, *, path: str = "/responses", statuses: tuple[int, ...] = (400, 422)) -> Json:
        """Return the error of a request that has to be refused."""
        answer = await self.ask("POST", path, body)
        if answer.status not in statuses:
            raise RuleBroken(f"answered {answer.status}: {answer.told}")
        return answer.error

    async def _exchange(
        self,
        method: str,
        path: str,
        body: object,
        headers: Mapping[str, str] | None,
        *,
        until: Callable[[ServerSentEvent], bool] | None = None,
    ) -> Stream:
        given: dict[str, Any] = {"headers": {**(headers or {})}, "allow_redirects": False}
        if body is not None:
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            # A long one is sent piece by piece.
            given |= {"data": io.BytesIO(raw) if len(raw) > PIECE else raw}
            given["headers"].setdefault("content-type", "application/json")
        told = body.decode(errors="replace") if isinstance(body, bytes) else body
        try:
            async with self.server.session.request(method, f"{self.server.endpoint.base_url}{path}", **given) as came:
                stream = await _read(came, until)
        except BaseException:
            self.note(f"{method} {path}", told, None, "no whole answer")
            raise
        self.note(f"{method} {path}", told, stream.answer.status, stream.answer.told)
        return stream


def good(answer: HttpAnswer) -> Any:
    """Return the JSON of an answer with status 200. Raises `RuleBroken`."""
    if answer.status != 200:
        raise RuleBroken(f"answered {answer.status}: {answer.told}")
    return answer.json


async def _read(came: aiohttp.ClientResponse, until: Callable[[ServerSentEvent], bool] | None) -> Stream:
    """Read an answer; events where it has some."""
    raw, events, lines = bytearray(), list[ServerSentEvent](), _Events()
    is_stream = came.content_type == "text/event-stream"
    async for chunk in _bounded(came.content):
        raw += chunk
        if not is_stream:
            continue
        for event in lines.feed(chunk):
            events.append(event)
            if len(events) > MAX_EVENTS:
                raise RuleBroken(f"the stream has more than {MAX_EVENTS} events")
            if until is not None and until(event):
                came.close()
                return Stream(_answer(came, raw), events)
    return Stream(_answer(came, raw), events)


def _answer(came: aiohttp.ClientResponse, raw: bytearray) -> HttpAnswer:
    return HttpAnswer(came.status, {name.lower(): value for name, value in came.headers.items()}, bytes(raw))


async def _bounded(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    size = 0
    async for chunk in content.iter_any():
        size += len(chunk)
        if size > MAX_BODY:
            raise RuleBroken(f"the answer has more than {MAX_BODY} bytes")
        yield chunk


class _Events:
    """Server-sent events, cut out of bytes as the HTML standard says."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []  # a line that has not ended, in pieces
        self._name = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Return the events that end in these bytes."""
        if b"\n" not in chunk:
            self._rest.append(chunk)
            return []
        *lines, rest = b"".join((*self._rest, chunk)).split(b"\n")
        self._rest = [rest]
        return [event for line in lines if (event := self._line(line.removesuffix(b"\r").decode(errors="replace")))]

    def _line(self, line: str) -> ServerSentEvent | None:
        if not line:
            name, data, self._name, self._data = self._name, self._data, "", []
            return ServerSentEvent(name, "\n".join(data)) if data else None
        field_name, _, value = line.partition(":")
        if field_name == "event":
            self._name = value.removeprefix(" ")
        elif field_name == "data":
            self._data.append(value.removeprefix(" "))
        return None


ENDS = (*TERMINAL, "response.steer.failed", "response.steer.accepted")
CLOSE_SECONDS = 2.0  # for the server to close, too


class WebSocketTalk:
    """One connection."""

    def __init__(self, talk: Talk, connection: aiohttp.ClientWebSocketResponse) -> None:
        self._talk = talk
        self._connection = connection
        self.frames = 0  # that have come

    @property
    def is_open(self) -> bool:
        """Whether neither side has closed."""
        return not self._connection.closed

    async def send(self, frame: object) -> None:
        """Send a frame; a text is sent as it is."""
        self._talk.note("WebSocket", frame, None, "")
        if isinstance(frame, str):
            await self._connection.send_str(frame)
        else:
            await self._connection.send_json(frame)

    async def begin(self, **fields: Any) -> None:
        """Send a `response.create`."""
        known = {"model": self._talk.model, "max_output_tokens": MOST_TOKENS}
        await self.send({"type": "response.create", **known, **fields})

    async def create(self, **fields: Any) -> list[Json]:
        """Return the events of a new response, alone on this connection."""
        await self.begin(**fields)
        return await self.events()

    async def events(self, ends: int = 1) -> list[Json]:
        """Return what comes until so many responses or errors have ended."""
        found: list[Json] = []
        while ends:
            found.append(await self.receive())
            ends -= found[-1].get("type") in ENDS
        return found

    async def receive(self) -> Json:
        """Return the next frame. Raises `RuleBroken` where the connection ends, or the frame is no JSON object."""
        message = await self._connection.receive()
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise RuleBroken(f"instead of a text frame came {message.type.name} {str(message.data or '')[:200]}")
        self.frames += 1
        self._talk.note("WebSocket", None, None, message.data)
        if self.frames > MAX_EVENTS:
            raise RuleBroken(f"more than {MAX_EVENTS} frames came")
        frame = read_json(message.data, "a frame")
        if not isinstance(frame, dict):
            raise RuleBroken(f"a frame is not an object: {message.data[:200]}")
        return frame

    async def ping(self) -> None:
        """Send a ping, and return when the server has answered it."""
        await self._connection.ping(b"conformance")
        message = await self._connection.receive()
        if message.type is not aiohttp.WSMsgType.PONG:
            raise RuleBroken(f"instead of a pong came {message.type.name}")


@asynccontextmanager
async def socket(talk: Talk, *, autoping: bool = True) -> AsyncIterator[WebSocketTalk]:
    """Connect. Raises `Absent` where the server does not upgrade."""
    server = talk.server
    try:
        connection = await server.session.ws_connect(
            server.endpoint.websocket_url,
            max_msg_size=MAX_BODY,
            autoping=autoping,
            timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_SECONDS),
        )
    except aiohttp.WSServerHandshakeError as error:
        talk.note("GET /responses, upgrade to WebSocket", None, error.status, error.message)
        raise Absent(f"the upgrade was answered with {error.status}") from None
    try:
        yield WebSocketTalk(talk, connection)
    finally:
        await connection.close()
