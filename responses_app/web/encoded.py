"""How a run is read whose events are worded by another API: in the words of it as they come, or to its end.

Chat Completions and Anthropic's Messages API are read so. A stream's status is open until its first words:
`http.seconds_to_head` says how long.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Protocol

from django.http.response import HttpResponseBase

from responses_app.protocol.errors import ApiError
from responses_app.protocol.events.events import TERMINAL
from responses_app.protocol.prompt.replaying import KnownTurn, SeenTurn
from responses_app.protocol.requests.resources import ResponseObject
from responses_app.protocol.response.steps import StopReason
from responses_app.runs.chats import Choices
from responses_app.runs.log.journal import Gathering, ReaderTooSlow, ResponseReader
from responses_app.runs.plan.failures import without_answer
from responses_app.web.http import GONE, PING, Cut, seconds_to_head, server_sent

Remember = Callable[[bytes, KnownTurn], Awaitable[None]]  # a turn's key, and the turn


class Encoder(Protocol):
    """Words the events of one choice."""

    @property
    def matched(self) -> str | None:
        """The stop text that has ended the choice."""

    @property
    def failed(self) -> bool:
        """Whether it failed, or was cancelled."""

    def encode(self, type: str, json: bytes) -> bytes:
        """Return what is said of an event."""

    def tokens(self) -> bytes:
        """Return what is said of the tokens that were sampled since."""


class AskedInOwnWords(Protocol):
    """A request of the other API."""

    @property
    def stops(self) -> Sequence[str]:
        """The texts that end what is said."""

    def renamed(self, error: ApiError) -> ApiError:
        """Return an error of its run in the names of its API."""


class EncodedReading(ABC):
    """The choices of a request, and what is said of them. Whoever has it lets go of it with `leave`.

    `remember` keeps what the model has said, so that it reads it again as it has said it when its client gives it back.
    """

    ping = PING  # what is said in silence

    def __init__(
        self, asked: AskedInOwnWords, choices: Choices, encoders: Sequence[Encoder], remember: Remember
    ) -> None:
        self.choices = choices
        self.problem: ApiError | None = None  # why it failed, in words for its client
        self._asked = asked
        self._left = list(zip(choices.readers, encoders, strict=True))  # of the choices that have not ended
        self._remember = remember
        self._unkept: list[tuple[bytes, KnownTurn]] = []  # what was said and is not remembered yet

    def take(self, *, quietly: bool = False) -> bytes:
        """Return what is there; `quietly`: nobody reads it, so no more than has to be is encoded.

        Raises `ReaderTooSlow`.
        """
        said: list[bytes] = []
        ended = False
        # Stop texts are looked for in the text itself, so all of it is encoded then.
        needed = TERMINAL if quietly and not self._asked.stops else None
        for reader, encoder in self._left:
            entries, encode = reader.take(), encoder.encode
            said += [encode(each.type, each.json) for each in entries if needed is None or each.type in needed]
            if not (quietly or reader.ended):
                said.append(encoder.tokens())
            if encoder.matched is not None:
                # The model is past a stop text: more of it would only be thrown away.
                reader.source.stop(StopReason.INTERRUPTED)  # once it has stopped, that is nothing
            if reader.ended:
                self._end(reader, encoder)
                ended = True
        if ended:
            self._left = [each for each in self._left if not each[0].ended]
        return b"".join(said)

    def _end(self, reader: ResponseReader, encoder: Encoder) -> None:
        """Note why a choice has failed, or what is to be remembered of it."""
        run = reader.source
        if encoder.failed or not reader.is_whole:
            self.problem = self._asked.renamed(without_answer(run.problem, deleted=run.deleted))
            return
        response, exact = run.response(), run.said
        if encoder.matched is not None or exact is None:  # behind a stop text more was sampled than is said
            return
        seen = self.seen(response)
        if seen.key is None:
            return
        known = seen.known(exact, texts=sum(item["type"] == "message" for item in response["output"]))
        if known is not None:
            self._unkept.append((seen.key, known))

    @staticmethod
    @abstractmethod
    def seen(response: ResponseObject) -> SeenTurn:
        """Return the turn that a client has seen of a response that has ended."""

    @property
    @abstractmethod
    def last(self) -> bytes:
        """What is said when there is nothing more to be read."""

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
