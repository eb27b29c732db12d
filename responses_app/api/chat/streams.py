"""How the choices of a chat are read to their end: in chunks as they come, or as one completion.

A stream's status is open until its first chunk: `server_sent.seconds_to_head` says how long.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from django.http.response import HttpResponseBase

from responses_app.protocol.chat.completion import (
    ChatCompletion,
    CompletionHead,
    choice_of,
    system_fingerprint,
    usage_of,
    whole_completion,
    with_details,
)
from responses_app.protocol.chat.encoder import ChunkEncoder, usage_chunk
from responses_app.protocol.chat.replaying import KnownTurn, SeenTurn
from responses_app.protocol.chat.request import ChatRequest
from responses_app.protocol.engine_details import EngineDetails
from responses_app.protocol.errors import ApiError, server_error
from responses_app.protocol.events.events import TERMINAL
from responses_app.protocol.items.items import Exact
from responses_app.protocol.requests.resources import ResponseObject
from responses_app.protocol.response.inputs import StopReason
from responses_app.runs.choices import Choices
from responses_app.runs.log.journal import ReaderTooSlow, gather
from responses_app.runs.log.reader import ResponseReader
from responses_app.web.http import Cut
from responses_app.web.server_sent import DONE, GONE, PING, error_event, seconds_to_head, server_sent

Remember = Callable[[bytes, KnownTurn], Awaitable[None]]


class ChatReading:
    """The choices of one chat, and what is said of them.

    `version` is that of this server. `remember` keeps what the model has said, so that it reads it again as it has said
    it when its client gives it back. Whoever has it lets go of it with `leave`.
    """

    def __init__(
        self,
        chat: ChatRequest,
        choices: Choices,
        details: Sequence[EngineDetails | None],
        *,
        version: str,
        request_id: str,
        remember: Remember,
    ) -> None:
        self.choices = choices
        self._chat = chat
        self._request_id = request_id
        self._remember = remember
        self._unkept: list[tuple[bytes, KnownTurn]] = []  # what was said and is not remembered yet
        first = choices.readers[0].response()
        fingerprint = system_fingerprint(first["model"], version)
        self._head = CompletionHead.of(first, system_fingerprint=fingerprint)
        self._form = chat.form(version)
        self._details = details
        self._encoders = [ChunkEncoder(self._head, chat, index, each) for index, each in enumerate(details)]
        self._left = list(zip(choices.readers, self._encoders, strict=True))  # of the choices that have not ended
        self.problem: ApiError | None = None  # why one of the choices failed, in words for its client

    def take(self, *, quietly: bool = False) -> bytes:
        """Return the chunks of what is there; `quietly`: nobody reads them, so no more than has to be is encoded.

        Raises `ReaderTooSlow`.
        """
        said: list[bytes] = []
        ended = False
        needed = TERMINAL if quietly and not self._chat.stops else None
        for reader, encoder in self._left:
            entries, encode = reader.take(), encoder.encode
            said += [encode(each.type, each.json) for each in entries if needed is None or each.type in needed]
            if not (quietly or reader.ended):
                said.append(encoder.tokens())
            if encoder.matched is not None:
                reader.stop(StopReason.INTERRUPTED)  # once it has stopped, that is nothing
            if reader.ended:
                self._end(reader, encoder)
                ended = True
        if ended:
            self._left = [each for each in self._left if not each[0].ended]
        return b"".join(said)

    @property
    def over(self) -> bool:
        """Whether there is nothing more to be said."""
        return self.problem is not None or self.choices.ended

    def _end(self, reader: ResponseReader, encoder: ChunkEncoder) -> None:
        """Note that a choice has ended, or failed."""
        if encoder.failed or not reader.is_whole:
            self.problem = self._chat.renamed(reader.problem or server_error(self._request_id))
        elif encoder.matched is None:  # else more was sampled than is said
            self._note(reader.said(), reader.response())

    def _note(self, exact: Exact | None, response: ResponseObject) -> None:
        """Note what is to be remembered of a choice."""
        seen = SeenTurn.of_choice(choice_of(response))
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
    def usage(self) -> bytes:
        """Return the chunk of what all choices used, where it is wanted."""
        if not self._chat.include_usage:
            return b""
        return usage_chunk(self._head, usage_of(each.response for each in self._encoders if each.response is not None))

    def whole(self, responses: Sequence[ResponseObject]) -> ChatCompletion:
        """Return the completion that these responses are."""
        return with_details(whole_completion(self._head, responses, self._form), self._chat, self._details)

    @property
    def is_long(self) -> bool:
        """Whether the completion takes long to write: it has the log probabilities of a prompt."""
        return self._details[0] is not None and self._details[0].prompt_logprobs is not None

    def leave(self) -> None:
        """Let go of its choices; those that still run end."""
        self.choices.leave(GONE)


async def read_completion(reading: ChatReading) -> ChatCompletion:
    """Wait until all choices have ended, and return the completion; leaving early cancels them.

    Raises `ApiError` where one of them failed: a body that is not whole cannot say so.
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
    responses = [reader.response() for reader in choices.readers]
    return await asyncio.to_thread(reading.whole, responses) if reading.is_long else reading.whole(responses)


async def completion_stream(reading: ChatReading, *, ping_seconds: float, cut: Cut | None) -> HttpResponseBase:
    """Return a completion as server-sent chunks, with a heartbeat after each `ping_seconds` of silence (0: never).

    Raises `ApiError` for what fails before anything was said. A stream that stops before its end is `cut` off.
    """
    try:
        first = await _first(reading, seconds_to_head(ping_seconds))
    except BaseException:
        reading.leave()
        raise
    return await server_sent(_chunks(reading, first, ping_seconds, cut))


async def _first(reading: ChatReading, seconds: float) -> bytes:
    """Return the first chunks, or a heartbeat where there are none in that time."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while True:
        said = reading.take()
        if said:
            await reading.keep()
            return said
        if reading.problem is not None:
            raise reading.problem
        if not reading.choices.behind and not await reading.choices.news(max(0.0, until - loop.time())):
            return PING


async def _chunks(
    reading: ChatReading, first: bytes, ping_seconds: float, cut: Cut | None
) -> AsyncGenerator[bytes, None]:
    choices = reading.choices
    try:
        yield b""
        yield first
        while not reading.over:
            said = reading.take()
            if said:
                await reading.keep()
                yield said
                await gather(lambda: choices.has_little)
            elif not (reading.over or choices.behind or await choices.news(ping_seconds or None)):
                yield PING
        problem = reading.problem
        yield (reading.usage if problem is None else error_event(problem)) + DONE
        return
    except ReaderTooSlow:
        pass  # the registry has logged it
    finally:
        reading.leave()
    if cut is not None:
        await cut()
