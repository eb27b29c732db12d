"""One model server: connections, small questions, and generations whose tokens come as server-sent events.

`ServerClient` has the connections. What is read of an answer (`AnswerReader`, `EventLines`, `WholeBytes`, `error_text`)
does no I/O, and is the same for vLLM's servers and llama.cpp's.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Any, TypeVar

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from engine import orjson
from engine.errors import EngineError, EngineUnavailable, GenerationFailed, reason_of
from engine.threads import in_thread
from engine.types import TokenChunk

JsonObject = dict[str, Any]

# The buffer of a stream holds one event at most.
MAX_LINE = 16 * 1024 * 1024  # bytes of one event; the first one of a completion of vLLM's repeats the prompt
MAX_TEXT = 300  # characters of a server's own words in a message of ours


class Refusal(Exception):
    """A server answered with an error; `status` is HTTP's, or the code of an error inside a stream."""

    def __init__(self, status: int, text: str, *, retry_after: int | None = None) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status
        self.text = text
        self.retry_after = retry_after


class AnswerReader(ABC):
    """Turns the bytes of one answer into chunks, however they are cut."""

    def __init__(self) -> None:
        self._last: TokenChunk | None = None  # the chunk with the finish reason; None until it has come

    @property
    def finished(self) -> bool:
        """Whether a finish reason has come; the usage may come after it."""
        return self._last is not None

    @abstractmethod
    def feed(self, data: bytes) -> Iterator[TokenChunk]:
        """Yield the chunks that `data` completes, all but the last one; iterate to the end.

        Raises `Refusal` for an error in the answer, `GenerationFailed` for what no server of this kind says.
        """

    def end(self) -> bool:
        """Say whether the answer may end here, where no more bytes come. Raises as `feed` does."""
        return False

    def last(self) -> TokenChunk:
        """Return the chunk with the finish reason."""
        assert self._last is not None, "asked for before it was there"
        return self._last


class WholeBytes:
    """Collects the bytes of an answer that is not streamed: at most `most`. Errors name the `server` that sends it."""

    def __init__(self, server: str, most: int) -> None:
        self._server = server
        self._most = most
        self._parts: list[bytes] = []  # joined in `take`
        self._size = 0

    def add(self, data: bytes) -> None:
        """Keep `data`. Raises `GenerationFailed` for more than such a server would send."""
        self._parts.append(data)
        self._size += len(data)
        if self._size > self._most:
            raise GenerationFailed(f"{self._server} sent an answer of more than {self._most} bytes.")

    def take(self) -> bytes:
        """Return all of it, and let go of it: parsed, it takes as much memory again."""
        parts, self._parts = self._parts, []
        return b"".join(parts)


class EventLines:
    """Divides the bytes of a stream into events. Each is on one line, as vLLM and llama.cpp write them."""

    def __init__(self) -> None:
        self._kept: list[bytes] = []  # of a line whose end has not come
        self._kept_bytes = 0  # of all of `_kept`

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of the events that `data` completes. Raises `GenerationFailed` for a line without end."""
        lines, newline, rest = data.rpartition(b"\n")
        if not newline:
            self._keep(data)
            return []
        # Parts are joined once a line ends. Joining at each `feed` would take a time that grows with its square.
        whole = b"".join((*self._kept, lines))
        self._kept, self._kept_bytes = [], 0
        self._keep(rest)
        return [line[5:] for line in whole.split(b"\n") if line.startswith(b"data:")]

    def _keep(self, part: bytes) -> None:
        if not part:
            return
        self._kept.append(part)
        self._kept_bytes += len(part)
        if self._kept_bytes > MAX_LINE:
            raise GenerationFailed(f"The engine's server sent a line of more than {MAX_LINE} bytes.")


def error_text(content: bytes) -> str:
    """Return the message in the body of an error; `{"error": {"message"}}` is vLLM's own form."""
    try:
        message = orjson.loads(content)
    except ValueError:
        return shown(content)
    # Each server, gateway and framework has another form: vLLM's, a plain message, FastAPI's `detail`.
    if isinstance(message, dict):
        message = message.get("error") or message.get("message") or message.get("detail") or message
    if isinstance(message, dict):
        message = message.get("message") or message
    return shown(str(message))


def shown(text: str | bytes) -> str:
    """Return text from outside as one short line for a log."""
    # Cut first, as most of a long page is never shown; four times as long, as white space goes.
    beginning = text[: 4 * MAX_TEXT]
    if isinstance(beginning, bytes):
        beginning = beginning.decode(errors="replace")
    line = " ".join("".join(each if each.isprintable() else " " for each in beginning).split())
    return line if len(line) <= MAX_TEXT else f"{line[: MAX_TEXT - 1]}…"


def refusal_in(message: JsonObject) -> Refusal:
    """Return the error that an answer of status 200 has in it."""
    error = message["error"]
    code = error.get("code") if isinstance(error, dict) else None
    # Some errors carry a text as their code ("invalid_api_key"): they count as the server's own.
    status = code if isinstance(code, int) and 400 <= code <= 599 else 500
    return Refusal(status, error_text(orjson.dumps(message)))


Result = TypeVar("Result")


async def unless(
    closed: asyncio.Event, work: Coroutine[Any, Any, Result], *, error: Callable[[], EngineError]
) -> Result:
    """Do some work, or raise `error` as soon as `closed` is set."""
    working = asyncio.create_task(work)
    closing = asyncio.create_task(closed.wait())
    try:
        await asyncio.wait([working, closing], return_when=asyncio.FIRST_COMPLETED)
        if closed.is_set():
            raise error()
        return await working
    # On every way out, being cancelled too: neither task may outlive this.
    finally:
        working.cancel()
        closing.cancel()
        await asyncio.wait([working, closing])
        working.cancelled() or working.exception()  # else asyncio would log an error that nobody asked for


KEEP_ALIVE_SECONDS = 2.0  # of an idle connection: vLLM (VLLM_HTTP_TIMEOUT_KEEP_ALIVE) and llama.cpp close them after 5
TAIL_SECONDS = 2.0  # for the usage and the end of an answer whose finish reason has come
MAX_ANSWER = 1024 * 1024  # bytes of an answer that is not a stream
MAX_RENDERED = 32 * 1024 * 1024  # bytes of a rendered prompt: some million tokens
READ_AT_ONCE = 64 * 1024  # bytes of a stream, taken from the socket
MAX_RETRY_AFTER = 3600  # seconds: a proxy before the server may name a date far away, or any number
NO_HEADERS: Mapping[str, str] = {}
BROKEN = (aiohttp.ClientError, HttpProcessingError, OSError)  # of connections; TimeoutError is an OSError


class OutOfReach(EngineUnavailable):
    """No connection to the server could be made."""


class Silent(GenerationFailed):
    """The server sent nothing of a generation for too long; another one may do better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long to wait, in seconds."""

    connect: float  # for a connection, and for the answer to a question that generates nothing
    # It bounds queueing and prefill, too: vLLM sends no byte before the first token.
    silence: float  # that a server may send no byte of a generation, and that finding out what it can do may take
    look: float  # between two looks at how a server is, and for the answer to each


def open_session(api_key: str, *, keeps_connections: bool = True) -> aiohttp.ClientSession:
    """Return a session for all servers, without cookies, compression, or a limit of its own."""
    kept = {"keepalive_timeout": KEEP_ALIVE_SECONDS} if keeps_connections else {"force_close": True}
    return aiohttp.ClientSession(
        # No limit of connections: `max_connections` of the engine is the one that counts (`VllmServerEngine.generate`).
        connector=aiohttp.TCPConnector(limit=0, **kept),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"Accept-Encoding": "identity", **({"Authorization": f"Bearer {api_key}"} if api_key else {})},
    )


class _SilenceClock:
    """Calls `give_up` when a read takes too long; a read that does not costs next to nothing.

    This is not left to aiohttp's `sock_read`: where the framing of an answer breaks, aiohttp 3.14 forgets about it, and
    the read would never end.
    """

    def __init__(self, seconds: float, give_up: Callable[[], None], is_held: Callable[[], bool]) -> None:
        self._seconds = seconds
        self._give_up = give_up
        self._is_held = is_held  # a server that is paused is silent for as long as it is
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None  # when the read began that is waited for; None between two
        # One timer for the whole stream. Each read only notes its time: making a timer for each would cost more.
        self._timer = self._loop.call_later(seconds, self._look)

    def start(self) -> None:
        """Begin to wait."""
        self._since = self._loop.time()

    def stop(self) -> None:
        """Wait no more: what comes next is the consumer's time."""
        self._since = None

    def close(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        # Between two reads nothing is due: then it looks again a whole period later.
        due = (now if self._since is None or self._is_held() else self._since) + self._seconds
        if due <= now:
            self._give_up()
        else:
            self._timer = self._loop.call_at(due, self._look)


class _RunningCall:
    """A generation that runs or waits, which can be ended from outside."""

    def __init__(self) -> None:
        self.error: EngineError | None = None  # why it is to end; None while it may go on
        self.waiting: asyncio.Timeout | None = None  # for the answer to begin
        self.content: aiohttp.StreamReader | None = None  # set once the answer has begun

    def end(self, error: EngineError) -> None:
        """Let it raise `error` at once, or at its next read."""
        self.error = error
        # The next read raises it, also one that waits already. Before the answer has begun there is only its timeout.
        if self.content is not None:
            self.content.set_exception(error)
        elif self.waiting is not None and not self.waiting.expired():
            # Let the timeout in `_post` expire now; it raises `error` then, not the timeout.
            self.waiting.reschedule(0)


class ServerClient:
    """Talks to one server. Its errors begin with its name, for logs. `heard_at`: when it sent anything last."""

    def __init__(
        self, url: str, *, session: aiohttp.ClientSession, timeouts: Timeouts, kind: str = "vLLM server"
    ) -> None:
        self.url = url
        self.name = f"the {kind} at {url}"
        self.timeouts = timeouts
        self._session = session
        self._loop = asyncio.get_running_loop()
        # No total: a generation may take hours. Its silences are bounded by `_SilenceClock`.
        self._timeout = aiohttp.ClientTimeout(total=None, connect=timeouts.connect)
        self._calls: set[_RunningCall] = set()  # those that run or wait, for `end_streams`
        self.heard_at = 0.0  # a time of the event loop; 0: never
        self.is_held = False  # it is paused, and its silence means nothing

    async def get(self, path: str, *, seconds: float | None = None) -> tuple[int, bytes]:
        """Return the status and the content of an answer, in `seconds` or as long as a connection may take.

        Raises `OutOfReach`, or `EngineUnavailable` where the answer did not come, or not whole.
        """
        try:
            async with (
                # `asyncio.timeout` around all of it: it bounds the body too, which aiohttp's `connect` does not.
                asyncio.timeout(self.timeouts.connect if seconds is None else seconds),
                self._session.get(self.url + path, allow_redirects=False) as response,
            ):
                return response.status, await _content(response)
        except BROKEN as error:
            raise self._out_of_reach(error) from error

    async def post(self, path: str, body: bytes, *, seconds: float | None = None, is_repeatable: bool = False) -> bytes:
        """Return the content of the answer to a question that generates nothing. Raises as `get`, and `Refusal`.

        One that is repeatable is asked once more where its connection breaks: after an error a server may close it, and
        that may cross the next question.
        """
        try:
            try:
                return await self._answer(path, body, seconds)
            except aiohttp.ClientConnectionError:
                if not is_repeatable:
                    raise
            return await self._answer(path, body, seconds)
        except BROKEN as error:
            raise self._out_of_reach(error) from error

    async def _answer(self, path: str, body: bytes, seconds: float | None) -> bytes:
        async with (
            asyncio.timeout(self.timeouts.connect if seconds is None else seconds),
            self._session.post(
                self.url + path, data=BytesIO(body), headers={"Content-Type": "application/json"}, allow_redirects=False
            ) as response,
        ):
            content = await _content(response, MAX_RENDERED)
            if response.status != 200:
                raise Refusal(response.status, error_text(content))
            return content

    async def stream(
        self, path: str, body: bytes, tokens: AnswerReader, *, headers: Mapping[str, str] = NO_HEADERS
    ) -> AsyncGenerator[TokenChunk, None]:
        """Yield what the server samples for `body`, as `tokens` reads it. It is sent `headers` beside the usual ones.

        Closing the connection is what aborts a generation, so closing this is enough: in vLLM (`listen_for_disconnect`
        in vllm/entrypoints/serve/utils/api_utils.py, and Starlette's `StreamingResponse`), and in llama.cpp
        (`should_stop` in tools/server/server-context.cpp).

        Raises `Refusal` for an answer that is an error, `OutOfReach` where there was no connection, `EngineUnavailable`
        where it broke, `Silent`, and `GenerationFailed` for what no server of its kind says.
        """
        call = _RunningCall()
        self._calls.add(call)
        try:
            response = await self._post(path, body, headers, call)
            clock = self._silence_clock(lambda: response.content.set_exception(self._silent()))
            call.content = response.content
            # Into a small buffer: asyncio makes room for 256 KiB at each read. By the state of its heap the C library
            # asks the kernel for them and gives them back each time, which takes up to 14 µs (measured), and there is
            # a read for every token.
            connection = response.connection  # None where the answer has come to its end
            transport: object = None if connection is None else connection.transport
            if hasattr(transport, "max_size"):  # asyncio's own; uvloop has none
                transport.max_size = READ_AT_ONCE
            try:
                while not tokens.finished:
                    clock.start()
                    data = await response.content.readany()
                    clock.stop()
                    self.heard_at = self._loop.time()
                    # No data is the end of the stream: right for a whole answer, which is read now, else a broken
                    # connection.
                    if not data and not await in_thread(tokens.end):  # a whole answer may be long
                        raise aiohttp.ServerDisconnectedError("the stream ended without a finish reason")
                    for chunk in tokens.feed(data):
                        yield chunk
                # The last chunk waits for the usage, which comes behind the finish reason and has the cached tokens.
                await self._read_tail(response, tokens)
                yield tokens.last()
            finally:
                clock.close()
                response.close()  # does nothing where it was read to its end: then the connection is used again
        except BROKEN as error:
            raise self._out_of_reach(error) from error
        finally:
            self._calls.discard(call)

    def end_streams(self, error: EngineError) -> None:
        """Let every generation that runs, or waits for its answer to begin, raise `error`."""
        for call in self._calls:
            call.end(error)

    async def _post(
        self, path: str, body: bytes, headers: Mapping[str, str], call: _RunningCall
    ) -> aiohttp.ClientResponse:
        # `call.waiting` is what `end_streams` lets expire while there is no answer yet, as a silence does.
        call.waiting = asyncio.timeout(None)
        clock = self._silence_clock(partial(call.waiting.reschedule, 0))
        clock.start()
        try:
            async with call.waiting:
                response = await self._session.post(
                    self.url + path,
                    data=BytesIO(body),  # aiohttp warns of bytes longer than 1 MiB: they are written in one go
                    headers={"Content-Type": "application/json", **headers},
                    timeout=self._timeout,
                    allow_redirects=False,
                )
        # aiohttp's own error is a `TimeoutError` too. It has to be told apart: another server may be in reach.
        except aiohttp.ServerTimeoutError:  # no connection in time
            raise
        except TimeoutError as error:
            # `call.error`: it was ended from outside; else it was the silence.
            raise call.error or self._silent() from error
        finally:
            clock.close()
            call.waiting = None
        self.heard_at = self._loop.time()
        if response.status == 200:
            # From here on the caller closes the response.
            return response
        try:
            text = "no text"
            # An error whose text does not come is still the error that its status says.
            with suppress(*BROKEN):
                async with asyncio.timeout(self.timeouts.connect):
                    text = error_text(await _content(response))
        finally:
            # In a `finally`: being cancelled in the middle of an error's text must not leave the connection open.
            response.close()
        raise Refusal(response.status, text, retry_after=_retry_after(response.headers.get("Retry-After", "")))

    def _silence_clock(self, give_up: Callable[[], None]) -> _SilenceClock:
        return _SilenceClock(self.timeouts.silence, give_up, lambda: self.is_held)

    def _silent(self) -> Silent:
        return Silent(f"{self.name} sent nothing for {self.timeouts.silence:g} s.")

    async def _read_tail(self, response: aiohttp.ClientResponse, tokens: AnswerReader) -> None:
        """Read the usage and the end; a generation that is whole does not fail because they do not come."""
        # `Refusal` too: an error behind the finish reason changes nothing of what was sampled.
        with suppress(*BROKEN, GenerationFailed, Refusal):
            async with asyncio.timeout(TAIL_SECONDS):
                while data := await response.content.readany():
                    for _ in tokens.feed(data):
                        pass

    def _out_of_reach(self, error: Exception) -> EngineUnavailable:
        # Both say that nothing was sent, so that another server can have the request without doubt.
        unconnected = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
        kind = OutOfReach if unconnected else EngineUnavailable
        return kind(f"{self.name} is out of reach ({reason_of(error)}).")


async def _content(response: aiohttp.ClientResponse, limit: int = MAX_ANSWER) -> bytes:
    """Return what an answer holds, `limit` and a little at most."""
    # Stopping is enough: what is left unread is dropped with the connection.
    parts: list[bytes] = []
    size = 0
    while size < limit and (part := await response.content.readany()):
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _retry_after(value: str) -> int | None:
    """Return the seconds of a `Retry-After`; None for its other form, a date."""
    # Nine digits at most: `int` of an endless number would take long.
    seconds = int(value[:9]) if value[:9].isdecimal() else 0
    return min(seconds, MAX_RETRY_AFTER) or None
