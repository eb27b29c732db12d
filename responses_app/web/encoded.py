"""How a run is read whose events are worded by another API: in the words of it as they come, or to its end.

Chat Completions and Anthropic's Messages API are read so. A stream's status is open until its first words:
`http.seconds_to_head` says how long.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable

from django.http.response import HttpResponseBase

from responses_app.protocol.errors import ApiError
from responses_app.protocol.items.items import Exact
from responses_app.protocol.prompt.replaying import KnownTurn, SeenTurn
from responses_app.protocol.requests.resources import ResponseObject
from responses_app.runs.chats import Choices
from responses_app.runs.log.journal import Gathering, ReaderTooSlow
from responses_app.web.http import GONE, PING, Cut, seconds_to_head, server_sent

Remember = Callable[[bytes, KnownTurn], Awaitable[None]]  # a turn's key, and the turn


class EncodedReading(ABC):
    """What is read, and what is said of it. Whoever has it lets go of it with `leave`.

    `remember` keeps what the model has said, so that it reads it again as it has said it when its client gives it back.
    """

    ping = PING  # what is said in silence

    def __init__(self, choices: Choices, remember: Remember) -> None:
        self.choices = choices
        self.problem: ApiError | None = None  # why it failed, in words for its client
        self._remember = remember
        self._unkept: list[tuple[bytes, KnownTurn]] = []  # what was said and is not remembered yet

    @abstractmethod
    def take(self, *, quietly: bool = False) -> bytes:
        """Return what is there; `quietly`: nobody reads it, so no more than has to be is encoded.

        Raises `ReaderTooSlow`.
        """

    @property
    @abstractmethod
    def last(self) -> bytes:
        """What is said when there is nothing more to be read."""

    def note(self, seen: SeenTurn, exact: Exact | None, response: ResponseObject) -> None:
        """Note what is to be remembered of a response that has ended: what a client has seen, and what was sampled."""
        if exact is None or seen.key is None:
            return
        known = seen.known(exact, texts=sum(item["type"] == "message" for item in response["output"]))
        if known is not None:
            self._unkept.append((seen.key, known))

    async def keep(self) -> None:
        """Remember what was said: to be awaited before its end is, since clients may go on at once, or leave."""
        while self._unkept:
            await self._remember(*self._unkept.pop())

    @property
    def over(self) -> bool:
        """Whether there is nothing more to be read."""
        return self.problem is not None or self.choices.ended

    def leave(self) -> None:
        """Let go of what is read; what still runs ends."""
        self.choices.leave(GONE)


async def read_quietly(reading: EncodedReading) -> None:
    """Wait until all has ended; leaving early cancels it.

    Raises `ApiError` where it failed: a body that is not whole cannot say so.
    """
    choices = reading.choices
    try:
        while not reading.over:
            reading.take(quietly=True)
            if not (reading.over or choices.behind):
                await choices.news()
        await reading.keep()
        if reading.problem is not None:
            raise reading.problem
    finally:
        reading.leave()


async def encoded_stream(reading: EncodedReading, *, ping_seconds: float, cut: Cut | None) -> HttpResponseBase:
    """Return what is read as server-sent events, with a heartbeat after each `ping_seconds` of silence (0: never).

    Raises `ApiError` for what fails before anything was said. A stream that stops before its end is `cut` off.
    """
    try:
        first = await _first(reading, seconds_to_head(ping_seconds))
    except BaseException:
        reading.leave()
        raise
    return await server_sent(_events(reading, first, ping_seconds, cut))


async def _first(reading: EncodedReading, seconds: float) -> bytes:
    """Return the first words, or a heartbeat where there are none in that time."""
    loop = asyncio.get_running_loop()
    # One deadline, though there may be many waits.
    until = loop.time() + seconds
    while True:
        events = reading.take()
        if events:
            await reading.keep()
            return events
        if reading.problem is not None:
            raise reading.problem
        if not reading.choices.behind and not await reading.choices.news(max(0.0, until - loop.time())):
            return reading.ping


async def _events(
    reading: EncodedReading, first: bytes, ping_seconds: float, cut: Cut | None
) -> AsyncGenerator[bytes, None]:
    choices = reading.choices
    gathering = Gathering(lambda: choices.has_little)
    try:
        # `server_sent` takes this one: a generator that has begun is closed in any case.
        yield b""
        yield first
        while not reading.over:
            events = reading.take()
            if events:
                await reading.keep()
                yield events
                await gathering.pause(is_behind=choices.behind)
            elif not (reading.over or choices.behind or await choices.news(ping_seconds or None)):
                yield reading.ping
        last = reading.last
        if last:
            yield last
        return
    except ReaderTooSlow:
        pass  # the registry has logged it
    finally:
        reading.leave()
    if cut is not None:
        await cut()
