"""How a response is read to its end: as events as they come, or as one object."""

import time
from collections.abc import AsyncGenerator

from django.http.response import HttpResponseBase

from responses_app.http import Cut
from responses_app.protocol.dialects import OPENAI, Dialect
from responses_app.protocol.frames import ping
from responses_app.protocol.resources import ResponseObject
from responses_app.runs.journal import ReaderTooSlow, Waiter, gather
from responses_app.runs.reader import ResponseReader
from responses_app.views.server_sent import DONE, GONE, PING, server_sent


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
    if reader.problem is not None and not (reader.has_spoken and reader.is_whole):
        raise reader.problem
    return reader.response()


async def event_stream(
    reader: ResponseReader, *, ping_seconds: float, dialect: Dialect = OPENAI, cut: Cut | None = None
) -> HttpResponseBase:
    """Return a response as server-sent events, with a heartbeat after each `ping_seconds` of silence (0: never).

    A stream that stops before the response has ended is `cut` off: clients take the clean end of one for its whole.
    """
    return await server_sent(_events(reader, ping_seconds, dialect, cut))


async def _events(
    reader: ResponseReader, ping_seconds: float, dialect: Dialect, cut: Cut | None
) -> AsyncGenerator[bytes, None]:
    news = Waiter()
    reader.listen(news)
    try:
        yield b""
        yield b""  # daphne sends the headers with the first part of the body, and news may be long in coming
        while not reader.ended:
            entries = reader.take()
            if entries:
                yield b"".join([b"event: %b\ndata: %b\n\n" % (entry.type.encode(), entry.json) for entry in entries])
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


def _heartbeat(last_number: int, dialect: Dialect) -> bytes:
    """Return what a silent stream says: a comment, which no client reads, or an event."""
    if dialect.pings_are_events and last_number >= 0:  # never before `response.created`
        return b"event: response.ping\ndata: %b\n\n" % ping(last_number, time.time())
    return PING
