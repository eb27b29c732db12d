"""How a response is read to its end: as events as they come, or as one object.

A stream's status is open until the engine's first word, or until that has taken too long: STREAM_FIRST_WORD_MS says
how long. So what the engine refuses at once is an error with a status of its own, which SDKs try again.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence

from django.http.response import HttpResponseBase

from responses_app.protocol.errors import ApiError
from responses_app.protocol.events.dialects import OPENAI, Dialect
from responses_app.protocol.events.events import EventType
from responses_app.protocol.events.frames import ping
from responses_app.protocol.events.wording import RATE_LIMITS
from responses_app.protocol.requests.resources import ResponseObject
from responses_app.runs.log.journal import Entry, ReaderTooSlow, Waiter, gather
from responses_app.runs.log.reader import ResponseReader
from responses_app.web.http import Cut
from responses_app.web.server_sent import DONE, GONE, PING, server_sent

_BEFORE_THE_ENGINE = frozenset((EventType.CREATED, EventType.IN_PROGRESS, RATE_LIMITS))  # said of any response


async def read_to_end(reader: ResponseReader) -> ResponseObject:
    """Wait for the terminal event and return its response; leaving early cancels the run.

    Raises `ApiError` where it failed before anything was said: SDKs raise and retry an error, never a body that says
    `failed`. So it does where the response ended without an end, since the server broke.
    """
    news = Waiter()
    reader.listen(news)
    try:
        while not reader.ended:
            if not reader.take():
                await news.wait()
    finally:
        reader.leave(GONE)
    problem = _unsaid(reader)
    if problem is not None:
        raise problem
    return reader.response()


def _unsaid(reader: ResponseReader) -> ApiError | None:
    """Return why a response that has ended failed with nothing said, or without an end; else None."""
    return None if reader.has_spoken and reader.is_whole else reader.problem


async def event_stream(
    reader: ResponseReader,
    *,
    ping_seconds: float,
    first_word_seconds: float = 0.0,
    dialect: Dialect = OPENAI,
    cut: Cut | None = None,
) -> HttpResponseBase:
    """Return a response as server-sent events, with a heartbeat after each `ping_seconds` of silence (0: never).

    It begins with the engine's first word, or after `first_word_seconds`. Raises `ApiError` where the response failed
    by then, with nothing said. A stream that stops before the response has ended is `cut` off: clients take the clean
    end of one for its whole.
    """
    news = Waiter()
    reader.listen(news)
    try:
        first = await _first(reader, news, first_word_seconds) if first_word_seconds else ()
    except BaseException:  # its client may leave, too
        reader.leave(GONE)
        raise
    return await server_sent(_events(reader, news, first, ping_seconds, dialect, cut))


async def _first(reader: ResponseReader, news: Waiter, seconds: float) -> Sequence[Entry]:
    """Return the events up to the engine's first word; those there are, where it is not to be had in that time.

    A response that has to wait for the engine says so, and that is not waited behind.
    """
    clock = asyncio.get_running_loop().time
    until = clock() + seconds
    first: list[Entry] = []
    while not reader.ended and all(entry.type in _BEFORE_THE_ENGINE for entry in first):
        taken = reader.take()
        first += taken
        if not (taken or await news.wait(max(0.0, until - clock()))):
            break
    if reader.ended and (problem := _unsaid(reader)) is not None:
        raise problem
    return first


async def _events(
    reader: ResponseReader,
    news: Waiter,
    first: Sequence[Entry],
    ping_seconds: float,
    dialect: Dialect,
    cut: Cut | None,
) -> AsyncGenerator[bytes, None]:
    try:
        yield b""
        yield _as_events(first)  # may be empty: daphne sends the headers with the first part of the body
        while not reader.ended:
            entries = reader.take()
            if entries:
                yield _as_events(entries)
                await gather(lambda: reader.has_little)
            elif not await news.wait(ping_seconds or None):
                yield _heartbeat(reader.last_number, dialect)
        if reader.is_whole:
            yield DONE
            return
    except ReaderTooSlow:
        pass  # the registry has logged it
    finally:
        reader.leave(GONE)
    # It goes on after the next start, on another worker, or for a faster reader; or it was deleted, or broke.
    if cut is not None:
        await cut()


def _as_events(entries: Sequence[Entry]) -> bytes:
    return b"".join([b"event: %b\ndata: %b\n\n" % (entry.type.encode(), entry.json) for entry in entries])


def _heartbeat(last_number: int, dialect: Dialect) -> bytes:
    """Return what a silent stream says: a comment, which no client reads, or an event."""
    if dialect.pings_are_events and last_number >= 0:  # never before `response.created`
        return b"event: response.ping\ndata: %b\n\n" % ping(last_number, time.time())
    return PING
